"""``lastiterate audit-lm`` on tiny models: what it prints, keeps, and refuses."""

import json
import shlex
import socket

import pytest

from tests.lm.conftest import UNSPOKEN, tiny_gemma2, tiny_llama, tiny_texts  # noqa: F401

RUN = "--steps 2 --sample-rate 0.5 --noise-multiplier 1 --models 3 --method clopper-pearson"


@pytest.fixture
def texts(tiny_texts, tmp_path):  # noqa: F811
    """Dialogues in the format of ConvAI2."""
    file = tmp_path / "train.txt"
    lines = []
    for dialogue in tiny_texts.texts:
        turns = [*dialogue.split("\n"), "no"]
        pairs = [f"{turns[2 * i]}\t{turns[2 * i + 1]}\t\tyes|no" for i in range(len(turns) // 2)]
        lines += [f"{number} {line}" for number, line in enumerate(["your persona: i like you", *pairs], start=1)]
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def command(model, texts, tmp_path, more=""):
    return f"audit-lm --model {shlex.quote(str(model))} --text {texts} --store {tmp_path / 'a.sqlite'} {RUN} {more}"


def test_an_audit_needs_no_network_and_its_report_shows_perplexity(cli, tiny_llama, texts, tmp_path, monkeypatch):  # noqa: F811
    def refuse(*arguments):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    asked = command(tiny_llama, texts, tmp_path)
    found = cli.json(asked)
    assert found["models"] == 3
    assert found["steps"] == 2
    assert found["perplexity"] > 1.0
    assert found["perplexity_before"] > 1.0
    assert found["accuracy"] is None
    assert "36 dialogues" in found["data"]
    assert cli.json(asked)["empirical"] == found["empirical"]  # from the store
    shown = cli(f"report {tmp_path / 'a.sqlite'} --details --method clopper-pearson --output {tmp_path / 'page'}")
    assert "Perplexity of the models on held-out text" in shown.stdout
    page = (tmp_path / "page" / "a-report.html").read_text(encoding="utf-8")
    assert "perplexity on held-out text" in page
    assert "before training" in page


@pytest.fixture
def owned(tiny_texts, tmp_path):  # noqa: F811
    """Dialogues as JSON lines: every fourth person has four, others have two."""
    whose = [person for person in range(20) for _ in range(4 if person % 4 == 0 else 2)]
    file = tmp_path / "owned.jsonl"
    records = [
        {"turns": text.split("\n"), "user": f"u{person}"} for text, person in zip(tiny_texts.texts, whose, strict=False)
    ]
    file.write_text("\n".join(json.dumps(record) for record in records), encoding="utf-8")
    return file


def test_the_unit_may_be_a_person(cli, tiny_llama, owned, tmp_path):  # noqa: F811
    asked = command(tiny_llama, owned, tmp_path, "--unit person --by user")
    found = cli.json(asked)
    assert found["group_size"] == 4
    assert "36 dialogues of 16 people" in found["data"]
    assert found["caveats"][0].startswith("The unit is a person with up to 4 dialogues, each one example, sampled and")
    assert cli.json(f"report {tmp_path / 'a.sqlite'} --method clopper-pearson")["group_size"] == 4
    page = tmp_path / "page"
    cli(f"report {tmp_path / 'a.sqlite'} --method clopper-pearson --output {page}")
    assert "a person with up to 4 dialogues" in (page / "a-report.html").read_text(encoding="utf-8")


def test_the_adapter_is_described_by_options_that_need_it(cli, tiny_llama, owned, tmp_path):  # noqa: F811
    adapter = "--lora-rank 2 --lora-alpha 8 --lora-targets q_proj,v_proj"
    asked = command(tiny_llama, owned, tmp_path, f"--trained lora {adapter} --dry-run")
    # Two layers: q is 16 x 16 and v 8 x 16, each with two factors of rank 2.
    assert f"({2 * 2 * (32 + 24):,} parameters trained, a LoRA adapter of rank 2)" in cli.json(asked)["data"]
    refused = cli(command(tiny_llama, owned, tmp_path, adapter))
    assert refused.exit_code == 2
    assert "--trained must be lora with --lora-rank, got all" in refused.output

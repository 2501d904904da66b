"""Models and texts that want to become large are refused before memory is taken, in a real process that is watched."""

import json
import os
import shutil

import pytest

from lastiterate.data.files import VARIABLE
from tests.bombs import Answer, answers, assert_refused, gzipped

WHOLE = f"at most 1,073,741,824 bytes, the limit {VARIABLE}"
TEXTS = f"at most 268,435,456 bytes, a quarter of the limit {VARIABLE}"
SIXTEENTH = f"a 16th of the limit {VARIABLE}"
LINES = f"a 256th of the limit {VARIABLE}"
DOUBLES = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
NEST = 100_000

CONFIGS = {
    "a million layers": ({"num_hidden_layers": 10**6}, WHOLE),
    "layers without number": ({"num_hidden_layers": 10**12}, WHOLE),
    "fewer layers than none": ({"num_hidden_layers": -1}, "must have a num_hidden_layers of at least 0, got -1"),
    "a billion labels": ({"num_labels": 10**9}, WHOLE),
    "a billion words": ({"vocab_size": 10**9}, WHOLE),
    "a width of a million": ({"hidden_size": 10**6}, WHOLE),
    "a width of 2^40": ({"intermediate_size": 2**40}, WHOLE),
}
TOKENIZERS = {
    "steps that double": ({"normalizer": {"type": "Sequence", "normalizers": [DOUBLES] * 40}}, SIXTEENTH),
    "bytes of bytes of bytes": (
        {
            "pre_tokenizer": {
                "type": "Sequence",
                "pretokenizers": [{"type": "ByteLevel", "add_prefix_space": True}] * 40,
            }
        },
        SIXTEENTH,
    ),
    "one step that makes a letter a book": (
        {"normalizer": {"type": "Replace", "pattern": {"Regex": "."}, "content": "a" * 10**6}},
        SIXTEENTH,
    ),
}
FILES = {
    "a configuration that is a deep nest": ("config.json", b"[" * NEST, "must be a JSON object"),
    "a configuration with a deep nest": ("config.json", b'{"x":' * NEST, "must be a JSON object"),
    "a configuration as large as a disk": ("config.json", None, SIXTEENTH),
    "a tokenizer as large as a disk": ("tokenizer.json", None, SIXTEENTH),
    "options of a tokenizer as large as a disk": ("tokenizer_config.json", None, SIXTEENTH),
    "options from a pipe that nobody writes to": ("tokenizer_config.json", "pipe", "must be a file, got a device"),
}
GIVEN = {
    "zeros that unpack to gigabytes": (gzipped(b"\0", 2**31), TEXTS),
    "one line of 200 MB": (gzipped(b"a", 200 * 2**20), LINES),
    "a text of many lines": (b"a b c d\n\n" + b"a b c d e f g\n" * 400_000, LINES),
    "a hundred million lines": (gzipped(b"\n", 2**27), LINES),
    "a deep nest": (b'{"text": "a"}\n' + b"[" * NEST, "got a broken one on line 2"),
    "a text as large as a disk": (None, TEXTS),
}
WORDS = {name: case[-1] for cases in (CONFIGS, TOKENIZERS, FILES, GIVEN) for name, case in cases.items()}


@pytest.fixture(scope="module")
def told(tiny_llama, tiny_texts, tmp_path_factory) -> dict[str, Answer]:
    """All of them to one process: importing takes longer than refusing."""
    folder = tmp_path_factory.mktemp("bombs")
    texts = folder / "texts.jsonl"
    texts.write_text("".join(json.dumps({"turns": text.split("\n")}) + "\n" for text in tiny_texts.texts))
    commands = {}
    for place, name in enumerate(WORDS):
        model, text = tiny_llama, texts
        if name in GIVEN:
            text = folder / f"{place}.txt"
            _write(text, GIVEN[name][0])
        else:
            model = shutil.copytree(tiny_llama, folder / str(place))
            _harm(model, name)
        commands[name] = ["audit-lm", "--model", str(model), "--text", str(text), "--store", str(folder / "s.sqlite")]
    found = answers(commands, folder)
    assert not (folder / "s.sqlite").exists()
    return found


@pytest.mark.parametrize("name", WORDS)
def test_a_bomb_is_refused_in_a_sentence_that_names_the_limit(told, name):
    assert_refused(told[name], WORDS[name])


def _harm(model, name):
    for cases, file in ((CONFIGS, "config.json"), (TOKENIZERS, "tokenizer.json")):
        if name in cases:
            path = model / file
            path.write_text(json.dumps(json.loads(path.read_text()) | cases[name][0]))
            return
    file, content, _ = FILES[name]
    _write(model / file, content)


def _write(path, content):
    path.unlink(missing_ok=True)
    if content == "pipe":
        os.mkfifo(path)
    elif content is None:
        with path.open("wb") as file:
            file.truncate(2**40)
    else:
        path.write_bytes(content)

"""Tables of docs/results.md follow from stored scores. `python -m tests.paper.test_stored_results` prints them."""

from pathlib import Path

import pytest

from lastiterate.auditing import load_evidence
from lastiterate.auditing.evidence.estimates import Question
from lastiterate.formatting import spell_down, spell_up
from lastiterate.paper.reproduce import table2
from lastiterate.paper.reproduce.audited_figures import CONFIDENCE, DELTA, METHOD, row_of
from lastiterate.plot.chart_file import save
from tests.paper.reproduce.conftest import values

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "results.md").read_text(encoding="utf-8")
FILES = sorted((DOCS / "results").glob("*.sqlite"))


def row(path):
    return row_of(load_evidence.read(path, Question(DELTA, CONFIDENCE, [METHOD])), {}, "accuracy")


def line(path):
    found, (training, _, canary) = row(path), path.stem.rpartition("-")
    cells = [f"[{training}](results/{path.name})", canary, f"{found['steps']:,}"]
    cells += [f"{found['noise_multiplier']:.3f}", spell_up(found["composition"], 3), spell_up(found["last_iterate"], 3)]
    cells += [spell_down(found["empirical"], 3), str(found["models"]), f"{found['signal_fraction']:.0%}"]
    cells.append("" if found["accuracy"] is None else f"{found['accuracy']:.1%}")
    return f"| {' | '.join(cells)} |"


def batch_sizes():
    paths = {size: DOCS / "results" / f"cifar10-features-{size}-quiet.sqlite" for size in (256, 512, 4096)}
    return [{**row(path), "batch_size": size} for size, path in paths.items()]


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_the_page_shows_what_the_scores_say_and_nothing_exceeds_the_prediction(path):
    assert line(path) in PAGE.splitlines()
    assert row(path)["empirical"] < row(path)["last_iterate"]


def test_the_picture_of_batch_sizes_is_drawn_from_the_scores():
    panel = table2.chart(batch_sizes()).to_dict()["hconcat"][0]
    assert panel["title"]["subtitle"] == "composition, up to 201, leaves the picture"
    assert [each["epsilon"] for each in values(panel["layer"][1])] == [row["empirical"] for row in batch_sizes()]


def test_the_page_shows_what_the_scores_of_a_language_model_say():
    found = load_evidence.read(DOCS / "results" / "one-run" / "smollm2-embeddings.sqlite")
    bounds = [spell_down(found.estimates[name].epsilon, 2) for name in ("one-run", "one-run-last-iterate")]
    assert f"| 104% | {bounds[0]} | {bounds[1]} | 73.4 | 45.3 |" in PAGE


if __name__ == "__main__":
    print("\n".join(map(line, FILES)))
    save(table2.chart(batch_sizes()), DOCS / "pictures" / "cifar10-features.png")

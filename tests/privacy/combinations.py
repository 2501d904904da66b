"""Every combination of what a run may be, and the table of docs/method.md that says which analyses answer."""

from __future__ import annotations

import itertools
from pathlib import Path

import lastiterate as li

STEPS = 8
ANALYSES = {
    "h": li.last_iterate,
    "c": li.composition,
    "f": li.full_batch,
    "n": li.no_amplification,
    "m": li.max_over_steps,
}
OPTIMIZERS = {
    "plain, schedule, decay": {"optimizer": li.SGD([0.5] * 4 + [0.25] * 4, weight_decay=0.1)},
    "momentum, averaging": {"optimizer": li.SGD(momentum=0.9)},
    "Adam": {"optimizer": li.Adam()},
    "weights of both signs": {"weights": [1.0, -1.0, 1.0, 1.0, 1.0, -0.5, 1.0, 1.0]},
}
RELEASES = {"one": None, "several": 2, "all": STEPS}
COLUMNS = {
    "one example": {},
    "a person": {"group_size": 3},
    "replaced example": {"neighbours": "replace"},
    "replaced person": {"group_size": 3, "neighbours": "replace"},
}


def combinations():
    """The names of rows and columns, and the run; epochs are of four steps."""
    samplings = ("poisson", "fixed", "shuffled", "full")
    for sampling, optimizer, releases in itertools.product(samplings, OPTIMIZERS, RELEASES):
        for column, fields in COLUMNS.items():
            rate = 1.0 if sampling == "full" else 0.25
            more = OPTIMIZERS[optimizer] | fields
            run = li.DPSGD(STEPS, rate, 2.0, sampling, releases=RELEASES[releases], **more)
            yield (sampling, optimizer, releases), column, run


def answers(run):
    """The letters of the analyses that answer, and the sentences of those that do not."""
    letters, refusals = "", []
    for letter, analysis in ANALYSES.items():
        try:
            curve = analysis(run)
            if letter != "c":  # composition depends on neither optimizer nor releases, and takes longer
                assert curve.epsilon(1e-5) > 0.0
            letters += letter
        except ValueError as refusal:
            refusals.append(str(refusal))
    return letters, refusals


def documented():
    """The table: letters by row and column."""
    text = (Path(__file__).parents[2] / "docs" / "method.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("| ") and line.count("|") == 8]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    header = cells[0][3:]
    return {
        (*row[:3], column): "" if letters == "none" else letters.replace(" ", "")
        for row in cells[1:]
        for column, letters in zip(header, row[3:], strict=True)
    }


def table():
    """The table as it should be, for whoever has changed it: python -m tests.privacy.combinations."""
    found = {(*row, column): answers(run)[0] for row, column, run in combinations()}
    lines = ["| sampling | steps | released | " + " | ".join(COLUMNS) + " |", "|---" * 7 + "|"]
    for row in dict.fromkeys(key[:3] for key in found):
        cells = [" ".join(found[*row, name]) or "none" for name in COLUMNS]
        lines += ["| " + " | ".join((*row, *cells)) + " |"]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())

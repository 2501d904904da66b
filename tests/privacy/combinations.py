"""Every combination of what a run may be, and the table of docs/method.md that says which analyses answer."""

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
EQUAL = {"equal": {}}
CORRELATED = {  # and released: the last iterate, or several
    "one": {"noise_filter": (1.0, -0.5, -0.125)},
    "one, 2 apart": {"noise_filter": (1.0, -0.5, -0.125), "min_separation": 2},
    "several": {"noise_filter": (1.0, -0.5, -0.125), "releases": 2},
}
COLUMNS = {
    "one example": {},
    "a person": {"group_size": 3},
    "replaced example": {"neighbours": "replace"},
    "replaced person": {"group_size": 3, "neighbours": "replace"},
}


def combinations():
    """The names of rows and columns, and the run; epochs are of four steps."""
    samplings = ("poisson", "balls-in-bins", "fixed", "shuffled", "full")
    for sampling, optimizer, releases in itertools.product(samplings, OPTIMIZERS, RELEASES):
        for column, fields in COLUMNS.items():
            rate = 1.0 if sampling == "full" else 0.25
            more = OPTIMIZERS[optimizer] | fields
            run = li.DPSGD(STEPS, rate, 2.0, sampling, releases=RELEASES[releases], **more)
            yield (sampling, optimizer, releases), column, run


def correlated():
    """The same for correlated noise. Full batches cannot be apart."""
    samplings = ("poisson", "balls-in-bins", "fixed", "shuffled", "full")
    for sampling, optimizer, released in itertools.product(samplings, EQUAL | OPTIMIZERS, CORRELATED):
        if (sampling, released) == ("full", "one, 2 apart"):
            continue
        for column, fields in COLUMNS.items():
            rate = 1.0 if sampling == "full" else 0.25
            more = (EQUAL | OPTIMIZERS)[optimizer] | fields | CORRELATED[released]
            yield (sampling, optimizer, f"{released}, correlated"), column, li.DPSGD(STEPS, rate, 2.0, sampling, **more)


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
    tables = [part for part in text.split("\n\n") if part.startswith("| sampling | steps |")]
    lines = [line for part in tables for line in part.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    header = cells[0][3:]
    return {
        (*row[:3], column): "" if letters == "none" else letters.replace(" ", "")
        for row in cells
        if row[0] != "sampling"
        for column, letters in zip(header, row[3:], strict=True)
    }


def table(of):
    """A table as it should be, for whoever has changed it: python -m tests.privacy.combinations."""
    found = {(*row, column): answers(run)[0] for row, column, run in of}
    lines = ["| sampling | steps | released | " + " | ".join(COLUMNS) + " |", "|---" * 7 + "|"]
    for row in dict.fromkeys(key[:3] for key in found):
        cells = [" ".join(found[*row, name]) or "none" for name in COLUMNS]
        lines += ["| " + " | ".join((*row, *cells)) + " |"]
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(combinations()), table(correlated()), sep="\n\n")

"""Which audits know checkpoints, people and replaced examples: the table of docs/audit.md. Nothing is trained."""

from pathlib import Path

import numpy as np
import pytest

import lastiterate as li
from lastiterate.attacks import NAMED, Displacement
from lastiterate.auditing.experiments.choose import Given, experiment_on
from lastiterate.training import problems

RUN = li.DPSGD(6, 0.5, 1.0, optimizer=li.SGD(0.1))
PROBLEM = problems.linear(np.eye(4, dtype=np.float32))
COLUMNS = {
    "several releases": {"releases": 2},
    "a person": {"group_size": 2},
    "replaced example": {"neighbours": "replace"},
}


def documented():
    """Whether an audit is possible, by row and column."""
    lines = (Path(__file__).parents[2] / "docs" / "audit.md").read_text().splitlines()
    first = lines.index("| attack | several releases | a person | replaced example |")
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[first:] if line.startswith("|")]
    body = rows[2 : 2 + 12]
    return {
        (row[0], column): {"yes": True, "no": False}[cell]
        for row in body
        for column, cell in zip(COLUMNS, row[1:], strict=True)
    }


def begun(problem, run, attack):
    experiment_on(problem, Given(run, attack, 2, 0))


def texts(run, attack):
    import lastiterate.lm as lm

    tokens = lm.text_problem.Tokens(np.zeros((2, 4), np.int64), np.full(2, 4))
    problem = lm.TextProblem("nowhere", "0", tokens, None, np.arange(3), device="cpu")
    begun(problem, run, attack(lm))
    if isinstance(attack(lm), lm.UnseenTokens):
        attack(lm)._blocks(run)


def askers(row):
    """What is asked for a row of the table, each a function of a run."""
    named = [part.strip("` ") for part in row.split(",")]
    if all(name in NAMED for name in named):
        return [lambda run, name=name: begun(PROBLEM, run, NAMED[name].make()) for name in named]
    one = {
        "a trainer with `Displacement`": lambda run: begun(_train, run, Displacement(np.ones(2))),
        "a trainer that returns scores": lambda run: begun(_train, run, None),
        "`audit-lm`": lambda run: texts(run, lambda lm: lm.UnseenTokens()),
        "`audit-lm --score loss`": lambda run: texts(run, lambda lm: lm.UnseenTokens("loss")),
        "`audit-lm --one-run`": lambda run: texts(run, lambda lm: lm.OneRunTokens()),
        "`power`": lambda run: li.power(run, 8, methods=["gdp"]),
        "`power --one-run`": lambda run: li.power(run, 8, one_run=True, methods=["one-run"]),
    }
    return [one[row]]


def _train(seed: int, canary: bool) -> float:
    return 0.0


@pytest.mark.parametrize(("row", "column"), documented())
def test_audits_know_what_the_table_says_and_refuse_the_rest_in_a_sentence(row, column):
    (name,) = COLUMNS[column]
    for ask in askers(row):
        if documented()[row, column]:
            ask(RUN.replace(**COLUMNS[column]))
        else:
            with pytest.raises(ValueError, match=name) as refusal:
                ask(RUN.replace(**COLUMNS[column]))
            assert "\n" not in str(refusal.value)


def test_the_table_names_every_attack_of_the_command_line():
    rows = {row for row, _ in documented()}
    assert set(NAMED) <= {part.strip("` ") for row in rows for part in row.split(",")}

"""What a reader of runs does not know it refuses, in a sentence: never ignored."""

from __future__ import annotations

import numpy as np
import pytest

import lastiterate as li
from lastiterate.attacks import Adversarial
from lastiterate.attacks.likelihood import log_likelihood_ratio
from lastiterate.attacks.linear_score import noise_unit
from lastiterate.auditing.evidence.score_law import score_below
from lastiterate.auditing.evidence.signal import expected_signal
from lastiterate.batch_order import batch_order
from lastiterate.counterexamples.setting import require_plain
from lastiterate.counterexamples.worst import worst
from lastiterate.training import Trainer, problems, train

NEW = [
    ({"releases": 2}, "releases must be None for"),
    ({"group_size": 2}, "group_size must be 1 for"),
    ({"neighbours": "replace"}, "neighbours must be 'add-remove' for"),
]
PROBLEM = problems.linear(np.eye(4, dtype=np.float32))
SCORES = np.arange(8.0)
READERS = {
    "train": lambda run: train(run, PROBLEM, models=1),
    "trainer": lambda run: Trainer(run, PROBLEM, models=1),
    "audit": lambda run: li.audit(run, PROBLEM, models=2),
    "audit of a user's trainer": lambda run: li.audit(run, lambda seed, canary: 0.0, models=2),
    "audit of exact steps": lambda run: li.audit(run, None, Adversarial("trained"), models=2),
    "one run": lambda run: li.estimate(SCORES + 1.0, SCORES, run=run, method="one-run-last-iterate"),
    "power": lambda run: li.power(run, models=8),
    "likelihood": lambda run: log_likelihood_ratio(run, SCORES, 0),
    "batches": lambda run: batch_order(run, 10),
    "counterexamples": require_plain,
    "worst": lambda run: worst(run, 1e-5),
}
KNOW_GROUPS = ("train", "trainer", "audit of exact steps", "batches")
CASES = [
    pytest.param(reader, fields, message, id=f"{reader}-{next(iter(fields))}")
    for reader in READERS
    for fields, message in NEW
    if not ("group_size" in fields and reader in KNOW_GROUPS)
]


@pytest.mark.parametrize("reader", [noise_unit, expected_signal, lambda run: score_below(run, SCORES)])
def test_linear_scores_know_all_but_several_releases(reader):
    with pytest.raises(ValueError, match="releases must be None for"):
        reader(li.DPSGD(4, 0.5, 1.0, releases=2))


@pytest.mark.parametrize(("reader", "fields", "message"), CASES)
def test_readers_of_runs_refuse_what_they_do_not_know(reader, fields, message):
    run = li.DPSGD(4, 0.5, 1.0, optimizer=li.SGD(0.1), **fields)
    with pytest.raises(ValueError, match=message):
        READERS[reader](run)

"""What the analyses declare about runs is what they do: a supported run has a curve, any other is refused."""

import itertools
from pathlib import Path

import numpy as np
import pytest

import lastiterate as li
from lastiterate.attacks import Adversarial, AllIterates, GradientSpace, OneRun
from lastiterate.attacks.released_iterates import log_likelihood_ratio, noise_unit
from lastiterate.auditing.evidence.score_signal import expected_signal, score_below
from lastiterate.compare_analyses import support_matrix
from lastiterate.labels import ANALYSES
from lastiterate.paper.counterexamples.setting import require_plain
from lastiterate.paper.counterexamples.worst import worst
from lastiterate.supported_runs import BASIC, FEATURES, LINEAR, TRAINED, Support, require_supported
from lastiterate.trainers.batch_order import batch_order
from lastiterate.training import Trainer, problems, train

CHOICES = {
    "sampling": ["poisson", "fixed", "shuffled", "full"],
    "optimizer": [None, li.SGD(0.1), li.SGD(0.1, momentum=0.9), li.SGD(0.1, averaging=0.9), li.Adam()],
    "releases": [None, 2, 8],
    "group_size": [1, 2],
    "neighbours": [None, "replace"],
    "noise_filter": [None, [1.0, -0.5]],
}
FIELDS = [dict(zip(CHOICES, each, strict=True)) for each in itertools.product(*CHOICES.values())]
RUNS = [li.DPSGD(8, 1.0 if each["sampling"] == "full" else 0.25, 2.0, **each) for each in FIELDS]


@pytest.mark.parametrize("name", [name for name in ANALYSES if name != "convex"])
def test_a_run_has_a_curve_if_and_only_if_the_analysis_declares_its_features(name):
    analysis = ANALYSES[name]
    refused = 0
    for run in RUNS:
        correlated = name == "composition" and run.noise_filter is not None  # does not rely on sampling
        refusal = None if correlated else analysis.supports.refusal(run)
        if refusal is None:
            analysis.curve(run)
            continue
        refused += 1
        with pytest.raises(ValueError, match="must be") as raised:
            analysis.curve(run)
        assert str(raised.value) == str(refusal)
    assert (refused > 0) == (name != "no_amplification")


def test_every_feature_is_found_in_some_run_and_named_by_its_argument():
    runs = [*RUNS, *_OTHERS]
    for feature in FEATURES:
        lacking = Support("it", frozenset(FEATURES) - {feature})
        refusals = [lacking.refusal(run) for run in runs]
        refusal = next(each for each in refusals if each)
        assert refusal.argument == feature.field
        assert str(refusal).startswith(f"{feature.field} must be ")
        assert " for it, got " in str(refusal)


def test_a_feature_that_nobody_declares_is_refused():
    for support in (Support("it", frozenset()), Support("it", BASIC), Support("it", LINEAR), Support("it", TRAINED)):
        assert any(support.refusal(run) for run in RUNS)
    with pytest.raises(ValueError, match=r"^run must be a lastiterate\.DPSGD, got 3$"):
        require_supported(3, Support("it", BASIC))


def test_the_guide_has_the_table_of_all_declarations():
    guide = (Path(__file__).parents[1] / "docs" / "howto" / "supported-runs.md").read_text()
    assert support_matrix() in guide
    assert support_matrix().count("\n") == len(FEATURES) + 1


_OTHERS = [
    li.DPSGD(4, [0.1, 0.2, 0.3, 0.4], [1.0, 2.0, 3.0, 4.0], optimizer=li.SGD([0.1, 0.2, 0.3, 0.4])),
    li.DPSGD(4, 0.1, 1.0, weights=[1.0, 2.0, 3.0, 4.0]),
    li.DPSGD(4, 0.1, 1.0, optimizer=li.SGD(0.1, weight_decay=0.1)),
    li.DPSGD(4, 0.1, 1.0, noise_filter=[1.0, -0.5], min_separation=2),
    li.DPSGD(8, 0.25, 1.0, sampling="shuffled", releases=[3]),
    li.DPSGD(4, 0.25, 1.0, sampling="truncated-poisson", max_batch_size=3, dataset_size=8),
    li.DPSGD(4, 0.25, [1.0, 2.0, 3.0, 4.0], sampling="balls-in-bins"),
    li.DPSGD(4, 0.25, 1.0, sampling="balls-in-bins", group_size=2),
    li.DPSGD(4, 0.25, 1.0, sampling="balls-in-bins", neighbours="replace"),
]


NEW = [
    ({"releases": 2}, "releases must be None for"),
    ({"group_size": 2}, "group_size must be 1 for"),
    ({"neighbours": "replace"}, "neighbours must be 'add-remove' or 'zero-out' for"),
]
PROBLEM = problems.linear(np.eye(4, dtype=np.float32))
SCORES = np.arange(8.0)


class _Own(GradientSpace):
    """An attack that does not declare what it supports."""

    supports = None


READERS = {
    "audit of all iterates": lambda run: li.audit(run, PROBLEM, AllIterates(), models=2),
    "audit of one run": lambda run: li.audit(run, PROBLEM, OneRun(), models=2),
    "attack of one's own": lambda run: li.audit(run, PROBLEM, _Own(), models=2),
    "one run": lambda run: li.estimate(SCORES + 1.0, SCORES, run=run, method="one-run-last-iterate"),
    "power of one run": lambda run: li.power(run, models=8, one_run=True),
    "likelihood": lambda run: log_likelihood_ratio(run, SCORES, 0),
    "counterexamples": require_plain,
    "worst": lambda run: worst(run, 1e-5),
}
# Correlated noise is known to whatever looks at one iterate. Trainers draw batches without regard to earlier ones.
NO_FILTER = ("audit of all iterates", "likelihood", "counterexamples", "worst")
TRAINERS = {
    "train": lambda run: train(run, PROBLEM, models=1),
    "trainer": lambda run: Trainer(run, PROBLEM, models=1),
    "audit": lambda run: li.audit(run, PROBLEM, models=2),
    "audit of exact steps": lambda run: li.audit(run, None, Adversarial("trained"), models=2),
    "audit of one run": READERS["audit of one run"],
    "batches": lambda run: batch_order(run, 10),
}
CASES = [
    pytest.param(reader, fields, message, id=f"{reader}-{next(iter(fields))}")
    for reader in READERS
    for fields, message in NEW
]
CASES += [
    pytest.param(reader, {"noise_filter": [1.0, -0.5]}, "noise_filter must be None for", id=f"{reader}-noise_filter")
    for reader in NO_FILTER
]


@pytest.mark.parametrize("name", TRAINERS)
def test_trainers_refuse_batches_that_keep_an_example_apart(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run = li.DPSGD(4, 0.5, 1.0, optimizer=li.SGD(0.1), noise_filter=[1.0, -0.5], min_separation=2)
    with pytest.raises(ValueError, match="min_separation must be 1 for"):
        TRAINERS[name](run)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("reader", [noise_unit, expected_signal, lambda run: score_below(run, SCORES)])
def test_linear_scores_know_all_but_several_releases(reader):
    with pytest.raises(ValueError, match="releases must be None for"):
        reader(li.DPSGD(4, 0.5, 1.0, releases=2))


@pytest.mark.parametrize(("reader", "fields", "message"), CASES)
def test_readers_of_runs_refuse_what_they_do_not_know(reader, fields, message):
    run = li.DPSGD(4, 0.5, 1.0, optimizer=li.SGD(0.1), **fields)
    with pytest.raises(ValueError, match=message):
        READERS[reader](run)

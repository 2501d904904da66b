"""What the analyses declare about runs is what they do: a supported run has a curve, any other is refused."""

import itertools
from pathlib import Path

import pytest

import lastiterate as li
from lastiterate.compare_analyses import support_matrix
from lastiterate.features import BASIC, FEATURES, LINEAR, TRAINED, Support, require_supported
from lastiterate.registry import ANALYSES

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
]

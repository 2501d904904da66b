"""Reports: recomputed from scores alone, with other methods, confidences and thresholds."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate import attacks
from lastiterate.auditing.load_evidence import read

RUN = li.DPSGD(100, 0.1, 1.2, optimizer=li.SGD(0.1))


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    path = tmp_path_factory.mktemp("report") / "x.sqlite"
    li.audit(RUN, None, attacks.Adversarial(), models=2000, seed=3, store=path)
    return path


def test_a_priori_thresholds_are_numbers_that_do_not_depend_on_the_scores(store, tmp_path):
    other = li.audit(RUN, None, attacks.Adversarial(), models=2000, seed=4, store=tmp_path / "y.sqlite")
    here = read(store)
    for method, found in here.estimates.items():
        assert found.threshold_choice == "a-priori"
        assert found.threshold == other.estimates[method].threshold


@pytest.mark.slow
def test_last_iterate_family_is_below_the_heuristic_as_often_as_stated():
    """Many audits with their own a-priori thresholds: joint confidence 80%, so that failures would show."""
    run = li.calibrate(RUN, epsilon=4.0, delta=1e-5, analysis=li.last_iterate)
    audits = [
        li.audit(run, None, attacks.Adversarial(), models=300, seed=seed, confidence=0.8, methods=["last-iterate"])
        for seed in range(120)
    ]
    above = np.mean([each.empirical["last-iterate"] > each.last_iterate for each in audits])
    assert above <= 0.2 + 3 * np.sqrt(0.2 * 0.8 / 120)
    assert np.mean([each.verdict == "violation" for each in audits]) <= 0.2

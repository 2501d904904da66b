"""Agreement with values from ball arithmetic (the heuristic, to 1e-12) and fine quadrature (composition, to 1e-8)."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate.privacy.mixtures import mixture
from lastiterate.privacy.mixtures.fourier import Unreliable
from lastiterate.privacy.mixtures.kernels import FourierKernel
from lastiterate.privacy.mixtures.law import law_of
from tests.privacy.helpers import references, relative_error, run_of

HEURISTIC = [row for name in ("epsilons", "small_noise", "weighted") for row in references(name)]


@pytest.mark.parametrize("row", HEURISTIC, ids=str)
def test_heuristic_agrees_with_reference(row):
    value = li.last_iterate(run_of(row)).epsilon(row["delta"])
    assert relative_error(value, row["epsilon"]) < 1e-12


@pytest.mark.parametrize("row", HEURISTIC, ids=str)
def test_bracket_holds_the_reference(row):
    lower, upper = li.last_iterate(run_of(row)).bracket(row["delta"])
    assert lower <= row["epsilon"] <= upper
    assert upper - lower < 1e-9 * max(1.0, row["epsilon"])


def test_fourier_kernel_agrees_with_reference_wherever_it_trusts_itself():
    trusted = 0
    for row in HEURISTIC:
        if row["sample_rate"] == 1.0:
            continue
        try:
            with np.errstate(all="ignore"):
                value = mixture.epsilon(FourierKernel(law_of(run_of(row))), np.log(row["delta"]))
        except Unreliable:
            assert row["noise_multiplier"] < 0.1
            continue
        trusted += 1
        assert relative_error(value, row["epsilon"]) < 1e-9
    assert trusted > 70


@pytest.mark.parametrize("row", references("composition") + references("composition_few_steps"), ids=str)
def test_composition_agrees_with_reference(row):
    curve = li.composition(run_of(row))
    assert relative_error(curve.epsilon(row["delta"]), row["epsilon"]) < 1e-9
    lower, upper = curve.bracket(row["delta"])
    assert lower < row["epsilon"] < upper < lower + 2e-6 * max(1.0, upper)


@pytest.mark.parametrize(("weights", "epsilon"), [((1, 1, 1), 2.222), ((1, 0, 0), 2.182), ((1, 0.5, 0.25), 2.274)])
def test_paper_numbers_of_the_quadratic_example(weights, epsilon):
    run = li.DPSGD(steps=3, sample_rate=0.1, noise_multiplier=1.0, weights=weights)
    assert li.last_iterate(run).epsilon(1e-6) == pytest.approx(epsilon, abs=1e-3)

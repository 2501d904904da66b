"""Sums of exp(iu loss) by fast Fourier transforms, against the plain sums."""

import numpy as np
import pytest

from lastiterate.privacy.losses.fourier_sums import characteristic


@pytest.mark.parametrize(("losses", "count"), [(1, 2), (7, 50), (300, 1001), (2000, 5000)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 50.0])
def test_sums_agree_with_plain_ones(losses, count, scale):
    random = np.random.default_rng(losses + count)
    loss, mass = scale * random.normal(size=losses), random.random(losses)
    mass /= mass.sum()
    got = characteristic(loss, mass, 0.07, count)
    k = np.unique(np.append(random.integers(0, count, 100), count - 1))
    plain = np.exp(0.07j * np.outer(k, loss)) @ mass
    error = np.abs(1.0 + got.real[k] + 1j * got.imaginary[k] - plain).max()
    assert error < got.remainder() + 3e-13 * max(1.0, 0.07 * count * scale * 0.01)
    log_modulus, phase = got.logarithm()
    assert np.exp(log_modulus[k] + 1j * phase[k]) == pytest.approx(plain, abs=1e-11)

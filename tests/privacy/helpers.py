"""Independent ways to the same numbers, and strategies for drawing runs."""

import json
import math
from pathlib import Path

import numpy as np
from hypothesis import strategies as st
from scipy.stats import norm

import lastiterate as li


def references(name):
    return json.loads((Path(__file__).parent / "references" / f"{name}.json").read_text())


def relative_error(value, truth):
    return abs(value - truth) / max(1.0, abs(truth))


def run_of(row):
    """The run of a row of a reference file."""
    fields = {key: row[key] for key in ("sample_rate", "noise_multiplier", "weights") if key in row}
    return li.DPSGD(steps=row["steps"] if "steps" in row else len(row["weights"]), **fields)


def gaussian_delta(epsilon, mu):
    """Balle and Wang's (2018) closed form for the Gaussian mechanism."""
    return norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))


def brute_force_delta(points, masses, noise, epsilon, nodes=400_001):
    """Both directions of the hockey-stick divergence of S + N against N, by a plain sum over a fine grid of y."""
    points, masses = np.asarray(points, float), np.asarray(masses, float)
    y = np.linspace(points.min() - 14 * noise, points.max() + 14 * noise, nodes)
    p = sum(mass * norm.pdf(y, point, noise) for point, mass in zip(points, masses, strict=True))
    q = norm.pdf(y, 0.0, noise)
    step = y[1] - y[0]
    remove = np.maximum(p - math.exp(epsilon) * q, 0.0).sum() * step
    add = np.maximum(q - math.exp(epsilon) * p, 0.0).sum() * step
    return max(remove, add)


sample_rates = st.floats(-4.0, -0.02).map(lambda x: 10.0**x)
sigmas = st.floats(-0.5, 1.3).map(lambda x: 10.0**x)
deltas = st.floats(-14.0, -1.0).map(lambda x: 10.0**x)
steps = st.floats(0.0, 6.0).map(lambda x: int(10.0**x))


@st.composite
def runs(draw, steps=steps, sample_rates=sample_rates, sigmas=sigmas):
    """Runs with constant rate and noise."""
    return li.DPSGD(steps=draw(steps), sample_rate=draw(sample_rates), noise_multiplier=draw(sigmas))


@st.composite
def weighted_runs(draw, longest=40):
    """Runs whose steps differ in weight, rate and noise."""
    count = draw(st.integers(2, longest))

    def column(low, high):
        return draw(st.lists(st.floats(low, high), min_size=count, max_size=count))

    return li.DPSGD(
        steps=count, sample_rate=column(0.01, 0.9), noise_multiplier=column(0.5, 5.0), weights=column(0.05, 1.0)
    )

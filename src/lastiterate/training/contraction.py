"""By how much a step of DP-SGD brings two models closer, for regressions whose losses are convex and smooth.

Nothing here is computed from the features: a guarantee must not depend on private data. The caller states a public
bound on their norms, and the data are only compared with it.

With L2 outside of the clipped sum a step without the canary is w -> (1 - eta lambda) w - eta sum of clipped gradients.
If the clipped gradients are those of convex functions of smoothness beta, it contracts by
max(|1 - eta lambda|, |1 - eta lambda - eta b beta|) for a batch of b examples (docs/method.md, "Convex losses").
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import bdtrc

from lastiterate.contraction import Contraction
from lastiterate.optimizer import SGD
from lastiterate.run import DPSGD, require_run
from lastiterate.training.models import Dense, cross_entropy
from lastiterate.training.problem import Problem
from lastiterate.training.problems import ScalarLink, feature_norms
from lastiterate.values import instance, number

_OF_SOFTMAX = 0.5  # largest eigenvalue of diag(p) - p p^T
_ROUNDING = 1e-6  # of features and gradients in 32 bits


def contraction_of(problem: Problem, run: DPSGD, *, feature_norm: float, failure: float = 1e-12) -> Contraction:
    """The contraction of a shipped regression under a run, for ``lastiterate.convex``.

    The contraction depends on the run, on ``feature_norm`` and on the number of examples, which counts as public.

    Args:
        problem: of ``lastiterate.training.problems``: ``binary_logistic``, ``ridge``, or ``logistic`` with so large a
            clipping norm that nothing is clipped, as clipped softmax may expand.
        run: with an optimizer that tells learning rate and weight decay.
        feature_norm: a public bound on the norm of every example's features, chosen without looking at private data.
            Examples that exceed it are refused. The refusal itself tells that one of them does; clipping tells
            nothing: train and ask with ``lastiterate.training.problems.clip_features(problem, feature_norm)``.
        failure: the probability, over all steps, that some batch is larger than what is counted with.
    """
    instance("problem", problem, Problem, "a lastiterate.training.Problem")
    most = number("feature_norm", feature_norm, 0.0, open_low=True)
    allowed = number("failure", failure, 0.0, 1.0, open_low=True, open_high=True)
    optimizer: object = require_run(run).optimizer
    if not isinstance(optimizer, SGD) or np.ndim(optimizer.learning_rate) or optimizer.momentum:
        raise ValueError("optimizer must be a lastiterate.SGD with one learning rate and no momentum")
    if np.ndim(run.sample_rate) or not run.amplifies:
        raise ValueError(f"sampling must be 'poisson' or 'full' with one sample_rate, got {run.sampling!r}")
    if problem.regulariser is not None or problem.regulariser_gradient is not None:
        raise ValueError("regulariser must be None: tell L2 by the optimizer's weight_decay, from which it contracts")
    smoothness = (1.0 + _ROUNDING) * _smoothness(problem, run, most)
    if problem.size and feature_norms(problem).max() > most * (1.0 + 0.25 * _ROUNDING):
        raise ValueError(
            f"feature_norm must bound the norm of every example's features, but some exceed {feature_norm!r}: give a"
            " larger public bound, or clip them by lastiterate.training.problems.clip_features and train with these"
        )
    batch, missed = _largest_batch(problem, run, allowed)
    rate, decay = float(optimizer.learning_rate), optimizer.weight_decay
    value = max(abs(1.0 - rate * decay), abs(1.0 - rate * (decay + batch * smoothness)))
    if value > 1.0 or value == 0.0:
        raise ValueError(
            f"learning_rate must be at most {2.0 / (decay + batch * smoothness):.6g} for steps to contract, got {rate}:"
            f" learning_rate * (weight_decay + {batch} examples * smoothness {smoothness:.6g}) must be at most 2"
        )
    return Contraction(value, missed)


def _smoothness(problem: Problem, run: DPSGD, most: float) -> float:
    """The largest second derivative of one example's loss with features of norm ``most``.

    Refuse losses that clipping may leave without convexity.
    """
    if isinstance(problem, ScalarLink):
        return problem.curvature * most**2
    if problem.loss is cross_entropy and isinstance(problem.parameters, Dense):
        largest = math.hypot(most, 1.0)  # of features and bias
        if run.clip_norm < math.sqrt(2.0) * largest:
            raise ValueError(
                f"clip_norm must be at least sqrt(2) times the largest norm of features and bias, "
                f"{math.sqrt(2.0) * largest:.6g}, with softmax, got {run.clip_norm!r}: clipped gradients of softmax "
                "may bring two models apart"
            )
        return _OF_SOFTMAX * largest**2
    raise ValueError(
        "problem must be binary_logistic, ridge or logistic of lastiterate.training.problems: of others it is not known"
        " that losses are convex and stay so when they are clipped; state the contraction yourself if you can prove it"
    )


def _largest_batch(problem: Problem, run: DPSGD, allowed: float) -> tuple[int, float]:
    """How many examples a batch may have, and the probability that some batch of the run has more.

    Copies of an example are in a batch together.
    """
    size = problem.size
    copies = 1 if problem.multiplicity is None else int(np.max(np.asarray(problem.multiplicity), initial=1))
    rate = float(run.sample_rate)
    if size == 0 or rate == 1.0:
        return size * copies, 0.0
    low, high = -1, size  # more than low is too probable
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if run.steps * float(bdtrc(middle, size, rate)) > allowed else (low, middle)
    return high * copies, run.steps * float(bdtrc(high, size, rate)) if high < size else 0.0

"""The bound that holds at any time, as models come in: what one would have seen who looked after each of them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from lastiterate.auditing.design import OpenEnded, Paired
from lastiterate.auditing.evidence.estimates import Estimates
from lastiterate.auditing.evidence.kinds import kind_of
from lastiterate.auditing.evidence.question import Question
from lastiterate.auditing.evidence.report import Evidence

_POINTS = 28
_FIRST = 4  # models a world before which no bound says anything


def growth_of(evidence: Evidence, question: Question) -> list[tuple[int, float]]:
    """Numbers of models a world, and the bound by the first method after each; empty: this audit has no such bound."""
    design = evidence.design
    if not isinstance(design, Paired) or evidence.prefix < 2 * _FIRST:
        return []
    method = question.methods_for(evidence.run, kind_of(design, evidence.expected))[0]
    anytime = replace(question, validity="anytime", threshold="a-priori", methods=None)
    inside, outside = evidence.worlds("anytime")
    most = min(len(inside), len(outside))
    horizon = design.horizon if isinstance(design, OpenEnded) else design.models
    counts = np.unique(np.rint(np.geomspace(_FIRST, most, _POINTS)).astype(np.int64)).tolist()
    points = []
    for count in counts:
        estimates = Estimates(evidence.run, evidence.expected, inside[:count], outside[:count], anytime, horizon)
        try:
            epsilon = estimates(method, question.confidence).epsilon
        except ValueError:  # too few models to choose a threshold by
            continue
        if math.isfinite(epsilon):
            points.append((count, epsilon))
    return points

"""From scores to epsilon: ours and jax-privacy's, side by side in one process, in speed and in truth.

Run it with `python benchmarks/auditing.py`; the README beside it says what is measured.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from jax_privacy import auditing
from rich.console import Console
from rich.table import Table

import lastiterate as li
from lastiterate.attacks.adversarial import sample_scores

DELTA, CONFIDENCE = 1e-5, 0.95
REPEATS = 5
RUN = li.DPSGD(steps=1000, sample_rate=0.01, noise_multiplier=0.6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the rows there")
    path = parser.parse_args().json
    rows = [row for models in (1_000, 100_000) for row in compare(models)]
    rows += no_signal()
    table = Table("question", "scores a world", "ours", "jax-privacy", "ratio", "our epsilon", "theirs")
    for row in rows:
        table.add_row(*(f"{value:.4g}" if isinstance(value, float) else str(value) for value in row.values()))
    Console(width=120).print(table)
    if path:
        path.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


def compare(models: int) -> list[dict[str, Any]]:
    """Time and result on scores of a known mechanism."""
    scores = sample_scores(RUN, np.arange(2 * models) % 2 == 0, np.random.default_rng(0))
    inside, outside = scores[::2], scores[1::2]
    split, explicit = auditing.Split(), auditing.Explicit(2.0)

    def theirs(strategy: Any) -> float:
        auditor = auditing.CanaryScoreAuditor(inside, outside)
        return float(auditor.epsilon_clopper_pearson(1 - CONFIDENCE, DELTA, threshold_strategy=strategy))

    questions: list[tuple[str, Callable[[], float], Callable[[], float]]] = [
        (
            "clopper-pearson, threshold given",
            lambda: float(li.estimate(inside, outside, DELTA, CONFIDENCE, threshold=2.0)),
            lambda: theirs(explicit),
        ),
        (
            "clopper-pearson, split",
            lambda: float(li.estimate(inside, outside, DELTA, CONFIDENCE, threshold="split")),
            lambda: theirs(split),
        ),
    ]
    return [row(what, models, ours, peer) for what, ours, peer in questions]


def no_signal() -> list[dict[str, Any]]:
    """Scores that say nothing: a valid bound is 0 in at least 95% of cases."""
    generator = np.random.default_rng(1)
    inside, outside = generator.standard_normal((2, 512))
    return [
        row(
            "gdp, no signal",
            512,
            lambda: float(li.estimate(inside, outside, DELTA, CONFIDENCE, "gdp", "split")),
            lambda: float(auditing.CanaryScoreAuditor(inside, outside).epsilon_from_gdp(1 - CONFIDENCE, DELTA)),
        )
    ]


def row(what: str, models: int, ours: Callable[[], float], peer: Callable[[], float]) -> dict[str, Any]:
    (our_seconds, our_epsilon), (peer_seconds, peer_epsilon) = best(ours), best(peer)
    return {
        "question": what,
        "models": models,
        "ours_seconds": our_seconds,
        "peer_seconds": peer_seconds,
        "ratio": peer_seconds / our_seconds,
        "ours_epsilon": our_epsilon,
        "peer_epsilon": peer_epsilon,
    }


def best(question: Callable[[], float]) -> tuple[float, float]:
    """The best time of several, and the answer."""
    answer, times = question(), []
    for _ in range(REPEATS):
        began = time.perf_counter()
        question()
        times.append(time.perf_counter() - began)
    return min(times), answer


if __name__ == "__main__":
    main()

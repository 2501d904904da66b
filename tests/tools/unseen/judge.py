"""Check every training of the catalogue: ``python -m tests.tools.unseen.judge [--models 32] [--steps no]``.

A fault is found if any row is a fault. A miss is honest if the check says "cannot tell", and bad if it says "ok".
"""

import argparse
import time
from collections import Counter

import lastiterate as li

from .catalogue import CORRECT, FAULTS, REPORTED
from .trainer import Training


def judged(training: Training, models: int, with_steps: bool, seed: int = 0) -> tuple[str, str]:
    """Return the verdict of a check, and the rows that are faults or cannot be told."""
    given = training.train if with_steps else lambda seed, canary: training.train(seed, canary)
    result = li.check(training.run, given, models=models, seed=seed)
    rows = [row for row in result.rows if row.status == result.verdict and row.status != "ok"]
    return result.verdict, ", ".join(dict.fromkeys(row.name for row in rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=32)
    parser.add_argument("--steps", choices=["yes", "no"], default="yes")
    parser.add_argument("--only", default="", help="part of a name")
    options = parser.parse_args()
    for title, trainings in (("faults", FAULTS), ("reported faults", REPORTED), ("correct", CORRECT)):
        counts: Counter[str] = Counter()
        for training in trainings:
            if options.only in training.name:
                began = time.monotonic()
                verdict, rows = judged(training, options.models, options.steps == "yes")
                counts[verdict] += 1
                print(f"{training.name:50} {verdict:12} {time.monotonic() - began:5.1f} s  {rows}", flush=True)
        print(title, dict(counts), flush=True)


if __name__ == "__main__":
    main()

"""Puts the contract of every curve to random runs, many more than the tests do.

    python -m tests.tools.contract_search --examples 100000 [--seed N]

Every violation is printed with the run that shows it; exit status 1 if there is any.
"""

import argparse
import collections
import sys
import time
import traceback

import numpy as np

from tests.privacy.contract import ANALYSES, KINDS, SURELY_REFUSED, Random, draw_discrete, draw_question, violations


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    asked, refused, broken, told = collections.Counter(), 0, 0, time.monotonic()
    for number in range(options.examples):
        draw = Random(np.random.default_rng([options.seed, number]))
        found, curve = _one(draw, draw.choice([*ANALYSES, "discrete"]))
        refused += found is None
        for sentence in found or ():
            print(f"example {number} of seed {options.seed}: {sentence}", flush=True)
        broken += bool(found)
        asked[curve] += found is not None
        if time.monotonic() > told + 10.0 or number + 1 == options.examples:
            told = time.monotonic()
            print(f"{number + 1} examples, {refused} refused, {broken} with violations", file=sys.stderr, flush=True)
    print(", ".join(f"{count} of {pair}" for pair, count in sorted(asked.items())))
    return 1 if broken else 0


def _one(draw: Random, analysis: str) -> tuple[list[str] | None, str]:
    """What is wrong, or None where there is nothing to ask; and the kind of pair."""
    what: object = None
    try:
        if analysis == "discrete":
            what, question = draw_discrete(draw)
        else:
            drawn = draw_question(draw, draw.choice(KINDS), analysis, longest=10)
            if drawn is None:
                return None, "nothing"
            what, question = drawn
        found = [f"{analysis} of {what}: {sentence}" for sentence in violations(question)]
    except Exception as error:
        if isinstance(error, ValueError) and any(reason in str(error) for reason in SURELY_REFUSED):
            return None, "nothing"
        return [f"{analysis} of {what}: {traceback.format_exc(limit=-3)}"], "error"
    return found, type(question.curve.pair).__name__


if __name__ == "__main__":
    sys.exit(main())

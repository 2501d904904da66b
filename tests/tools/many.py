"""Many correct trainings, and how many of them the check accuses: ``python -m tests.tools.many 1000``.

The check's error is the probability that a correct training has any fault in its result. More accusations than an error
of that size brings about by chance, one time in a thousand, are too many; the script then ends with status 1.
"""

import argparse
from collections import Counter
from collections.abc import Iterable

from scipy.stats import binom

import lastiterate as li
from tests.tools.zoo.correct import correct

ERROR = 1e-3


def most_accusations(trainings: int) -> int:
    """So many a right check does not exceed, but for one time in a thousand."""
    return int(binom.isf(1e-3, trainings, ERROR))


def accused(numbers: Iterable[int], models: int = 32) -> tuple[list[str], Counter[str]]:
    """What was said against correct trainings, and how many ended how."""
    words, ends = [], Counter[str]()
    for number in numbers:
        each = correct(number)
        result = li.check(each.run, each.train, models=models, seed=number, error=ERROR, initial=each.initial)
        words += [f"{number}: {row.name} {row.tensor or ''} {row.advice} [{each}]" for row in result.faults[:1]]
        ends["fault" if result.faults else "passed" if result.passed else "cannot tell"] += 1
    return words, ends


def main() -> None:
    """Print the accusations and how many there were."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("trainings", type=int, nargs="?", default=1000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--models", type=int, default=32)
    options = parser.parse_args()
    words, ends = accused(range(options.first, options.first + options.trainings), options.models)
    print("\n".join(words))
    print(f"{options.trainings} correct trainings: {dict(ends)}")
    raise SystemExit(len(words) > most_accusations(options.trainings))


if __name__ == "__main__":
    main()

"""The running epsilon costs little, however long a look takes and however quick the models are."""

from itertools import pairwise

import pytest

from lastiterate.auditing.stopping_rules import Pace


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def conduct(models, seconds_a_model, seconds_a_look, base=0.0):
    """An audit by a clock that we turn: how long it took, and each look's time and cost."""
    clock, seen = Clock(), []
    pace = Pace(2.0, clock=clock)

    def look(trials):
        clock.now += (cost := base + seconds_a_look * trials)
        seen.append((clock.now - 100.0, cost))
        return f"{trials} trials"

    for trials in range(1, models + 1):
        clock.now += seconds_a_model
        assert pace.look(lambda trials=trials: look(trials), trials) in (None, f"{trials} trials")
    return clock.now - 100.0, seen


@pytest.mark.parametrize("seconds_a_model", [1e-3, 1e-2, 1.0, 30.0])
@pytest.mark.parametrize("seconds_a_look", [1e-7, 1e-5, 1e-3])
@pytest.mark.parametrize("base", [0.0, 0.05, 3.0])
def test_looks_take_at_most_a_twentieth_of_the_time_but_for_the_first(seconds_a_model, seconds_a_look, base):
    seconds, seen = conduct(8000, seconds_a_model, seconds_a_look, base)
    assert sum(cost for _, cost in seen[1:]) <= seconds / 20
    assert all(after - before > 2.0 for (before, _), (after, _) in pairwise(seen))
    if len(seen) > 1:  # after the second the first is paid for as well
        assert sum(cost for _, cost in seen) <= 1.001 * seen[-1][0] / 20 + seen[-1][1]

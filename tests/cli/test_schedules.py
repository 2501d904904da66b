"""Named schedules on the command line."""

from __future__ import annotations

import pytest

import lastiterate as li
from lastiterate import schedules

RUN = "epsilon --steps 20 --sample-rate .1 --noise-multiplier 1 --delta 1e-5"


@pytest.mark.parametrize(
    ("options", "rates"),
    [
        ("cosine", schedules.cosine(0.3, 20)),
        ("cosine --final-rate .1", schedules.cosine(0.3, 20, 0.1)),
        ("linear --final-rate .1", schedules.linear(0.3, 20, 0.1)),
        ("step --drop-every 5", schedules.step(0.3, 20, 5)),
        ("step --drop-every 5 --drop-factor .5", schedules.step(0.3, 20, 5, 0.5)),
        ("warmup-cosine --warmup-steps 4", schedules.warmup_cosine(0.3, 20, 4)),
        (
            "warmup-cosine --warmup-steps 4 --first-rate .1 --final-rate .01",
            schedules.warmup_cosine(0.3, 20, 4, 0.1, 0.01),
        ),
    ],
)
def test_a_named_schedule_is_that_of_python(cli, options, rates):
    answer = cli.json(f"{RUN} --learning-rate .3 --momentum .5 --schedule {options}")
    assert answer["optimizer"]["learning_rate"] == rates.tolist()
    run = li.DPSGD(20, 0.1, 1.0, optimizer=li.SGD(rates, momentum=0.5))
    assert answer["last_iterate"] == li.last_iterate(run).epsilon(1e-5)

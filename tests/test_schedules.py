"""Named schedules are PyTorch's, step by step."""

import numpy as np
import pytest

from lastiterate import schedules


def by_torch(make, steps, rate=0.3):
    """The learning rate of each step under a scheduler of PyTorch's."""
    import torch

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=rate)
    scheduler = make(torch.optim.lr_scheduler, optimizer)
    rates = []
    for _ in range(steps):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    return rates


@pytest.mark.filterwarnings("ignore:The epoch parameter in:UserWarning")  # of SequentialLR's own making
@pytest.mark.parametrize("steps", [1, 2, 37])
@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (lambda n: schedules.cosine(0.3, n), lambda s, o, n: s.CosineAnnealingLR(o, n)),
        (lambda n: schedules.cosine(0.3, n, 0.1), lambda s, o, n: s.CosineAnnealingLR(o, n, eta_min=0.1)),
        (lambda n: schedules.linear(0.3, n), lambda s, o, n: s.LinearLR(o, 1.0, 0.0, n)),
        (lambda n: schedules.linear(0.3, n, 0.15), lambda s, o, n: s.LinearLR(o, 1.0, 0.5, n)),
        (lambda n: schedules.step(0.3, n, 5), lambda s, o, n: s.StepLR(o, 5)),
        (lambda n: schedules.step(0.3, n, 1, 0.9), lambda s, o, n: s.StepLR(o, 1, 0.9)),
        (lambda n: schedules.warmup_cosine(0.3, n, 0), lambda s, o, n: s.CosineAnnealingLR(o, n)),
    ],
)
def test_schedules_are_pytorchs_step_by_step(ours, theirs, steps):
    expected = by_torch(lambda module, optimizer: theirs(module, optimizer, steps), steps)
    np.testing.assert_allclose(ours(steps), expected, rtol=1e-12)

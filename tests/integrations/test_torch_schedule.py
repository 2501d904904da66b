"""Schedulers of PyTorch, read off a training by Opacus: the rate of each step is the one that it had."""

import numpy as np
import pytest

from lastiterate import DPSGD, SGD, last_iterate
from tests.integrations.opacus_helpers import engine_of, make_private, model_and_optimizer, train, trains

pytestmark = pytest.mark.filterwarnings("ignore:The epoch parameter in:UserWarning")  # SequentialLR's, of itself


def sequence(module, optimizer):
    warm, then = module.LinearLR(optimizer, 0.1, 1.0, 4), module.CosineAnnealingLR(optimizer, 8, eta_min=0.01)
    return module.SequentialLR(optimizer, [warm, then], milestones=[4])


SCHEDULERS = {
    "LambdaLR": lambda s, o: s.LambdaLR(o, lambda t: 1 / (1 + t)),
    "table": lambda s, o: s.LambdaLR(o, [1, 3, 2, 5, 4, 6, 7, 8, 1, 2, 3, 4, 5].__getitem__),
    "MultiplicativeLR": lambda s, o: s.MultiplicativeLR(o, lambda t: 0.9),
    "StepLR": lambda s, o: s.StepLR(o, 3, 0.5),
    "MultiStepLR": lambda s, o: s.MultiStepLR(o, [2, 2, 5], 0.5),
    "ConstantLR": lambda s, o: s.ConstantLR(o, 0.2, 3),
    "LinearLR": lambda s, o: s.LinearLR(o, 0.2, 1.0, 6),
    "ExponentialLR": lambda s, o: s.ExponentialLR(o, 0.8),
    "CosineAnnealingLR": lambda s, o: s.CosineAnnealingLR(o, 12),
    "CosineAnnealingWarmRestarts": lambda s, o: s.CosineAnnealingWarmRestarts(o, 3, 2),
    "PolynomialLR": lambda s, o: s.PolynomialLR(o, 12, 2.0),
    "SequentialLR": sequence,
}


def trained(opacus, data, make, steps, *, every=1, until=None, **options):
    """Engine, optimizer, loader and scheduler of a training, and the learning rates that it had."""
    import torch

    engine = engine_of(opacus)
    model, optimizer, loader = make_private(
        engine, data, *model_and_optimizer(**options), batch_size=400, noise_multiplier=1.2
    )
    scheduler = make(torch.optim.lr_scheduler, optimizer)
    rates = []
    for step in range(1, steps + 1):
        rates.append(optimizer.param_groups[0]["lr"])
        train(model, optimizer, loader, 1)
        if step % every == 0 and step != until:
            scheduler.step()
    return engine, optimizer, loader, scheduler, np.array(rates)


@trains
@pytest.mark.parametrize("until", [None, 12], ids=["stepped at the end", "not at the end"])
@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_stepped_after_each_update_is_read(opacus, digits, name, until):
    *given, rates = trained(opacus, digits, SCHEDULERS[name], 12, until=until, momentum=0.9, weight_decay=0.1)
    run = DPSGD.from_opacus(*given)
    expected = SGD(rates / 400, momentum=0.9, weight_decay=0.1 * 400)
    assert run == DPSGD(12, 0.25, 1.2, clip_norm=0.7, optimizer=expected)
    assert last_iterate(run).epsilon(1e-5) > 0


@trains
@pytest.mark.parametrize("steps", [12, 10])
def test_a_scheduler_stepped_after_each_epoch_is_read(opacus, digits, steps):
    """Of four batches each; the last one may be unfinished."""
    *given, rates = trained(opacus, digits, SCHEDULERS["StepLR"], steps, every=4)
    assert DPSGD.from_opacus(*given).optimizer == SGD(rates / 400)
    *given, rates = trained(opacus, digits, SCHEDULERS["ExponentialLR"], steps, every=4)
    assert len(set(rates)) == 3
    assert DPSGD.from_opacus(*given).optimizer == SGD(rates / 400)


@trains
def test_what_cannot_be_read_is_asked_for(opacus, digits):
    *given, _ = trained(opacus, digits, SCHEDULERS["ExponentialLR"], 12, every=2)
    with pytest.raises(
        ValueError, match=r"got 6 scheduler steps in 12 updates, with epochs of 4 updates, which is neither; pass"
    ):
        DPSGD.from_opacus(*given)
    *given, _ = trained(opacus, digits, SCHEDULERS["ExponentialLR"], 2, every=2)
    with pytest.raises(ValueError, match=r"got 1 scheduler steps in 2 updates, with .* could be either; "):
        DPSGD.from_opacus(*given)
    engine, optimizer, loader, scheduler, _ = trained(opacus, digits, SCHEDULERS["StepLR"], 3)
    with pytest.raises(ValueError, match=r"got one with a scheduler: pass scheduler= as well, or pass optimizer=last"):
        DPSGD.from_opacus(engine, optimizer, loader)
    for given_optimizer, got in ((None, "none"), (SGD(0.1), r"a lastiterate\.SGD, which has its own")):
        with pytest.raises(ValueError, match=f"optimizer must be the one that make_private returned if .*, got {got}"):
            DPSGD.from_opacus(engine, given_optimizer, loader, scheduler)
    optimizer.param_groups[0]["lr"] = 0.7
    with pytest.raises(ValueError, match=r"must have the learning rate that scheduler has given it, 0\.25, got 0\.7: "):
        DPSGD.from_opacus(engine, optimizer, loader, scheduler)

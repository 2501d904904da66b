"""A gradient canary in trainings by the real Opacus."""

import warnings

import numpy as np
import opacus
import pytest
import torch

from lastiterate.integrations.opacus import plant

EXAMPLES, CLIP_NORM, RATE = 60, 0.7, 0.25
CANARY = {"0.weight": torch.full((3, 5), 4.0), "0.bias": torch.ones(3), "2.weight": torch.ones(2, 3)}
CANARY["2.bias"] = torch.tensor([10.0, -10.0])
NORM = float(torch.cat([leaf.flatten() for leaf in CANARY.values()]).norm())


def trained(canary, seed=0, *, noise=0.0, epochs=1, batch_size=15, momentum=0.0, physical=None, together=1, **options):
    """How far each parameter went in a training whose examples, but for the canary, have no gradients."""
    torch.manual_seed(seed)
    x = torch.zeros(EXAMPLES, 5)
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Tanh(), torch.nn.Linear(3, 2))
    start = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE, momentum=momentum)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        private, optimizer, loader = opacus.PrivacyEngine().make_private(
            module=model,
            optimizer=optimizer,
            data_loader=torch.utils.data.DataLoader(
                torch.utils.data.TensorDataset(x), batch_size=batch_size, shuffle=True
            ),
            noise_multiplier=noise,
            loss_reduction="sum",
            **({"max_grad_norm": CLIP_NORM} | options),
        )
        if physical:
            from opacus.utils.batch_memory_manager import BatchMemoryManager

            with BatchMemoryManager(data_loader=loader, max_physical_batch_size=physical, optimizer=optimizer) as small:
                _train(private, optimizer, plant(canary, private, optimizer, small), epochs, together)
        else:
            _train(private, optimizer, plant(canary, private, optimizer, loader), epochs, together)
    return {name: parameter.detach() - start[name] for name, parameter in model.named_parameters()}


def _train(private, optimizer, loader, epochs, together):
    for _ in range(epochs):
        for number, (batch,) in enumerate(loader):
            if number % together == 0:
                optimizer.zero_grad()
            (0.0 * private(batch).sum()).backward()
            if number % together == together - 1:
                optimizer.step()


def times(moved):
    """How often the canary was in: each time it goes by one clipped gradient, in its own direction."""
    along = sum(float((moved[name] * leaf).sum()) for name, leaf in CANARY.items()) / NORM
    count = -along / (RATE * CLIP_NORM)
    for name, leaf in CANARY.items():
        assert torch.allclose(moved[name], -RATE * count * leaf * CLIP_NORM / NORM, atol=1e-4)
    assert count == pytest.approx(round(count), abs=1e-4)
    return round(count)


def test_opacus_draws_the_canary_at_the_rate_of_its_loader_and_clips_it():
    counts = [times(trained(CANARY, seed, epochs=5)) for seed in range(20)]  # of 20 steps at rate 1/4
    assert np.mean(counts) == pytest.approx(5.0, abs=4.0 * np.sqrt(20 * 0.25 * 0.75 / 20))
    assert len(set(counts)) > 3


def test_without_a_canary_nothing_moves():
    assert all(not moved.any() for moved in trained(False, epochs=3).values())


def test_batches_that_are_split_or_added_up_have_the_canary_as_often():
    expected = times(trained(CANARY, 5, epochs=4))
    assert times(trained(CANARY, 5, epochs=4, physical=4)) == expected
    assert times(trained(CANARY, 5, epochs=4, together=2, poisson_sampling=False)) == 4


def test_the_norm_is_clipped_layer_by_layer_where_opacus_does_so():
    norms = [CLIP_NORM] * 4
    moved = trained(CANARY, clipping="per_layer", max_grad_norm=norms, poisson_sampling=False, batch_size=EXAMPLES)
    assert all(float(leaf.norm()) == pytest.approx(RATE * CLIP_NORM, rel=1e-4) for leaf in moved.values())


def test_another_loader_than_the_planted_one_is_noticed():
    torch.manual_seed(0)
    model = torch.nn.Linear(5, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        private, optimizer, loader = opacus.PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=RATE),
            data_loader=torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(8, 5)), batch_size=4),
            noise_multiplier=1.0,
            max_grad_norm=CLIP_NORM,
        )
        plant(False, private, optimizer, loader)
        with pytest.raises(ValueError, match="loader must be the one that plant returned"):
            _train(private, optimizer, loader, 1, 1)

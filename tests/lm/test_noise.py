"""Noise on sums of gradients: normal, independent, and the same on any number of cores."""

import numpy as np
import pytest
import torch
from scipy.stats import kstest

from lastiterate.lm import dp_sgd as noise

CPU = torch.device("cpu")
SHAPES = {"embedding": (1100, 1031), "weight": (33, 40), "transposed": (1500, 700), "bias": (8,)}
ENTRIES = sum(int(np.prod(shape)) for shape in SHAPES.values())


def sums() -> dict[str, torch.Tensor]:
    made = {name: torch.zeros(shape) for name, shape in SHAPES.items()}
    return {**made, "transposed": torch.zeros(700, 1500).t()}


def noise_of(seed: int, scale: float = 1.0) -> torch.Tensor:
    total = sums()
    noise.add_noise(total, noise.streams(ENTRIES, CPU, np.random.default_rng(seed)), scale)
    return torch.cat([value.reshape(-1) for value in total.values()])


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


def test_several_streams_are_normal_in_every_stretch():
    drawn = noise_of(3, scale=0.25).numpy() / 0.25
    assert len(noise.streams(ENTRIES, CPU, np.random.default_rng(3))) == 2
    for part in np.array_split(drawn, 5):
        assert kstest(part, "norm").pvalue > 1e-4
    assert len(np.unique(drawn)) > 0.95 * len(drawn)  # float32 has ties, but no stretch is there twice


def test_streams_do_not_follow_each_other():
    first, second = noise_of(4).chunk(2)
    correlations = [torch.corrcoef(torch.stack([first, second.roll(by)]))[0, 1].item() for by in (0, 1, -1)]
    assert max(map(abs, correlations)) < 5.0 / len(first) ** 0.5


def test_noise_is_the_same_on_any_number_of_cores(threads):
    threads(1)
    alone = noise_of(5)
    threads(3)
    assert torch.equal(alone, noise_of(5))
    assert not torch.equal(alone, noise_of(6))

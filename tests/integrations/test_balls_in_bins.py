"""Balls in bins with PyTorch's loaders and Opacus: each example once per epoch, and a run that says so."""

import warnings

import numpy as np
import pytest
from scipy import stats

import lastiterate as li
from lastiterate.integrations.opacus import plant
from tests.integrations.opacus_helpers import engine_of, make_private, model_and_optimizer, train, trains

torch = pytest.importorskip("torch")


def epochs_of(sampler, count):
    """Return the bin of every example in so many epochs, [epochs, examples]."""
    bins = np.full((count, sampler.examples), -1)
    for epoch in range(count):
        for place, batch in enumerate(sampler):
            assert (bins[epoch, batch] == -1).all()
            bins[epoch, batch] = place
    return bins


def test_each_example_is_in_exactly_one_batch_of_an_epoch_and_sizes_are_binomial():
    bins = epochs_of(li.BallsInBinsSampler(200, 8, seed=3), 400)
    assert (bins >= 0).all()
    counts = np.apply_along_axis(np.bincount, 1, bins, minlength=8)
    sizes = np.bincount(counts[:, 2], minlength=61)
    expected = 400 * stats.binom.pmf(np.arange(61), 200, 1 / 8)
    common = expected > 5
    squares = (sizes[common] - expected[common]) ** 2 / expected[common]
    assert 1e-4 < stats.chi2.sf(squares.sum(), common.sum()) < 1.0 - 1e-4
    for one, other in ((bins[:, 0], bins[:, 1]), (bins[:-1, 5], bins[1:, 5])):  # two examples, two epochs
        table = stats.contingency.crosstab(one, other).count
        assert stats.chi2_contingency(table, correction=False).pvalue > 1e-4


def test_a_sampler_goes_on_where_it_stopped():
    whole = list(li.BallsInBinsSampler(30, 4, seed=1)) + list(resumed := li.BallsInBinsSampler(30, 4, seed=1))
    assert whole[:4] == whole[4:]
    second = list(resumed)
    assert second != whole[:4]
    stopped = li.BallsInBinsSampler(30, 4, seed=1)
    batches = iter(stopped)
    assert [next(batches), next(batches)] == whole[:2]
    other = li.BallsInBinsSampler(30, 4)
    other.load_state_dict(stopped.state_dict())
    assert list(other) == list(stopped) == whole[2:4]
    assert list(other) == list(stopped) == second
    other.set_epoch(*divmod(5, len(other)))
    assert list(other) == second[1:]
    assert li.BallsInBinsSampler(30, 4).seed != li.BallsInBinsSampler(30, 4).seed


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: li.BallsInBinsSampler(0, 4), "examples must be an integer at least 1, got 0"),
        (lambda: li.BallsInBinsSampler(9, 0), "batches must be an integer at least 1, got 0"),
        (lambda: li.BallsInBinsSampler(9, 4, -1), "seed must be an integer"),
        (lambda: li.BallsInBinsSampler(9, 4).set_epoch(0, 4), r"position must be an integer in \[0, 3\], got 4"),
        (lambda: li.BallsInBinsSampler(9, 4).load_state_dict({}), "state must be what state_dict returned"),
        (
            lambda: li.BallsInBinsSampler(9, 4).load_state_dict(li.BallsInBinsSampler(9, 5).state_dict()),
            "state must have 4 batches, got 5",
        ),
        (
            lambda: li.balls_in_bins_loader([1, 2]),
            "loader must be a torch.utils.data.DataLoader with batches, got list",
        ),
    ],
)
def test_bad_arguments_are_refused_by_name(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def private(opacus, data, accountant="prv", **options):
    engine = engine_of(opacus, accountant)
    loader = li.balls_in_bins_loader(torch.utils.data.DataLoader(data, **options), seed=0)
    made = make_private(
        engine, data, *model_and_optimizer(), loader=loader, poisson_sampling=False, noise_multiplier=1.2
    )
    return engine, made


@trains
def test_a_run_with_opacus_is_read_from_the_loader_and_not_called_poisson(opacus, digits):
    engine, (model, optimizer, loader) = private(opacus, digits, batch_size=160)
    train(model, optimizer, loader, 25)
    run = li.DPSGD.from_opacus(engine, optimizer, loader)
    assert (run.steps, run.sample_rate, run.sampling, run.batches_per_epoch) == (25, 0.1, "balls-in-bins", 10)
    assert run.optimizer.learning_rate == pytest.approx(0.5 / 160)
    assert run == li.DPSGD.from_opacus(engine, optimizer, sampling="balls-in-bins")
    with opacus.utils.batch_memory_manager.BatchMemoryManager(
        data_loader=loader, max_physical_batch_size=50, optimizer=optimizer
    ) as split:
        assert li.DPSGD.from_opacus(engine, optimizer, split) == run
    loader.batch_sampler.set_epoch(0)
    with pytest.raises(ValueError, match="loader must have drawn a batch for each of the 25 recorded steps, got 0"):
        li.DPSGD.from_opacus(engine, optimizer, loader)


@trains
def test_empty_batches_are_steps_with_noise_alone(opacus, digits):
    few = torch.utils.data.Subset(digits, range(6))
    engine, (model, optimizer, loader) = private(opacus, few, batch_size=1)
    sizes = [len(images) for images, _ in loader]
    assert sum(sizes) == 6
    assert 0 in sizes
    loader.batch_sampler.set_epoch(0)
    before = [p.detach().clone() for p in model.parameters()]
    losses = train(model, optimizer, loader, 12)
    assert len(losses) == sum(count for _, _, count in engine.accountant.history) == 12
    after = list(model.parameters())
    assert all(torch.isfinite(new).all() for new in after)
    assert all(not torch.equal(old, new) for old, new in zip(before, after, strict=True))


@trains
def test_the_accountant_of_opacus_names_the_guarantee_of_balls_in_bins(opacus, digits):
    li.register_opacus()
    engine, (model, optimizer, loader) = private(opacus, digits, "last_iterate", batch_size=160)
    train(model, optimizer, loader, 3)
    with pytest.warns(li.HeuristicWarning, match="composition guarantees .* for balls in bins"):
        engine.get_epsilon(1e-5)


EXAMPLES, BATCHES, EPOCHS, NOISE = 40, 8, 2, 0.1


def score(seed, canary):
    """Return the last iterate along a planted canary, in units of the noise; other gradients are zero."""
    import opacus

    torch.manual_seed(seed)
    model, data = torch.nn.Linear(6, 1), torch.utils.data.TensorDataset(torch.zeros(EXAMPLES, 6))
    start = model.weight.detach().clone()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        private, optimizer, loader = opacus.PrivacyEngine().make_private(
            module=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=1.0),
            data_loader=li.balls_in_bins_loader(torch.utils.data.DataLoader(data, batch_size=5), seed=seed),
            noise_multiplier=NOISE,
            max_grad_norm=1.0,
            loss_reduction="sum",
            poisson_sampling=False,
        )
        gradient = {"weight": torch.full((1, 6), 5.0), "bias": torch.zeros(1)} if canary else False
        loader = plant(gradient, private, optimizer, loader)
        for _ in range(EPOCHS):
            for (batch,) in loader:
                optimizer.zero_grad()
                (0.0 * private(batch).sum()).backward()
                optimizer.step()
    moved = (start - model.weight.detach()).sum() / 6.0**0.5
    return float(moved) / (NOISE * (EPOCHS * BATCHES) ** 0.5)


def test_trainings_with_opacus_leak_what_the_heuristic_predicts():
    """With whole epochs the canary is used exactly twice: scores are normal with variance 1 in both worlds."""
    run = li.DPSGD(EPOCHS * BATCHES, 1.0 / BATCHES, NOISE, "balls-in-bins")
    inside, outside = (np.array([score(seed, canary) for seed in range(24)]) for canary in (True, False))
    assert stats.kstest(outside, "norm").pvalue > 1e-3
    assert stats.kstest(inside - EPOCHS / (NOISE * (EPOCHS * BATCHES) ** 0.5), "norm").pvalue > 1e-3
    found = li.estimate(inside, outside, delta=1e-5, method="gdp", run=run)
    assert 0.0 < found.epsilon < li.composition(run).epsilon(1e-5)

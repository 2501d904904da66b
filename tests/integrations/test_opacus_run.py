"""The run that Opacus has trained: how batches were drawn, and how much each step counts."""

import dp_accounting
import numpy as np
import pytest

from lastiterate import DPSGD, SGD, Adam, composition, no_amplification
from tests.integrations.opacus_helpers import engine_of, make_private, model_and_optimizer, train, trains

DELTA = 1e-5


def loader_of(data, batch_size=160, **options):
    import torch

    return torch.utils.data.DataLoader(data, batch_size=batch_size, **options)


def trained(opacus, data, loader, steps, *, poisson, noise=1.2, **options):
    """The engine, optimizer and loader of a training that has taken so many steps."""
    engine = engine_of(opacus)
    private = make_private(
        engine, data, *model_and_optimizer(), loader=loader, poisson_sampling=poisson, noise_multiplier=noise, **options
    )
    train(*private, steps)
    return engine, *private[1:]


@pytest.fixture
def trained_engine(opacus):
    engine = engine_of(opacus)
    for _ in range(10):
        engine.accountant.step(noise_multiplier=1.0, sample_rate=0.1)
    return engine


@trains
@pytest.mark.filterwarnings("ignore:GDP accounting is experimental:UserWarning")
@pytest.mark.parametrize("accountant", ["rdp", "prv", "gdp"])
def test_the_run_can_be_read_off_every_accountant(opacus, digits, accountant):
    engine = engine_of(opacus, accountant)
    private = make_private(engine, digits, *model_and_optimizer(), noise_multiplier=1.2)
    train(*private, steps=3)
    assert DPSGD.from_opacus(engine, loader=private[2]) == DPSGD(steps=3, sample_rate=0.1, noise_multiplier=1.2)


@trains
def test_batches_of_a_shuffling_loader_are_not_taken_for_poisson_sampled(opacus, digits):
    engine, optimizer, loader = trained(opacus, digits, loader_of(digits, shuffle=True), 30, poisson=False)
    run = DPSGD.from_opacus(engine, optimizer, loader)
    assert (run.steps, run.sample_rate, run.sampling) == (30, 0.1, "shuffled")
    with pytest.raises(ValueError, match="'balls-in-bins' for composition, got 'shuffled'"):
        composition(run)
    three_epochs = dp_accounting.get_epsilon_gaussian(1.2 / np.sqrt(3), DELTA)
    assert three_epochs == pytest.approx(6.7347, abs=1e-4)
    assert no_amplification(run).epsilon(DELTA) == pytest.approx(three_epochs, rel=1e-9)
    assert composition(run.replace(sampling="poisson")).epsilon(DELTA) == pytest.approx(2.9561, abs=1e-4)


@trains
def test_gradients_accumulated_over_batches_are_one_step(opacus, digits):
    import torch

    engine = engine_of(opacus)
    loader = loader_of(digits, shuffle=True)
    model, optimizer, loader = make_private(
        engine, digits, *model_and_optimizer(), loader=loader, poisson_sampling=False, noise_multiplier=1.2
    )
    for index, (images, labels) in enumerate(loader):
        torch.nn.functional.cross_entropy(model(images), labels).backward()
        if index % 2:
            optimizer.step()
            optimizer.zero_grad()
    run = DPSGD.from_opacus(engine, optimizer, loader)
    assert run == DPSGD(5, 0.2, 1.2, sampling="shuffled", clip_norm=0.7, optimizer=SGD(0.5 / 320))


@trains
def test_micro_batches_of_a_batch_memory_manager_are_one_step_of_the_same_run_and_the_same_model(opacus, digits):
    import torch

    def trained_in(micro_batch):
        engine = engine_of(opacus)
        model, optimizer, loader = make_private(
            engine, digits, *model_and_optimizer(momentum=0.9), noise_multiplier=1e-6
        )
        loader.batch_sampler.generator = torch.Generator().manual_seed(3)
        with opacus.utils.batch_memory_manager.BatchMemoryManager(
            data_loader=loader, max_physical_batch_size=micro_batch, optimizer=optimizer
        ) as split:
            sizes = []
            for images, labels in split:
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
                sizes.append(len(labels))
            return DPSGD.from_opacus(engine, optimizer, split), sizes, next(model.parameters()).detach()

    (whole, sizes, model), (run, micro_sizes, micro_model) = trained_in(1600), trained_in(40)
    assert len(sizes) == 10 < 40 <= len(micro_sizes)
    assert sum(sizes) == sum(micro_sizes)
    assert run == whole
    assert (run.steps, run.sample_rate) == (10, 0.1)
    torch.testing.assert_close(micro_model, model, atol=1e-4, rtol=0)


def test_a_loader_and_a_word_that_contradict_each_other_are_refused(opacus, digits, trained_engine):
    shuffling = loader_of(digits, shuffle=True)
    poisson = opacus.data_loader.DPDataLoader.from_data_loader(shuffling)
    for loader, right, wrong in ((shuffling, "shuffled", "poisson"), (poisson, "poisson", "shuffled")):
        assert DPSGD.from_opacus(trained_engine, loader=loader, sampling=right).sampling == right
        with pytest.raises(ValueError, match=f"sampling must be None or '{right}', the sampling of .*got '{wrong}'"):
            DPSGD.from_opacus(trained_engine, loader=loader, sampling=wrong)


@pytest.mark.parametrize("name", ["SequentialSampler", "WeightedRandomSampler", "RandomSampler", "DistributedSampler"])
def test_samplers_that_no_analysis_describes_are_refused_by_name(digits, trained_engine, name):
    import torch

    samplers = {
        "SequentialSampler": lambda: None,
        "WeightedRandomSampler": lambda: torch.utils.data.WeightedRandomSampler(np.ones(1600), 1600),
        "RandomSampler": lambda: torch.utils.data.RandomSampler(digits, replacement=True),
        "DistributedSampler": lambda: torch.utils.data.DistributedSampler(digits, num_replicas=2, rank=0),
    }
    with pytest.raises(ValueError, match=f"got {name}: "):
        DPSGD.from_opacus(trained_engine, loader=loader_of(digits, sampler=samplers[name]()))


HYPERPARAMETERS = [
    {},
    {"weight_decay": 0.3},
    {"momentum": 0.9},
    {"momentum": 0.9, "dampening": 0.5, "weight_decay": 0.3},
    {"momentum": 0.9, "nesterov": True, "weight_decay": 0.3},
]


@trains
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("options", HYPERPARAMETERS, ids=str)
def test_weights_are_how_far_opacus_moves_the_model_for_a_gradient_at_each_step(opacus, options, reduction):
    """A linear loss, the same noise each time, and three examples of gradient 1/8 at one step or at none."""
    steps = 5

    def trained_on(step):
        import torch

        torch.manual_seed(1)
        model = torch.nn.Linear(1, 1, bias=False).double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.2, **options)
        data = torch.utils.data.TensorDataset(torch.zeros(40, 1).double())
        engine = engine_of(opacus)
        model, optimizer, loader = make_private(
            engine, data, model, optimizer, batch_size=8, noise_multiplier=1.0, loss_reduction=reduction
        )
        for at in range(steps):
            optimizer.zero_grad()
            outputs = model(torch.full((3, 1), 0.125 * (at == step)).double())
            (outputs.mean() if reduction == "mean" else outputs.sum()).backward()
            optimizer.step()
        return next(model.parameters()).item(), DPSGD.from_opacus(engine, optimizer, loader)

    without, run = trained_on(None)
    moved = [(without - trained_on(step)[0]) / 0.375 for step in range(steps)]
    np.testing.assert_allclose(np.broadcast_to(run.effective_weights(), steps), moved, rtol=1e-10)
    assert run.clip_norm == 0.7


@trains
def test_larger_batches_count_less_where_opacus_averages_over_them(opacus, digits):
    engine = engine_of(opacus)
    options = {"momentum": 0.5, "weight_decay": 0.1}
    model, optimizer, loader = make_private(engine, digits, *model_and_optimizer(**options), noise_multiplier=1.0)
    train(model, optimizer, loader, steps=2)
    model, optimizer, loader = make_private(engine, digits, model, optimizer, batch_size=320, noise_multiplier=1.0)
    train(model, optimizer, loader, steps=1)
    assert optimizer.expected_batch_size == 320
    with pytest.raises(ValueError, match=r"sample rates 0\.1, 0\.2: .* pass sampling= instead of loader="):
        DPSGD.from_opacus(engine, optimizer, loader)
    run = DPSGD.from_opacus(engine, optimizer, sampling="poisson")
    assert run.sample_rate.tolist() == [0.1, 0.1, 0.2]
    of_the_mean = SGD(0.5, **options).weights(3)
    assert run.weights == pytest.approx(of_the_mean / [160, 160, 320])
    optimizer.loss_reduction = "sum"
    assert DPSGD.from_opacus(engine, optimizer, sampling="poisson").optimizer == SGD(0.5, **options)


@trains
@pytest.mark.parametrize(("name", "decay"), [("Adam", 0.0), ("Adam", 0.2), ("AdamW", 0.2)])
def test_adam_is_read_with_eps_and_l2_decay_in_terms_of_sums(opacus, digits, name, decay):
    import torch

    engine = engine_of(opacus)
    options = {"lr": 0.01, "betas": (0.8, 0.99), "eps": 1e-3, "weight_decay": decay}
    model, optimizer, loader = make_private(engine, digits, *model_and_optimizer(name, **options), noise_multiplier=1.5)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    for _ in range(3):
        train(model, optimizer, loader, steps=1)
        scheduler.step()
    decoupled = name == "AdamW"
    of_sums = decay if decoupled else decay * 160
    expected = Adam([0.01, 0.005, 0.0025], 0.8, 0.99, 1e-3 * 160, of_sums, decoupled)
    run = DPSGD.from_opacus(engine, optimizer, loader, scheduler)
    assert run == DPSGD(3, 0.1, 1.5, clip_norm=0.7, optimizer=expected)
    optimizer.loss_reduction = "sum"
    of_sums = Adam([0.01, 0.005, 0.0025], 0.8, 0.99, 1e-3, decay, decoupled)
    assert DPSGD.from_opacus(engine, optimizer, loader, scheduler).optimizer == of_sums
    assert DPSGD.from_opacus(engine, expected, loader).optimizer == expected
    with pytest.raises(ValueError, match=r"got a lastiterate\.Adam, which has its own learning rates"):
        DPSGD.from_opacus(engine, expected, loader, scheduler)


def test_adaptive_clipping_is_refused_since_nobody_recorded_the_norms(digits, trained_engine):
    adaptive = dict.fromkeys(("target_unclipped_quantile", "clipbound_learning_rate", "min_clipbound"), 0.5)
    options = {"clipping": "adaptive", "max_clipbound": 2.0, "unclipped_num_std": 10.0, **adaptive}
    private = make_private(trained_engine, digits, *model_and_optimizer(), noise_multiplier=1.0, **options)
    message = r"optimizer must clip to a constant norm, got AdaClipDPOptimizer.*noise_multiplier=0\.99627"
    with pytest.raises(ValueError, match=message):
        DPSGD.from_opacus(trained_engine, private[1], sampling="poisson")


@trains
def test_adaptive_clipping_counts_what_was_not_clipped_without_centring_and_with_the_stated_noise(opacus, digits):
    """The advice of the refusal: gradients differ by 1 over the effective noise, and the count by 1 over its own."""
    adaptive = {"target_unclipped_quantile": 0.5, "clipbound_learning_rate": 1e-9, "min_clipbound": 0.1}
    options = {"clipping": "adaptive", "max_clipbound": 2.0, "unclipped_num_std": 0.7, **adaptive}
    engine = engine_of(opacus)
    _, optimizer, _ = make_private(engine, digits, *model_and_optimizer(), noise_multiplier=1.0, **options)
    noises, counts = [], []
    for _ in range(60):
        for p in optimizer.params:
            p.grad_sample, p.summed_grad = p.new_zeros((3, *p.shape)), None
        optimizer.step()
        noises.append(
            optimizer.params[0].grad.flatten().numpy() * optimizer.expected_batch_size / optimizer.max_grad_norm
        )
        counts.append(float(optimizer.unclipped_num))
        optimizer.zero_grad()
    gradients = np.std(np.concatenate(noises))
    assert gradients**-2 == pytest.approx(1.0 - 0.25 * 0.7**-2, rel=0.02)
    assert np.mean(counts) == pytest.approx(3.0, abs=4.0 * 0.7 / 60**0.5)  # three, and not three halves


MODES = {
    "without a wrapper": {"wrap_model": False},
    "functorch": {"grad_sample_mode": "functorch"},
    "ghost": {"grad_sample_mode": "ghost"},
    "ghost without a wrapper": {"grad_sample_mode": "ghost", "wrap_model": False},
}


@trains
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("reader", ["own", "split", "bins", "DPDataLoader"])
def test_every_way_to_compute_gradients_of_examples_gives_the_same_run(opacus, digits, mode, reader):
    import torch

    from lastiterate import balls_in_bins_loader

    engine, (model, optimizer) = engine_of(opacus), model_and_optimizer()
    given = loader_of(digits)
    if reader == "bins":
        given = balls_in_bins_loader(given)
    if reader == "DPDataLoader":
        given = opacus.data_loader.DPDataLoader.from_data_loader(given)
    of_opacus = reader in ("own", "split")
    private, optimizer, *criterion, loader = make_private(
        engine, digits, model, optimizer, loader=given, poisson_sampling=of_opacus, noise_multiplier=1.2, **MODES[mode]
    )
    module = model if "wrap_model" in MODES[mode] else private
    if reader == "split":
        loader = opacus.utils.batch_memory_manager.wrap_data_loader(
            data_loader=loader, max_batch_size=50, optimizer=optimizer
        )
    for images, labels in loader:
        optimizer.zero_grad()
        (criterion[0] if criterion else torch.nn.functional.cross_entropy)(module(images), labels).backward()
        optimizer.step()
    sampling = "balls-in-bins" if reader == "bins" else "poisson"
    expected = DPSGD(10, 0.1, 1.2, sampling, clip_norm=0.7, optimizer=SGD(0.5 / 160))
    assert DPSGD.from_opacus(engine, optimizer, loader) == expected


def test_the_engine_of_adaptive_ghost_clipping_is_refused(opacus):
    from opacus.utils.adaptive_clipping.adaptive_clipping_utils import PrivacyEngineAdaptiveClipping

    with pytest.warns(UserWarning, match="Secure RNG turned off"):
        engine = PrivacyEngineAdaptiveClipping()
    engine.accountant.step(noise_multiplier=1.0, sample_rate=0.1)
    with pytest.raises(ValueError, match="privacy_engine must clip to a constant norm, got PrivacyEngineAdaptiveCl"):
        DPSGD.from_opacus(engine, sampling="poisson")

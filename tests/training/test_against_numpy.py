"""The trainer and a plain NumPy program, given the same draws, arrive at the same parameters."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate.training import ExampleCanary, GradientCanary, Problem, Trainer, train
from lastiterate.training.draws import model_keys, normal_counters, normals
from lastiterate.training.problem import flatten
from tests.shuffling import epochs_of
from tests.training.reference import dp_sgd, linear_gradient, logistic_gradient, mlp_gradient

STEPS, EXAMPLES, INPUTS, HIDDEN, CLASSES = 50, 40, 6, 5, 3
SEED = 7


@pytest.fixture(autouse=True)
def _double_precision():
    with jax.enable_x64(True):
        yield


def make_examples(scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(3)
    sizes = np.exp(generator.normal(size=(EXAMPLES, 1)))  # some gradients are clipped and some are not
    return scale * sizes * generator.normal(size=(EXAMPLES, INPUTS)), generator.integers(0, CLASSES, EXAMPLES)


def cross_entropy(logits, label):
    return jax.nn.logsumexp(logits) - logits[label]


def logistic_loss(parameters, example, moment):
    x, label = example
    return cross_entropy(x @ parameters["w"] + parameters["b"], label)


def mlp_loss(parameters, example, moment):
    x, label = example
    hidden = jnp.tanh(x @ parameters["w1"] + parameters["b1"])
    return cross_entropy(hidden @ parameters["w2"] + parameters["b2"], label)


def linear_loss(parameters, example, moment):
    return jnp.dot(parameters, example[0])


def shaped(generator, *shape):
    return generator.normal(size=shape) * 0.5


def case(name):
    """Initial parameters, loss, NumPy's gradient, the factor that makes half of the gradients be clipped."""
    generator = np.random.default_rng(1)
    match name:
        case "linear":
            return shaped(generator, INPUTS), linear_loss, linear_gradient, 0.4
        case "logistic":
            parameters = {"b": shaped(generator, CLASSES), "w": shaped(generator, INPUTS, CLASSES)}
            return parameters, logistic_loss, logistic_gradient(INPUTS, CLASSES), 0.5
        case "mlp":
            shapes = {"b1": (HIDDEN,), "b2": (CLASSES,), "w1": (INPUTS, HIDDEN), "w2": (HIDDEN, CLASSES)}
            parameters = {key: shaped(generator, *shape) for key, shape in shapes.items()}
            return parameters, mlp_loss, mlp_gradient(INPUTS, HIDDEN, CLASSES), 0.3


def flat(parameters) -> np.ndarray:
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(parameters)])


def batches_of(trainer: Trainer, model: int, present: bool) -> list[list[int]]:
    """What the trainer's sampler draws for one model: slots, with the canary's slot left out where it is absent."""
    program = trainer._program
    count = program.chunk_size
    inputs = program.inputs(SEED, np.full(count, model), np.full(count, present), program.shared_inputs())
    memory, result = program.sampler.memory(count), []
    begin, more, take = (jax.jit(getattr(program.sampler, name)) for name in ("begin", "more", "take"))
    for step in map(np.int32, range(program.run.steps)):
        memory = begin(inputs.sampling, memory, inputs.keys.sampling, step)
        cursor, batch = program.sampler.cursor(count), []
        while more(inputs.sampling, cursor, step):
            slots, weights, cursor = take(inputs.sampling, memory, inputs.keys.sampling, step, cursor)
            batch += np.repeat(np.asarray(slots[0]), np.asarray(weights[0], int)).tolist()
        result.append([slot for slot in batch if present or slot < trainer.problem.size])
    return result


def released_by(trainer: Trainer, models: list[int], present: list[bool]) -> np.ndarray:
    chunks = trainer.chunks(np.array(models), np.array(present), SEED)
    return np.concatenate([flatten(chunk.parameters) for chunk in chunks])


def noise_of(problem: Problem, steps: int, model: int, present: bool) -> np.ndarray:
    """The trainer's standard normals, [steps, parameters]."""
    keys = model_keys(SEED, np.array([model]), np.array([present])).noise

    @jax.jit
    def at(step):
        offset, row = 0, []
        for leaf in jax.tree.leaves(problem.parameters):
            row.append(jnp.ravel(normals(keys, step, np.shape(leaf), offset, jnp.float64)))
            offset += normal_counters(np.size(leaf))
        return jnp.concatenate(row)

    return np.array([at(step) for step in map(np.int32, range(steps))])


RATE = 0.05 * (1 + np.cos(np.pi * np.arange(STEPS) / STEPS))
OPTIMIZERS = {
    "plain": li.SGD(0.05),
    "schedule": li.SGD(RATE),
    "momentum, averaged": li.SGD(0.02, momentum=0.9, dampening=0.3, weight_decay=0.1, averaging="uniform"),
    "nesterov, EMA": li.SGD(RATE, momentum=0.8, nesterov=True, weight_decay=0.2, decoupled=True, averaging=0.95),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("name", ["linear", "logistic", "mlp"])
def test_parameters_after_fifty_steps_equal_those_of_numpy(name, optimizer):
    parameters, loss, gradient, scale = case(name)
    x, y = make_examples(scale)
    curvature = 0.3
    problem = Problem(
        parameters,
        (x, y),
        loss,
        regulariser=lambda p, step: 0.5 * curvature * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(p)),
    )
    run = li.DPSGD(STEPS, 0.2, 0.7, clip_norm=0.8, optimizer=optimizer)
    canary = ExampleCanary((3 * x[0], np.int64((y[0] + 1) % CLASSES)))
    present = np.array([True, False, True])
    trainer = Trainer(run, problem, canary, chunk_size=2)
    trained = released_by(trainer, [4, 5, 6], present)
    examples = [*zip(x, y, strict=True), canary.example]
    for row, model in enumerate([4, 5, 6]):
        batches = batches_of(trainer, model, bool(present[row]))
        assert any(EXAMPLES in batch for batch in batches) == present[row]
        noise = noise_of(problem, STEPS, model, bool(present[row]))
        expected, _, clipped = dp_sgd(
            run, flat(parameters), gradient, examples, batches, noise, lambda theta: curvature * theta
        )
        assert 0.1 < clipped / sum(map(len, batches)) < 0.9
        assert trained[row] == pytest.approx(expected, rel=1e-9, abs=1e-9)


def assert_equal_to_numpy(run: li.DPSGD, name: str) -> list[list[int]]:
    """Train one model without canary or regulariser on both sides; its batches are returned."""
    parameters, loss, gradient, scale = case(name)
    x, y = make_examples(scale)
    problem = Problem(parameters, (x, y), loss)
    trainer = Trainer(run, problem, chunk_size=2)
    batches, noise = batches_of(trainer, 1, False), noise_of(problem, STEPS, 1, False)
    expected, _, _ = dp_sgd(run, flat(parameters), gradient, list(zip(x, y, strict=True)), batches, noise)
    assert released_by(trainer, [1], [False])[0] == pytest.approx(expected, rel=1e-9, abs=1e-9)
    return batches


@pytest.mark.parametrize(("sampling", "rate", "size"), [("fixed", 0.15, 6), ("shuffled", 0.15, 6), ("full", 1.0, 40)])
def test_other_ways_to_draw_batches_equal_those_of_numpy(sampling, rate, size):
    run = li.DPSGD(STEPS, rate, 0.7, sampling=sampling, optimizer=li.SGD(0.05), **epochs_of(sampling, rate))
    assert len(assert_equal_to_numpy(run, "logistic")[0]) == size


def test_schedules_of_noise_and_sample_rate_equal_those_of_numpy():
    run = li.DPSGD(STEPS, np.linspace(0, 1, STEPS), np.linspace(0.2, 2, STEPS), optimizer=li.SGD(0.05))
    batches = assert_equal_to_numpy(run, "mlp")
    assert len(batches[0]) == 0
    assert len(batches[-1]) == EXAMPLES


@pytest.mark.parametrize(
    ("name", "filter_"), [("logistic", [1.0, -0.5, 0.25, -0.7]), ("mlp", 0.9 ** np.arange(STEPS + 3))]
)
def test_correlated_noise_equals_that_of_numpy(name, filter_):
    optimizer = li.SGD(RATE, momentum=0.8, weight_decay=0.2, averaging=0.95)
    noise = np.linspace(0.2, 2, STEPS)
    run = li.DPSGD(STEPS, 0.2, noise, clip_norm=0.8, optimizer=optimizer, noise_filter=filter_)
    assert_equal_to_numpy(run, name)


def test_all_iterates_equal_those_of_numpy_and_the_callback_sees_them():
    parameters, loss, gradient, scale = case("logistic")
    x, y = make_examples(scale)
    problem = Problem(parameters, (x, y), loss)
    run = li.DPSGD(STEPS, 0.2, 0.7, optimizer=li.SGD(0.05, averaging=0.9))
    seen = {}

    def on_iterate(step, chunk):
        for model, bias in zip(chunk.models, chunk.parameters["b"], strict=True):
            seen[int(model), step] = bias

    trained = train(
        run, problem, models=3, seed=SEED, chunk_size=2, release="intermediate_iterates", on_iterate=on_iterate
    )
    batches = batches_of(Trainer(run, problem, chunk_size=2), 2, False)
    noise = noise_of(problem, STEPS, 2, False)
    released, iterates, _ = dp_sgd(run, flat(parameters), gradient, list(zip(x, y, strict=True)), batches, noise)
    assert trained.iterates["b"].shape == (3, STEPS + 1, CLASSES)
    assert trained.iterates["b"][2] == pytest.approx(iterates[:, :CLASSES], rel=1e-9, abs=1e-9)
    assert trained.flat()[2] == pytest.approx(released, rel=1e-9, abs=1e-9)
    assert len(seen) == 3 * (STEPS + 1)
    assert all(np.array_equal(seen[2, step], trained.iterates["b"][2, step]) for step in range(STEPS + 1))


@pytest.mark.parametrize("as_function", [False, True])
def test_an_injected_gradient_is_clipped_and_added_when_its_slot_is_drawn(as_function):
    parameters, loss, gradient, scale = case("linear")
    x, y = make_examples(scale)
    problem = Problem(parameters, (x, y), loss)
    run = li.DPSGD(STEPS, 0.2, 0.7, clip_norm=2.0, optimizer=li.SGD(0.05))
    vector = np.array([30.0, 0, 0, -40.0, 0, 0])
    canary = GradientCanary(lambda p, moment: vector * (moment.step + 1) if as_function else None)
    if not as_function:
        canary = GradientCanary(vector)
    trainer = Trainer(run, problem, canary, chunk_size=2)
    batches = batches_of(trainer, 1, True)
    noise = noise_of(problem, STEPS, 1, True)
    examples = [*zip(x, y, strict=True), (vector, 0)]
    expected, _, _ = dp_sgd(run, flat(parameters), gradient, examples, batches, noise)
    assert released_by(trainer, [1], [True])[0] == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_group_of_identical_examples_counts_as_often_as_it_is_drawn():
    parameters, loss, gradient, scale = case("logistic")
    x, y = make_examples(scale)
    copies = np.arange(1, EXAMPLES + 1) * 3
    problem = Problem(parameters, (x, y), loss, multiplicity=copies)
    run = li.DPSGD(STEPS, 0.2, 0.7, optimizer=li.SGD(0.01))
    canary = ExampleCanary((5 * x[1], y[0]))
    trainer = Trainer(run, problem, canary, chunk_size=2)
    batches = batches_of(trainer, 1, True)
    drawn = np.array([np.bincount(batch, minlength=EXAMPLES + 1) for batch in batches])
    assert drawn[:, :-1].mean(0) == pytest.approx(0.2 * copies, rel=0.5)
    assert drawn[:, -1].max() == 1
    noise = noise_of(problem, STEPS, 1, True)
    examples = [*zip(x, y, strict=True), canary.example]
    expected, _, _ = dp_sgd(run, flat(parameters), gradient, examples, batches, noise)
    assert released_by(trainer, [1], [True])[0] == pytest.approx(expected, rel=1e-9, abs=1e-9)

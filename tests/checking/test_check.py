"""``li.check``: correct trainings pass, each fault has the row that names it, and bad input is one sentence."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate.integrations.own_trainer import own_trainer
from lastiterate.training import problems
from tests.tools.correct import count
from tests.tools.trainers import Numpy, short

RUN = short(sample_rate=0.1)
LARGER = dict(features=64, classes=10, examples=300)
MOMENTUM = short(sample_rate=0.1, optimizer=li.SGD(0.002, momentum=0.9))
SHUFFLED = short(steps=20, sample_rate=0.3, sampling="shuffled", batches_per_epoch=4)
BINS = short(sample_rate=0.1, sampling="balls-in-bins")
AVERAGED = short(sample_rate=0.1, optimizer=li.SGD(0.002, averaging="uniform"))

# What is wrong, by how much, the run that is declared, and a row that names it.
FAULTS = [
    ("noise", 0.7, RUN, "noise"),
    ("noise", 0.9, RUN, "noise"),
    ("noise", 0.7, MOMENTUM, "noise"),
    ("noise", 2.0, RUN, "excess noise"),
    ("every other step", 1, RUN, "noise of three steps"),
    ("no noise", 1, RUN, "noise"),
    ("no noise on biases", 1, RUN, "noise"),
    ("antithetic", 1, RUN, "noise of three steps"),
    ("repeated", 1, RUN, "noise of three steps"),
    ("same in all", 1, RUN, "noise"),
    ("same in tensors", 1, RUN, "noise that is used again"),
    ("no noise in the last step", 1, RUN, "noise of the last step"),
    ("uniform", 1, RUN, "law of the noise"),
    ("laplace", 1, RUN, "law of the noise"),
    ("few values", 1, RUN, "distinct values"),
    ("one key", 1, RUN, "noise and batches"),
    ("mean rate", 1, RUN, "size of steps"),
    ("no clipping", 1, RUN, "clipping norm"),
    ("clip norm", 1.5, RUN, "clipping norm"),
    ("clip norm", 1.05, RUN, "clipping norm"),
    ("clip norm", 0.4, RUN, "clipping of small gradients"),
    ("by layer", 1, RUN, "clipping norm"),
    ("by column", 1, RUN, "clipping norm"),
    ("by coordinate", 1, RUN, "clipping norm"),
    ("bias not in norm", 1, RUN, "clipping norm"),
    ("bias not clipped", 1, RUN, "clipping norm"),
    ("l1 norm", 1, RUN, "clipping of small gradients"),
    ("normalise", 1, RUN, "clipping of small gradients"),
    ("after averaging", 1, RUN, "clipping of others"),
    ("micro-batches", 1, RUN, "clipping norm"),
    ("sample rate", 2.0, RUN, "participation"),
    ("sample rate", 0.5, short(sample_rate=0.4), "participation"),
    ("drop last", 1, SHUFFLED, "participation"),
    ("always in", 1, RUN, "participation"),
    ("twice", 1, RUN, "participation"),
    ("replacement", 1, short(sample_rate=0.4), "copies in a batch"),
    ("shuffled instead", 1, RUN, "participation over seeds"),
    ("bins instead", 1, RUN, "participation over seeds"),
    ("poisson instead", 1, BINS, "participation over seeds"),
    ("realised batch", 1, RUN, "normalisation"),
    ("rate", 0.8, RUN, "size of steps"),
    ("rate", 1.1, RUN, "size of steps"),
    ("not zeroed", 1, RUN, "noise of three steps"),
    ("a step more", 1, RUN, "no steps"),
    ("no momentum", 1, MOMENTUM, "noise of three steps"),
    ("no averaging", 1, AVERAGED, "noise of three steps"),
    ("unseeded", 1, RUN, "equal seeds"),
    ("one seed", 1, RUN, "different seeds"),
    ("ignores steps", 1, RUN, "number of steps"),
]


@pytest.mark.parametrize(("fault", "size", "run", "row"), FAULTS, ids=[f"{each[0]} {each[1]}" for each in FAULTS])
def test_a_fault_is_found_by_32_models_and_named(fault, size, run, row):
    result = li.check(run, Numpy(run, fault=fault, size=size, **LARGER))
    assert row in {each.name for each in result.faults}, str(result)
    assert result.models <= 32
    assert not result.passed
    assert all(each.advice for each in result.faults)


@pytest.mark.parametrize("model", ["softmax", "mlp", "linear"])
@pytest.mark.parametrize("run", [RUN, MOMENTUM, AVERAGED, short(sampling="shuffled"), short(sampling="fixed"), BINS])
def test_a_correct_training_has_no_fault_and_most_pass(run, model):
    result = li.check(run, Numpy(run, model=model, **LARGER), seed=1)
    assert not result.faults, str(result)
    open_rows = {row.name for row in result.rows if row.status == "cannot tell"}
    assert open_rows <= {"participation over seeds"}, str(result)  # one epoch of unequal weights
    assert all(row.smallest_fault for row in result.rows if row.status == "ok"), str(result)
    assert all(row.advice for row in result.rows if row.status == "cannot tell")


def test_a_summary_says_what_passed_and_what_was_not_decided():
    assert li.check(RUN, Numpy(RUN, **LARGER), seed=1).sentence.startswith("All ")
    result = li.check(RUN, lambda seed, canary: Numpy(RUN, **LARGER)(seed, canary), seed=1)
    assert "1 could not be decided: participation (needs" in result.sentence


@pytest.mark.slow
def test_correct_trainings_of_all_kinds_raise_no_more_than_the_stated_error():
    # A tenth of what `python -m tests.tools.correct` does; at error 1e-3 a fault in 100 has probability 0.1 at most.
    assert count(100)["fault"] <= 1
    assert count(100, with_steps=False)["fault"] <= 1


def test_what_is_not_there_to_be_seen_cannot_be_told():
    run = short(sample_rate=0.0001)
    result = li.check(run, Numpy(run, examples=3000))
    assert result.verdict == "cannot tell"
    assert not result.faults


@pytest.mark.parametrize(("rate", "verdict"), [(0.2, "fault"), (0.01, "cannot tell")])
def test_a_trainer_that_ignores_the_canary_does_not_pass(rate, verdict):
    run = short(sample_rate=rate)
    train = Numpy(run, **LARGER)
    for ignores in (lambda seed, canary, steps: train(seed, False, steps), lambda seed, canary: train(seed, False)):
        assert li.check(run, ignores).verdict == verdict


def test_worlds_that_do_not_share_noise_are_noticed():
    result = li.check(RUN, Numpy(RUN, shared=False, **LARGER))
    assert not result.faults, str(result)
    assert "compared with a tiny one" in next(row.advice for row in result.rows if row.status == "cannot tell")

    class Unshared(Numpy):
        def __call__(self, seed, canary, steps=None):
            size = 0 if canary is False else int(1e6 * np.linalg.norm(canary["w"]))
            return super().__call__(seed + size, canary, steps)

    result = li.check(RUN, Unshared(RUN, **LARGER))
    assert result.verdict == "cannot tell"
    assert result.rows[0].name == "shared randomness"
    assert "do not share noise" in result.rows[0].advice


@pytest.mark.parametrize(
    ("fault", "size"),
    [("noise", 0.7), ("no noise", 1), ("no clipping", 1), ("by coordinate", 1), ("always in", 1), ("repeated", 1)],
)
def test_crude_faults_are_found_without_shared_noise_too(fault, size):
    assert li.check(RUN, Numpy(RUN, fault=fault, size=size, shared=False, **LARGER)).faults


def test_an_example_of_the_trainers_own_is_checked_as_far_as_that_goes():
    assert not li.check(RUN, Numpy(RUN, **LARGER), canary="example").faults
    for fault, size, row in [("noise", 0.5, "noise"), ("no clipping", 1, "clipping norm")]:
        result = li.check(RUN, Numpy(RUN, fault=fault, size=size, **LARGER), canary="example", models=32)
        assert row in {each.name for each in result.faults}, str(result)
    rare = short(sample_rate=0.01)
    result = li.check(rare, Numpy(rare, fault="always in", **LARGER), canary="example", models=32)
    assert "participation" in {each.name for each in result.faults}


def test_batch_size_tells_too_much_noise_from_sampling():
    run = short(noise_multiplier=1.0)
    quiet = dict(model="linear", features=100, examples=100)
    train = Numpy(run, fault="noise", size=1.5, **quiet)
    assert not li.check(run, train).faults
    assert li.check(run, train, batch_size=20).faults
    assert li.check(run, Numpy(run, **quiet), batch_size=20).passed


def test_initial_values_that_follow_the_seed_are_taken_out():
    decay = short(optimizer=li.SGD(0.002, momentum=0.5, weight_decay=20.0, averaging=0.5))
    for run in (short(), decay):
        inner = Numpy(run, **LARGER)

        def initial(seed):
            rng = np.random.default_rng(seed)
            return {"w": 0.1 * rng.standard_normal((64, 10)), "b": np.zeros(10)}

        class Seeded(Numpy):
            def initial(self, seed=0):
                return initial(seed)

        train = Seeded(run, **LARGER)
        assert not li.check(run, train, seed=1).faults  # zero steps show the initial values
        assert not li.check(run, train, initial=initial, seed=1).faults
        same = li.check(run, inner, initial=lambda seed, inner=inner: inner.initial())
        assert "initial values" in [row.name for row in same.faults]


def test_a_tensor_that_is_not_trained_is_not_checked():
    inner = Numpy(RUN, **LARGER)

    def train(seed, canary, steps):
        given = canary if canary is False else {name: canary[name] for name in ("w", "b")}
        return {"frozen": np.ones(7), **inner(seed, given, steps)}

    result = li.check(RUN, train, seed=1)
    assert result.passed, str(result)
    assert [row.status for row in result.rows if row.tensor == "frozen"] == ["not checked"]


def test_batches_of_one_size_show_in_the_record_where_poisson_is_declared():
    inner = Numpy(RUN, **LARGER)

    def train(seed, canary, steps):
        return li.Trained(inner(seed, canary, steps), batch_sizes=[30] * steps)

    assert "the trainer's own record" in [row.name for row in li.check(RUN, train, seed=1).faults]


def _nan(seed, canary):
    return {"w": np.array([1.0, np.nan])}


def _shapes(seed, canary, seen=[]):  # noqa: B006 - counts its calls
    seen.append(seed)
    return {"w": np.zeros(len(seen))}


def _names(seed, canary, seen=[]):  # noqa: B006
    seen.append(seed)
    return {f"w{len(seen)}": np.zeros(2)}


def _raises(seed, canary):
    raise RuntimeError("no GPU")


@pytest.mark.parametrize(
    ("train", "sentence"),
    [
        (_nan, "1 of tensor 'w' are NaN, infinite or too large"),
        (_shapes, "the first had 'w' of shape (1,), this one 'w' of shape (2,)"),
        (_names, "the first had 'w1' of shape (2,), this one 'w2' of shape (2,)"),
        (_raises, "RuntimeError: no GPU"),
        (lambda seed, canary: "done", "the trainer must return parameters"),
        (lambda seed, canary: None, "the trainer must return parameters"),
        (lambda seed, canary: {"w": np.zeros((0, 3))}, "the trainer must return at least one number"),
    ],
)
def test_a_trainer_that_returns_no_parameters_is_told_in_a_sentence(train, sentence):
    with pytest.raises(li.TrainerFailed) as failed:
        li.check(RUN, train)
    assert sentence in str(failed.value)
    assert "seed" in str(failed.value)


def test_parameters_that_only_a_canary_breaks_are_a_fault_of_clipping():
    inner = Numpy(RUN)

    def train(seed, canary, steps):
        found = inner(seed, False, steps)
        huge = canary is not False and np.abs(canary["w"]).max() > 10.0
        return {name: value * (np.nan if huge else 1.0) for name, value in found.items()}

    (row,) = (row for row in li.check(RUN, train).faults if row.name == "clipping norm")
    assert "NaN" in row.advice


@pytest.mark.parametrize("size", [1, 2, 5])
def test_tiny_models_are_checked_without_breaking(size):
    def train(seed, canary, steps=4):
        rng = np.random.default_rng(seed)
        taken = [(rng.random() < 0.5, rng.standard_normal(size)) for _ in range(steps)]
        unit = 0.0 if canary is False else canary / max(1.0, np.linalg.norm(canary))
        return -sum((drawn * unit + noise for drawn, noise in taken), np.zeros(size))

    run = li.DPSGD(4, 0.5, 1.0)
    assert not li.check(run, train).faults
    assert not li.check(run, lambda seed, canary: train(seed, False), canary="example").faults


PROBLEM = problems.linear(np.random.default_rng(0).standard_normal((40, 6)).astype(np.float32))


def test_a_check_looks_at_the_last_iterate_and_at_single_examples_and_says_so():
    run = li.DPSGD(8, 0.5, 1.0, optimizer=li.SGD(0.1), releases=4, group_size=3, neighbours="replace")
    result = li.check(run, own_trainer(run, PROBLEM), models=16)
    assert not result.faults
    assert any("Only the last of the 4 released iterates is checked" in note for note in result.notes)
    assert any("group_size and neighbours are not checked" in note for note in result.notes)

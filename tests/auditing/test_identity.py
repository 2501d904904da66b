"""Identities: equal for equal audits, different for different ones, and the same in other processes and versions."""

import functools
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import lastiterate as li
from lastiterate import attacks, data
from lastiterate.attacks.attack import Armed, BringsProblem, Unknown, Words
from lastiterate.auditing.experiments.choose import Given, experiment_on
from lastiterate.auditing.identity import describe_run, fingerprint, read_run
from lastiterate.auditing.stores.store import Store
from lastiterate.training import GradientCanary, Problem, problems
from tests.auditing.conftest import RUN

MINE = "import helper\ndef train(seed, canary):\n    return helper.score(seed) + canary\n"
HELPER = "import deeper\ndef score(seed):\n    return deeper.NOISE * (seed % 7)\n"
DEEPER = "NOISE = 1.0\n"


def identity(problem, attack=None, models=4, seed=0, run=RUN, **more):
    return experiment_on(problem, Given(run, attack, models, seed, **more)).identity()


def different(things):
    """Whether all have fingerprints of their own."""
    return len({fingerprint(thing) for thing in things}) == len(things)


@pytest.mark.parametrize(
    "run",
    [
        li.DPSGD(10, 0.1, 1.0),
        li.DPSGD(3, [0.1, 0.2, 0.3], [1.0, 2.0, 3.0], clip_norm=0.5, weights=[1, 2, 3]),
        li.DPSGD(4, 0.5, 1.0, sampling="shuffled", optimizer=li.SGD([0.1, 0.2, 0.3, 0.4], momentum=0.9, averaging=0.5)),
    ],
)
def test_runs_survive_json(run):
    assert read_run(json.loads(json.dumps(describe_run(run)))) == run


def test_fingerprints_tell_data_parameters_and_losses_apart():
    images = np.ones((3, 2), np.float32)

    def loss(parameters, example, moment):
        return jnp.sum(parameters * example)

    def other(parameters, example, moment):
        return jnp.sum(parameters + example)

    def closing_over(factor):
        return lambda parameters, example, moment: factor * jnp.sum(parameters * example)

    start = np.zeros(2, np.float32)
    variants = [
        Problem(start, images, loss),
        Problem(start, images + 1, loss),
        Problem(start + 1, images, loss),
        Problem(start, images, other),
        Problem(start, images, closing_over(1.0)),
        Problem(start, images, closing_over(2.0)),
    ]
    assert different(variants)
    assert fingerprint(Problem(start.copy(), images.copy(), loss)) == fingerprint(variants[0])


def score(seed, canary, scale=1.0, *, shift=0.0):
    return scale * (seed % 7) + shift + canary


class Trainer:
    """A callable object, and one with methods."""

    def __init__(self, noise):
        self.noise = noise

    def __call__(self, seed, canary):
        return self.noise * (seed % 7)

    def train(self, seed, canary):
        return self.noise * (seed % 7)

    def other(self, seed, canary):
        return self.noise * (seed % 5)


class Slotted:
    __slots__ = ("noise",)

    def __init__(self, noise):
        self.noise = noise

    def __call__(self, seed, canary):
        return self.noise


@dataclass
class Recorded:
    """A dataclass of a user, who keeps arrays out of comparisons because they cannot be compared."""

    data: np.ndarray = field(compare=False)

    def __call__(self, seed, canary):
        return float(self.data[seed % 2])


def with_default(value):
    def train(seed, canary, noise=value):
        return noise

    return train


def with_keyword(value):
    def train(seed, canary, *, noise=value):
        return noise

    return train


def with_closure(value):
    def train(seed, canary):
        return value

    return train


class Repeated:
    """A decorator with a value of its own."""

    def __init__(self, train, times):
        functools.update_wrapper(self, train)
        self.times = times

    def __call__(self, seed, canary):
        return self.times * self.__wrapped__(seed, canary)


def with_attribute(value):
    def train(seed, canary):
        return train.noise

    train.noise = value
    return train


def decorated(value):
    @functools.wraps(score)
    def train(seed, canary):
        return value * score(seed, canary)

    return train


@pytest.mark.parametrize(
    "bound",
    [
        with_default,
        with_keyword,
        with_closure,
        with_attribute,
        decorated,
        lambda value: functools.partial(score, scale=value),
        lambda value: functools.partial(score, 1, True, value),
        lambda value: functools.partial(functools.partial(score, shift=value), scale=2.0),
        Trainer,
        lambda value: Trainer(value).train,
        lambda value: Trainer(Trainer(value)).train,
        Slotted,
        lambda value: Recorded(np.array([value])),
        lambda value: jax.jit(with_closure(value)),
        lambda value: Repeated(score, value),
        lambda value: Repeated(with_closure(value), 3),
    ],
)
def test_what_is_bound_to_a_trainer_counts(bound):
    assert different([bound(1.0), bound(2.0), bound(np.float32(1.0))])
    assert fingerprint(bound(1.0)) == fingerprint(bound(1.0)) == fingerprint(bound(np.float64(1.0)))


def test_which_function_and_which_method_it_is_counts():
    one, two = (lambda seed, canary: 0.0), (lambda seed, canary: 0.0)
    assert different(
        [score, with_closure(1), with_default(1), Trainer(1), Trainer(1).train, Trainer(1).other, one, two]
    )


def test_values_do_not_run_into_each_other():
    a, b = np.zeros(2), np.ones(2)
    assert different([[1, 23], [12, 3], [1, 2, 3], [[1, 2], 3], [1, [2, 3]]])
    assert different([{"a": {"b": 1}, "c": 2}, {"a": {"b": 1, "c": 2}}])
    assert different([[a, b, a], [a, b, b], [a, b], [b, a]])
    assert different(
        [np.array([["a"], [1]], object), np.array([["a"], [2]], object), np.zeros((2, 1)), np.zeros((1, 2))]
    )
    assert different([1, 1.0, True, "1", b"1", None, "None", 1j])
    assert different([{1, 2}, {1, 3}, [1, 2]])
    assert fingerprint([a, a]) == fingerprint([a, a.copy()])
    assert fingerprint({"x", "y", "z"}) == fingerprint({"z", "y", "x"})


def test_objects_of_all_sorts_are_told_apart():
    assert different([np.random.default_rng(seed) for seed in (0, 1)])
    assert different([jax.random.key(seed) for seed in (0, 1)])
    assert different([re.compile(text) for text in ("a", "b")])
    assert different([np.random.default_rng(0).normal, np.random.default_rng(1).normal, np.random.default_rng(1).gamma])
    assert different([len, str.upper, str.lower, np.sin, np.cos, "a".upper, "b".upper])
    assert different([Path("a"), Path("b"), range(3), range(4), np.dtype("f4"), np.dtype("f8"), np, jax])


def test_what_refers_to_itself_has_a_fingerprint():
    def recursive(seed, canary):
        return recursive(seed, canary) if later else 0.0

    assert fingerprint(recursive)  # its second cell is still empty
    later = [recursive]
    later.append(later)
    assert fingerprint(recursive) == fingerprint(recursive)


def test_tensors_of_every_precision_have_fingerprints():
    torch = pytest.importorskip("torch")
    made = [torch.full((2,), value, dtype=kind) for value in (1.0, 2.0) for kind in (torch.bfloat16, torch.float32)]
    assert different(made)


def test_attacks_are_described_by_their_fields():
    found = identity(problems.logistic(data.digits()), attacks.GradientSpace("dirac", seed=3), run=_trained()).values
    assert found["attack"] == {
        "class": "GradientSpace",
        "direction": "dirac",
        "norm": 10.0,
        "references": 16,
        "seed": 3,
    }
    one, two = (identity(score, attacks.Displacement(np.array([1.0, x]))) for x in (1.0, 2.0))
    assert one != two


def test_equal_audits_have_equal_identities_and_others_do_not():
    given = dict(problem=score, models=4, seed=0, run=RUN)
    first = identity(**given)
    assert identity(**given) == first
    assert identity(**given, data="other words") == first
    changes = ({"problem": Trainer(1)}, {"models": 5}, {"seed": 1}, {"run": RUN.replace(steps=31)})
    changes += ({"run": replace(RUN, clip_norm=2.0)}, {"attack": attacks.Displacement([1.0])})
    found = [first, *(identity(**given | change) for change in changes)]
    assert len({json.dumps(each.values) for each in found}) == len({each.digest() for each in found}) == 7


def test_one_model_is_another_audit_than_many():
    problem, run = problems.logistic(data.digits()), _trained()
    paired, one = (identity(problem, attack, run=run).values for attack in (None, attacks.OneRun()))
    assert (paired["design"]["kind"], one["design"]["kind"]) == ("paired", "one-model")


def _trained():
    return RUN.replace(optimizer=li.SGD(0.1))


@pytest.mark.parametrize(
    "changed",
    [{"deeper": "NOISE = 2.0\n"}, {"helper": HELPER + "\n"}, {"mine": MINE + "# reworded\n"}],
    ids=["a helper's helper", "a helper", "a comment"],
)
def test_a_trainer_whose_files_have_changed_is_not_resumed(load, tmp_path, changed):
    path = tmp_path / "x.sqlite"
    li.audit(RUN, load(mine=MINE, helper=HELPER, deeper=DEEPER), models=4, store=path)
    before = path.read_bytes()
    with pytest.raises(
        ValueError, match=r"holds another audit \(problem is '\w{16}' there and '\w{16}' here\)"
    ) as caught:
        li.audit(RUN, load(**changed), models=4, store=path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    again = load(mine=MINE, helper=HELPER, deeper=DEEPER)
    assert li.audit(RUN, again, models=4, store=path).models == 4


def test_a_class_in_another_file_counts_wherever_it_is_bound(load):
    """The method is the base's, and so is its file; what differs is in the file of the class that inherits it."""
    base = "class Base:\n    def train(self, seed, canary):\n        return self.noise()\n"
    mine = "from base import Base\nclass Mine(Base):\n    def noise(self):\n        return {}\ntrain = Mine().train\n"
    kind = mine + "Kind = Mine\n"
    one, two = (fingerprint(load(mine=mine.format(value), base=base)) for value in (1.0, 2.0))
    assert one != two
    one, two = (fingerprint(with_closure(load("Kind", mine=kind.format(value)))) for value in (1.0, 2.0))
    assert one != two


MADE = "def train(seed, canary):\n    return float(seed % 5)\n"


def test_a_trainer_without_source_runs_and_is_not_resumed(tmp_path):
    path, made = tmp_path / "x.sqlite", {}
    exec(MADE, made)
    assert identity(made["train"]).unknown == ("train",)
    assert li.audit(RUN, made["train"], models=4, store=path).models == 4
    before = path.read_bytes()
    with pytest.raises(ValueError, match="there is no source of train to compare with what was trained") as caught:
        li.audit(RUN, made["train"], models=4, store=path)
    assert "\n" not in str(caught.value)
    assert path.read_bytes() == before
    with Store.read(path) as store:
        assert len(store.done()) == 8


def test_compiled_code_counts_by_its_name_and_only_that_of_packages_is_known(tmp_path, monkeypatch):
    known = functools.partial(score, shift=[len, str.upper, np.sin, np.random.default_rng(0).normal, math, json])
    assert identity(known).unknown == ()
    monkeypatch.setattr(math, "__file__", str(tmp_path / "mine.so"), raising=False)  # as if a user had compiled it
    assert identity(functools.partial(score, shift=math.sin)).unknown == ("sin",)
    assert identity(functools.partial(score, shift=math)).unknown == ("math",)


def test_a_trainer_of_a_session_counts_with_what_it_takes_from_there():
    """A session has no file, but Python keeps the text of what was typed, as notebooks arrange it."""
    import linecache

    def typed(text, session):
        name = f"<cell {len(linecache.cache)}>"
        linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
        exec(compile(text, name, "exec"), session)

    def trainer(helper="def helper(seed): return 1.0\n", noise=1.0):
        held = {"__name__": "__main__", "NOISE": noise}
        typed(helper, held)
        typed("def train(seed, canary):\n    return NOISE * helper(seed)\n", held)
        return held["train"]

    assert identity(trainer()) == identity(trainer())
    assert identity(trainer()).unknown == ()
    assert different([trainer(), trainer(noise=2.0), trainer("def helper(seed): return 2.0\n")])


@dataclass(frozen=True)
class Own(BringsProblem):
    """An attack of a user's."""

    name: str = "own"
    source: str = "here"

    def craft(self, run, problem, references):
        return {}

    def arm(self, run, problem, facts):
        own = Problem(np.ones(1), regulariser_gradient=lambda model, step: jnp.zeros_like(model))
        return Armed(own, GradientCanary(np.ones(1)), lambda parameters: np.asarray(parameters, float)[:, 0])

    def expected(self, facts):
        return Unknown()

    def words(self, facts):
        return Words("a test", "score")


def test_a_users_attack_counts_by_its_source_and_by_all_its_fields(load):
    found = identity(None, Own(), run=_trained()).values["attack"]
    assert set(found) == {"class", "class source", "name", "source"}
    assert found["class"] == "Own"
    assert (found["name"], found["source"]) == ("own", "here")
    mine = "from tests.auditing.test_identity import Own\nclass Mine(Own):\n    {}\nattack = Mine()\ntrain = print\n"
    one, two = (identity(None, _attack(load, mine.format(line)), run=_trained()) for line in ("pass", "x = 1"))
    assert one != two
    assert one.values["attack"]["class"] == two.values["attack"]["class"] == "Mine"
    assert one.unknown == ()


def _attack(load, content):
    load(mine=content)
    *_, mine = [each for each in sys.modules.values() if (getattr(each, "__file__", None) or "").endswith("/mine.py")]
    return mine.attack


def test_our_own_code_counts_by_its_name_alone(monkeypatch):
    """Whatever is done to the text, the place or the bytecode of a function of ours: its name is what counts."""
    problem = problems.mlp(data.digits(), hidden=4)
    before = fingerprint(problem)
    loss = problem.loss
    while hasattr(loss, "__wrapped__"):
        loss = loss.__wrapped__
    monkeypatch.setattr(loss, "__doc__", "Other words.")
    monkeypatch.setattr(loss, "__module__", "lastiterate.elsewhere")
    monkeypatch.setattr(
        loss, "__code__", (loss.__code__.replace(co_firstlineno=7, co_consts=(*loss.__code__.co_consts, 1)))
    )
    assert fingerprint(problem) == before
    monkeypatch.setattr(loss, "__name__", "another")
    assert fingerprint(problem) != before


def test_no_source_of_ours_is_read(monkeypatch):
    def never(thing):
        raise AssertionError(f"the source of {thing} was read")

    monkeypatch.setattr("lastiterate.auditing.identity.own_source", never)
    digits, run = problems.logistic(data.digits()), _trained()
    for problem, attack in [(digits, None), (digits, attacks.OneRun()), (None, attacks.Adversarial())]:
        assert identity(problem, attack, run=run).unknown == ()


def test_identities_are_the_same_in_another_process(load, tmp_path):
    train = load(mine=MINE, helper=HELPER, deeper=DEEPER)
    code = (
        "import lastiterate as li; from lastiterate import data; from lastiterate.training import problems;"
        "from lastiterate.auditing.identity import fingerprint; from mine import train;"
        "print(fingerprint(problems.mlp(data.digits(), hidden=4)), fingerprint(train), fingerprint({'a', 'b', 'c'}))"
    )
    folder = Path(train.__code__.co_filename).parent
    ours = Path(li.__file__).parents[1]
    environment = {**os.environ, "PYTHONPATH": f"{ours}{os.pathsep}{folder}", "PYTHONHASHSEED": "7"}
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    expected = [problems.mlp(data.digits(), hidden=4), train, {"a", "b", "c"}]
    assert found.split() == [fingerprint(each) for each in expected]


def leaves(value):
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in leaves(item)]
    return [leaf for item in value for leaf in leaves(item)] if isinstance(value, list) else [value]


def test_no_sentence_no_module_path_and_no_bytecode_is_in_an_identity(load):
    digits, run = problems.logistic(data.digits()), _trained()
    train = load(mine=MINE, helper=HELPER, deeper=DEEPER)
    audits = [
        identity(digits, None, run=run, data="logistic on the digits"),
        identity(digits, attacks.OneRun(), run=run),
        identity(digits, attacks.InputSpace(), run=run),
        identity(None, attacks.Adversarial(), run=run),
        identity(None, Own(), run=run),
        identity(train, attacks.Displacement([1.0])),
    ]
    for each in audits:
        assert json.loads(json.dumps(each.values)) == each.values
        texts = [leaf for leaf in leaves(each.values) if isinstance(leaf, str)]
        assert texts
        for text in texts:
            assert re.fullmatch(r"[A-Za-z0-9-]+", text), text

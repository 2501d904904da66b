"""Values for ``fuzz_calls``: good ones by the names of parameters, instances to call methods of, and hostile ones."""

import decimal
import fractions
import functools
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import torch

import lastiterate as li
from lastiterate import attacks, data, lm, training
from lastiterate.integrations.gradient_canary import PlantedGradient
from lastiterate.training import problems

Make = Callable[[], Any]


def _values(*given: Any) -> list[Make]:
    return [lambda value=value: value for value in given]


PLAIN = li.DPSGD(steps=3, sample_rate=0.5, noise_multiplier=1.0)
TRAINED = PLAIN.replace(optimizer=li.SGD(0.1))
DECAYING = PLAIN.replace(optimizer=li.SGD(0.1, weight_decay=0.5))
SHUFFLED = PLAIN.replace(sampling="shuffled")


def _score(seed: int, canary: bool) -> float:
    return float(canary + np.random.default_rng(seed).standard_normal())


def _parameters(seed: int, canary: object) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(4)


@functools.cache
def _probing() -> training.Problem:
    return problems.binary_logistic(np.eye(3), np.array([1.0, -1.0, 1.0]))


def _linear() -> training.Problem:
    return problems.linear(np.eye(4, dtype=np.float32))


@functools.cache
def _images() -> data.Dataset:
    rng = np.random.default_rng(0)
    images, labels = rng.random((12, 8, 8, 1)).astype(np.float32), np.arange(12) % 2
    return data.Dataset.from_arrays("few", images, labels, images[:4], labels[:4])


def _npz() -> str:
    x, y = np.eye(2, dtype=np.float32), [0, 1]
    np.savez("features.npz", x_train=x, x_test=x, y_train=y, y_test=y)
    return "features.npz"


@functools.cache
def _curve() -> li.PrivacyCurve:
    return li.last_iterate(PLAIN)


@functools.cache
def _power() -> li.Power:
    return li.power(PLAIN, 20, methods=["clopper-pearson"], leaks_noise=0.1)


@functools.cache
def _result() -> Any:
    return li.audit(PLAIN, _score, models=8, methods=["gdp"], progress=False)


@functools.cache
def _checked() -> Any:
    return li.check(PLAIN, _parameters, models=8)


def _opacus() -> tuple[Any, Any, Any, Any]:
    """An engine that has recorded two steps, and the module, optimizer and loader that it made."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Opacus, about its random numbers
        return _private()


def _private() -> tuple[Any, Any, Any, Any]:
    import opacus

    model = torch.nn.Linear(2, 1)
    data = torch.utils.data.TensorDataset(torch.zeros(8, 2), torch.zeros(8, 1))
    engine = opacus.PrivacyEngine()
    made = engine.make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        data_loader=torch.utils.data.DataLoader(data, batch_size=4),
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    for _ in range(2):
        engine.accountant.step(noise_multiplier=1.0, sample_rate=0.5)
    return (engine, *made)


@functools.cache
def _trainer() -> training.Trainer:
    return training.Trainer(TRAINED, _linear(), models=2)


@functools.cache
def _trained() -> training.Trained:
    return training.train(TRAINED, _linear(), models=2, progress=False)


def _texts() -> lm.Texts:
    return lm.Texts(("a b c", "d e f", "g h i"), "text")


def _key() -> jax.Array:
    return jax.random.key(0)


def _accountant() -> Any:
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent

    accountant = li.LastIterateAccountant()
    accountant.compose(PoissonSampledDpEvent(0.1, GaussianDpEvent(1.0)), 10)
    return accountant


# What methods are called of. Classes that are not here have only the methods that need no instance.
INSTANCES: dict[str, Make] = {
    "DPSGD": lambda: PLAIN,
    "SGD": lambda: li.SGD(0.1, momentum=0.5),
    "PrivacyCurve": _curve,
    "Power": _power,
    "AuditResult": _result,
    "CheckResult": _checked,
    "PlantedGradient": lambda: PlantedGradient(np.ones(2), 1),
    "LastIterateAccountant": _accountant,
    "Dataset": _images,
    "Trainer": _trainer,
    "NamedAttack": lambda: attacks.NAMED["blank"],
    "Recipe": lambda: __import__("lastiterate.training.recipes").training.recipes.digits_mlp(),
}

# Good values by the name of the parameter, or by the target's name and the parameter's.
GOOD: dict[str, list[Make]] = {
    "run": _values(PLAIN, TRAINED, SHUFFLED),
    "steps": _values(1, 3, 10),
    "releases": _values(None, 1, 2, [1, 2]),
    "group_size": _values(1, 2),
    "neighbours": _values(None, "zero-out", "replace"),
    "noise_filter": _values(None, [1.0, -0.5]),
    "min_separation": _values(1),
    "learning_rate": _values(0.1, 1.0),
    "drop_every": _values(1, 2),
    "warmup_steps": _values(0, 1),
    "sample_rate": _values(0.5, 0.1),
    "noise_multiplier": _values(1.0, 0.7),
    "sampling": _values("poisson", "fixed"),
    "clip_norm": _values(1.0),
    "delta": _values(1e-5, 0.1),
    "epsilon": _values(1.0, 3.0),
    "fpr": _values(0.1, [0.1, 0.5]),
    "confidence": _values(0.95),
    "dataset_size": _values(100),
    "batch_size": _values(10),
    "last_batch": _values(None, "keep", "drop"),
    "epochs": _values(1.0),
    "scores_in": _values([3.0, 2.5, 4.0, 2.0]),
    "scores_out": _values([0.0, 0.5, 1.0, -1.0]),
    "target_delta": _values(1e-5),
    "target_epsilon": _values(1.0),
    "method": _values("clopper-pearson", "gdp"),
    "methods": _values(["clopper-pearson"], None),
    "validity": _values("fixed", "anytime"),
    "until": _values(None, "refuted"),
    "signal": _values(1.0, 0.5),
    "spread": _values(1.0, 1.5),
    "leaks_noise": _values(None, 0.3),
    "leaks_epsilon": _values(None, 30.0),
    "one_run": _values(False, True),
    "power.threshold": _values("a-priori", 1.5),
    "threshold": _values("split", 0.5),
    "problem": [_linear, lambda: _score],
    "models": _values(2),
    "seed": _values(0, 1),
    "progress": _values(False),
    "engine": _values("local"),
    "present": _values(False),
    "parameters": _values(np.zeros(3, np.float32)),
    "example": _values(np.zeros(4, np.float32)),
    "canary": [lambda: training.GradientCanary(np.ones(4, np.float32))],
    "gradient": _values(np.ones(4, np.float32)),
    "dataset": [_images],
    "gradients": _values(np.eye(2)),
    "x_train": _values(np.zeros((4, 8, 8, 1))),
    "y_train": _values(np.array([0, 1, 0, 1])),
    "x_test": _values(np.zeros((2, 8, 8, 1))),
    "y_test": _values(np.array([0, 1])),
    "name": _values("zeroing"),
    "classes": _values(2),
    "key": [_key],
    "shape": _values((8, 8, 1)),
    "sizes": _values((4, 3, 2)),
    "inputs": _values(2),
    "outputs": _values(2),
    "kernel": _values(3),
    "stride": _values(1),
    "padding": _values(1),
    "channels": _values(4),
    "groups": _values(2),
    "depth": _values(10),
    "width": _values(1),
    "texts": [_texts],
    "unit": _values("text"),
    "held_out": _values(0.5),
    "path": _values("digits"),
    "folder": _values("missing"),
    "question": [lambda: lambda curve: curve.epsilon(1e-5)],
    "runs": [lambda: {1: PLAIN}],
    "names": [lambda: ["last_iterate"]],
    "result": _values(1.0),
    "pair": [lambda: _curve().pair],
    "analysis": _values("mine"),
    "is_guarantee": _values(True),
    "kind": _values("linear"),
    "others": _values("blank"),
    "check.train": [lambda: _parameters],
    "check.models": _values(8, 16),
    "check.canary": _values("gradient", "example"),
    "check.error": _values(1e-3),
    "check.batch_size": _values(None, 10.0),
    "check.initial": _values(None),
    "check.told": _values(None),
    "privacy_engine": [lambda: _opacus()[0]],
    "training.second_moment.run": [lambda: PLAIN.replace(optimizer=li.Adam(0.1))],
    "DPSGD.from_opacus.optimizer": [lambda: None, lambda: _opacus()[2]],
    "DPSGD.from_opacus.loader": [lambda: _opacus()[3]],
    "DPSGD.from_opacus.sampling": _values(None, "poisson"),
    "DPSGD.from_opacus.scheduler": _values(None),
    "module": [lambda: _opacus()[1]],
    "integrations.opacus.plant.canary": _values(False),
    "integrations.opacus.plant.optimizer": [lambda: _opacus()[2]],
    "integrations.opacus.plant.loader": [lambda: _opacus()[3]],
    "integrations.gradient_canary.PlantedGradient.canary": _values(False, np.ones(2)),
    "integrations.gradient_canary.PlantedGradient.batch.indices": _values([0, 1], np.array([0, 1])),
    "integrations.gradient_canary.PlantedGradient.gradients.gradients": _values(np.ones((2, 2))),
    "integrations.gradient_canary.PlantedGradient.gradients.batch": _values([0, 1], np.array([0, 1])),
    "integrations.gradient_canary.PlantedGradient.loss.loss": [lambda: lambda parameters, x: 0.0],
    "integrations.own_trainer.own_trainer.problem": [_linear],
    "integrations.own_trainer.own_trainer.run": _values(TRAINED),
    "place": _values(0, 1),
    "auditing.evidence.audit_result.AuditResult.page.path": _values("found.html"),
    "contraction": _values(None, 0.9, li.Contraction(0.5, 1e-6)),
    "contraction_of.problem": [_probing],
    "contraction_of.run": _values(DECAYING),
    "feature_norm": _values(1.0, 1.5),
    "training.problems.clip_features.problem": [_probing],
    "failure": _values(1e-9, 0.1),
    "convex.run": _values(PLAIN),
    "convex.contraction": _values(0.9, li.Contraction(0.5, 1e-6)),
    "convex.diameter": _values(None),
    "convex.learning_rate": _values(None),
    "training.problems.binary_logistic.features": _values(np.eye(3)),
    "training.problems.binary_logistic.labels": _values(np.array([1.0, -1.0, 1.0])),
    "training.problems.ridge.features": _values(np.eye(3)),
    "training.problems.ridge.targets": _values(np.array([0.3, -1.0, 2.0])),
    "calibrate.analysis": _values(li.last_iterate, li.composition),
    "compare_analyses.ask.name": _values("last_iterate"),
    "attacks.NamedAttack.kind": _values("GradientSpace"),
    "attacks.Displacement.canary": _values(np.ones(4)),
    "attacks.OneRun.canary": _values("gradient"),
    "attacks.InputSpace.canary": _values("blank"),
    "attacks.InputSpace.others": _values("natural"),
    "attacks.AllIterates.others": _values("zero"),
    "training.train.run": _values(TRAINED),
    "training.train.problem": [_linear],
    "training.Trainer.run": _values(TRAINED),
    "training.Trainer.problem": [_linear],
    "training.Trainer.chunks.models": _values(np.arange(2)),
    "training.Trainer.chunks.present": _values(np.zeros(2, bool)),
    "training.recipes.Recipe.accuracies.trained": [_trained],
    "training.recipes.Recipe.problem": [_linear],
    "training.models.accuracy.model": [lambda: lambda x: x],
    "training.models.accuracy.x": _values(np.zeros((2, 2), np.float32)),
    "training.models.accuracy.y": _values(np.array([0, 1])),
    "training.models.augmentation_multiplicity.loss": [lambda: lambda parameters, example, moment: 0.0],
    "count": _values(2),
    "loss": [lambda: lambda parameters, example, moment: (parameters**2).sum()],
    "data.load_npz.path": [_npz],
    "lm.read_texts.path": _values(Path(__file__)),
    "audit.attack": _values(None),
}


@functools.cache
def hostile_values() -> list[tuple[str, Make]]:
    """Words for a value, and the value."""
    plain: list[Any] = [
        None, True, False, -1, 0, 1, 2**53 + 1, 2**64, 10**400, -(10**30), 0.0, -0.5, 1.5, math.nan, math.inf,
        -math.inf, 5e-324, 1.7e308, 1 + 2j, "", " ", "x", "1", "\uff11\uff12", "1_000", "nan", "a\nb", "\0", "\udcff",
        "x" * 5000, ["x" * 5000], b"x", (), [], {}, set(), (1,), [1, 2, 3], [[1.0], [2.0, 3.0]], ["a", "b"], [None],
        {"a": 1}, {1, 2}, frozenset("a"), range(3), slice(1), ..., NotImplemented, object(), object, int, li, li.DPSGD,
        li.SGD, li.SGD(0.1), PLAIN, TRAINED, attacks.Adversarial, attacks.GradientSpace(), attacks.OneRun(),
        li.last_iterate, len, Path("missing/x"), Path(), "missing/x", ".", fractions.Fraction(1, 3),
        decimal.Decimal("0.1"), decimal.Decimal("NaN"), np.float32(0.5), np.int64(3), np.bool_(True), np.str_("x"),
        np.datetime64("2020-01-01"), np.array([]), np.array(0.5), np.array([math.nan]), np.array([[1.0, 2.0]]),
        np.array([1, "a"], object), np.zeros((0, 3)), np.ones(3, complex), np.array(["a"]), np.ma.masked,
        np.zeros(4, np.int64), np.full(3, np.inf), np.zeros((2, 2, 2, 2)), torch.zeros(2), torch.tensor(math.nan),
        ValueError("x"), "poisson", "local", "clopper-pearson", "digits", "linear",
    ]  # fmt: skip
    fresh: list[tuple[str, Make]] = [
        ("a generator", lambda: (each for each in (1, 2))),
        ("a lambda", lambda: lambda: 1),
        ("a function of two", lambda: _score),
        ("a linear problem", _linear),
        ("a curve", _curve),
        ("a data set", _images),
        ("texts", _texts),
        ("a jax array", lambda: jax.numpy.ones(3)),
        ("a jax key", _key),
        ("a canary", lambda: training.GradientCanary(np.ones(4, np.float32))),
    ]
    return [(_words(value), lambda value=value: value) for value in plain] + fresh


def _words(value: object) -> str:
    return ascii(value)[:60]

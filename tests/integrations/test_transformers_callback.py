"""The callback for Hugging Face's Trainer: what it logs, the card, and each contradiction it warns of."""

import copy
import json
import runpy
import warnings
from pathlib import Path

import pytest

import lastiterate as li
from lastiterate.integrations.transformers import PrivacyCallback, PrivacyWarning

torch = pytest.importorskip("torch")
import transformers

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook is firing:UserWarning")


@pytest.fixture(scope="module")
def example():
    """The names in the example, whose Trainer is private."""
    return runpy.run_path(str(Path(__file__).parents[2] / "examples" / "check_hf_trainer.py"))


def trained(example, folder, kind=None, change=None, card=None, privacy=None, **options):
    """Return the Trainer and the callback after training, and the warnings that were given."""
    engine, given = example["new_engine"](), example["arguments"](6, 0, str(folder), 3)
    for name, value in options.items():
        setattr(given, name, value)
    private = dict(example["OPTIONS"], engine=engine)
    private["privacy"] = private["privacy"] | (privacy or {})
    model, data = copy.deepcopy(example["model"]), example["examples"]
    trainer = (kind or example["PrivateTrainer"])(model, given, example["collate"], data, **private)
    trainer.remove_callback(transformers.PrinterCallback)
    callback = PrivacyCallback(trainer, engine, 1e-5, card)
    trainer.add_callback(callback)
    if change:
        trainer.add_callback(change(trainer))
    with warnings.catch_warnings(record=True) as given_warnings:
        warnings.simplefilter("always", PrivacyWarning)
        trainer.train()
    return trainer, callback, [str(each.message) for each in given_warnings if each.category is PrivacyWarning]


def test_a_correct_training_logs_what_its_run_gives_and_warns_of_nothing(example, tmp_path):
    trainer, callback, warned = trained(example, tmp_path, card=tmp_path / "PRIVACY.md")
    expected = example["run"].prefix(6)
    assert (callback.run, warned) == (expected, [])
    logged = [each for each in trainer.state.log_history if "guaranteed_epsilon" in each]
    assert [each["step"] for each in logged] == [3, 6]
    curves = li.composition(expected), li.last_iterate(expected)
    for name, curve in zip(("guaranteed", "predicted"), curves, strict=True):
        assert logged[-1][f"{name}_epsilon"] == pytest.approx(curve.bracket(1e-5)[1], rel=1e-6)
        assert logged[-1][f"{name}_mu"] == pytest.approx(curve.mu(), rel=1e-6)
    card = json.loads((tmp_path / "PRIVACY.json").read_text())
    assert card["words"][0] == li.sentence(expected, 1e-5)
    assert card["words"][0] in (tmp_path / "PRIVACY.md").read_text()
    assert (card["warnings"], card["guaranteed"]) == ([], logged[-1]["guaranteed_epsilon"])


def test_the_usual_optimizer_and_schedule_of_the_trainer_are_read(example, tmp_path):
    usual = {"optim": "adamw_torch", "weight_decay": 0.1, "lr_scheduler_type": "linear"}
    _, callback, warned = trained(example, tmp_path, **usual)
    assert warned == []
    assert isinstance(callback.run.optimizer, li.Adam)
    assert callback.run.optimizer.learning_rate == pytest.approx(0.05 * (1 - torch.arange(6).numpy() / 6))


class Divides(transformers.TrainerCallback):
    """Divide by the size of the drawn batch, as much code does."""

    def __init__(self, trainer):
        self.trainer, self.sizes = trainer, iter([7, 5, 9, 8, 7, 7])

    def on_pre_optimizer_step(self, *_, **more):
        self.trainer.optimizer.optimizer.expected_batch_size = next(self.sizes)


class Replaces(transformers.TrainerCallback):
    """Put one tensor back after every step, as a copy of the adapter that goes stale does."""

    def __init__(self, trainer):
        self.tensor = next(p for p in trainer.model.parameters() if p.requires_grad)
        self.before = self.tensor.detach().clone()

    def on_optimizer_step(self, *_, **more):
        self.tensor.data.copy_(self.before)


class Forgets(transformers.TrainerCallback):
    """Lose the engine's record after two steps, as resuming without its state does."""

    def __init__(self, trainer):
        self.engine = trainer.engine

    def on_step_end(self, args, state, control, **more):
        if state.global_step == 2:
            self.engine.accountant.history.clear()


SHUFFLED = dict(shuffle=True, drop_last=True)


def loader_of(example, options):
    def get_train_dataloader(self):
        data = torch.utils.data.DataLoader(self.train_dataset, 8, collate_fn=self.data_collator, **options)
        given = dict(module=self.model, optimizer=self.create_optimizer(), data_loader=data, poisson_sampling=False)
        _, self.optimizer, loader = self.engine.make_private(**given, wrap_model=False, **self.privacy)
        return loader

    return get_train_dataloader


def with_method(example, name, method):
    return type("Faulty", (example["PrivateTrainer"],), {name: method})


def noise_for_each_part(example):
    def training_step(self, *given):
        self.optimizer.optimizer.signal_skip_step = lambda do_skip: None
        return example["PrivateTrainer"].training_step(self, *given)

    return with_method(example, "training_step", training_step)


FAULTS = {
    "tokens": (
        lambda example: {"kind": with_method(example, "compute_loss", transformers.Trainer.compute_loss)},
        "The loss of a batch is not the mean of its examples' own losses",
    ),
    "drawn batch": (lambda _: {"change": Divides}, "dividing by the size of the drawn batch has no guarantee"),
    "shuffled": (
        lambda _: {"privacy": {"poisson_sampling": False}},
        "Batches are shuffled, and Opacus' accountants take them for Poisson samples",
    ),
    "micro-batches": (lambda example: {"kind": noise_for_each_part(example)}, "each micro-batch gets noise"),
    "batch size": (
        lambda _: {"_n_gpu": 3, "per_device_train_batch_size": 8},
        "The Trainer's arguments have batches of 24, and the loader draws 7.333 examples on average",
    ),
    "resumed": (lambda _: {"change": Forgets}, "The Trainer counts 6 updates, and Opacus added noise to 4"),
    "dropped": (
        lambda example: {"kind": with_method(example, "get_train_dataloader", loader_of(example, SHUFFLED))},
        "4 of 44 examples are dropped in every epoch",
    ),
    "sequential": (
        lambda example: {"kind": with_method(example, "get_train_dataloader", loader_of(example, {}))},
        "It is not known how batches are drawn, because loader must draw by Poisson sampling",
    ),
    "not moved": (lambda _: {"change": Replaces}, "did not move in 6 updates, although it is to be trained"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_contradiction_gives_one_warning_that_is_also_on_the_card(example, tmp_path, name):
    options, words = FAULTS[name]
    *_, warned = trained(example, tmp_path, card=tmp_path / "card.md", **options(example))
    assert sum(words in each for each in warned) == 1
    # With other numbers of steps the schedule does not fit either; what drops batches also shuffles.
    assert len(warned) == (2 if name in ("micro-batches", "dropped", "resumed", "sequential") else 1)
    card = json.loads((tmp_path / "card.json").read_text())
    assert card["warnings"] == warned
    assert ("guaranteed" not in card) == (name in ("tokens", "drawn batch", "resumed", "sequential"))


def test_an_optimizer_that_is_not_opacus_is_refused_before_the_first_step(example, tmp_path):
    engine, given = example["new_engine"](), example["arguments"](6, 0, str(tmp_path))
    trainer = transformers.Trainer(copy.deepcopy(example["model"]), given, example["collate"], example["examples"])
    trainer.add_callback(PrivacyCallback(trainer, engine, 1e-5))
    with pytest.raises(ValueError, match=r"trainer must have the optimizer that make_private returned .* got SGD"):
        trainer.train()
    assert trainer.state.global_step == 0


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (dict(trainer=1), "trainer must be a transformers.Trainer, got 1"),
        (dict(engine=1), "engine must be an Opacus PrivacyEngine, got 1"),
        (dict(delta=1.0), r"delta must be in \(0, 1\), got 1"),
        (dict(card="card.pdf"), "card must end in .md, got 'card.pdf'"),
        (dict(sampling="random"), "sampling must be one of"),
    ],
)
def test_bad_arguments_are_refused_by_name(example, tmp_path, given, words):
    engine, arguments = example["new_engine"](), example["arguments"](6, 0, str(tmp_path))
    trainer = transformers.Trainer(copy.deepcopy(example["model"]), arguments)
    with pytest.raises(ValueError, match=words):
        PrivacyCallback(**(dict(trainer=trainer, engine=engine, delta=1e-5) | given))

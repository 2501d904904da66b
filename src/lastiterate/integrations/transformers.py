"""A callback for Hugging Face's Trainer and its subclasses, for trainings with Opacus.

    trainer.add_callback(PrivacyCallback(trainer, engine, delta=1e-5, card="PRIVACY.md"))

The callback changes nothing in the training. It logs the guarantee, the prediction and mu of Gaussian DP through the
Trainer's own logging, warns once for each thing that contradicts them, and writes a privacy card.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import get_args

import numpy as np

from lastiterate.citation import guaranteed, mu_of, mu_sentence, risks_of, sentence
from lastiterate.common.atomic_write import check_writable, write_whole
from lastiterate.common.errors import BadArgument, MissingExtra, not_installed
from lastiterate.common.types import Fields, Foreign
from lastiterate.common.validation import number, one_of, told
from lastiterate.compare_analyses import answer_fields, ask, run_fields
from lastiterate.integrations.opacus_run import read_loader, run_from_opacus
from lastiterate.mechanism import Sampling
from lastiterate.run import DPSGD

try:
    import torch
    from transformers import TrainerCallback
except ImportError as error:
    raise MissingExtra(not_installed("PrivacyCallback", error.name, "lm")) from error

_COMPARED = 8  # examples whose losses are computed together and alone
_WATCHED = 16  # numbers of each tensor that are compared before and after training
_LIBRARIES = ("lastiterate", "opacus", "torch", "transformers")


class PrivacyWarning(UserWarning):
    """Warning that a training contradicts its description, or that a part of the description cannot be read."""


class PrivacyCallback(TrainerCallback):
    """Log guarantee, prediction and mu of a training with Opacus, warn of contradictions, and write a privacy card.

    Args:
        trainer: the Trainer, whose optimizer must be Opacus' when training begins.
        engine: the ``PrivacyEngine``, which records the steps.
        delta: delta of the logged epsilons, in (0, 1).
        card: a path that ends in .md. The same facts go to a JSON file beside it. None writes no card.
        sampling: how batches are drawn, for loaders that cannot be read.
    """

    def __init__(
        self,
        trainer: Foreign,
        engine: Foreign,
        delta: float,
        card: str | Path | None = None,
        sampling: Sampling | None = None,
    ) -> None:
        if not hasattr(trainer, "callback_handler"):
            raise BadArgument("trainer", f"must be a transformers.Trainer, got {told(trainer)}")
        if not hasattr(getattr(engine, "accountant", None), "history"):
            raise BadArgument("engine", f"must be an Opacus PrivacyEngine, got {told(engine)}")
        self.trainer, self.engine = trainer, engine
        self.delta = number("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
        if sampling is not None:
            one_of("sampling", sampling, get_args(Sampling))
        self.sampling: Sampling | None = sampling
        self.card = None if card is None else Path(card)
        if self.card is not None:
            if self.card.suffix.lower() != ".md":
                raise BadArgument("card", f"must end in .md, got {str(card)!r}")
            check_writable(self.card, "card")
        self.warnings: dict[str, str] = {}  # each with a name
        self._logged, self._is_refuted = 0, False
        self._first: dict[str, torch.Tensor] = {}
        self._divisor: float | None = None

    @property
    def run(self) -> DPSGD:
        """The run so far. What cannot be read of the optimizer or its schedule is left out, with a warning."""
        loader, scheduler = self.trainer.callback_handler.train_dataloader, self.trainer.lr_scheduler
        scheduler = getattr(scheduler, "scheduler", scheduler)  # without accelerate's wrapper
        if self.sampling is not None:
            loader = None
        try:
            run = run_from_opacus(self.engine, self._optimizer, loader, scheduler, self.sampling)
        except ValueError as refusal:
            run = run_from_opacus(self.engine, None, loader, None, self.sampling)
            self._warn("optimizer", f"The prediction counts every step alike, because {refusal}")
        if run.optimizer is None or np.ptp(rates := run.optimizer.learning_rate):
            return run
        return run.replace(optimizer=replace(run.optimizer, learning_rate=float(np.ravel(rates)[0])))

    @property
    def _optimizer(self) -> Foreign:
        optimizer = self.trainer.optimizer
        while not hasattr(optimizer, "expected_batch_size"):
            if not hasattr(optimizer, "optimizer"):
                raise BadArgument(
                    "trainer",
                    "must have the optimizer that make_private returned when training begins, got "
                    f"{type(optimizer).__name__}: gradients would neither be clipped nor get noise",
                )
            optimizer = optimizer.optimizer  # accelerate's wrapper
        return optimizer

    def on_train_begin(self, args: Foreign, state: Foreign, control: Foreign, **more: Foreign) -> None:
        """Look at the optimizer, the loader and the loss, before the first step."""
        optimizer, loader = self._optimizer, self.trainer.callback_handler.train_dataloader
        self._divisor = optimizer.expected_batch_size
        trained = {name: p for name, p in self.trainer.model.named_parameters() if p.requires_grad}
        self._first = {name: _some(p) for name, p in trained.items()}
        known = {id(p) for p in optimizer.params}
        if left_out := [name for name, p in trained.items() if id(p) not in known]:
            self._warn("left out", f"{_names(left_out)} would be trained, but the optimizer does not have it.")
        if self.sampling is None:
            self._look_at(loader, args)
        if _mixes_examples(self.trainer, loader, optimizer.loss_reduction):
            self._warn(
                "normalisation",
                "The loss of a batch is not the mean of its examples' own losses. An example's gradient depends on who "
                "else was drawn, and no guarantee holds. Override compute_loss: average over the tokens of each "
                "example first, and then over examples.",
                is_fatal=True,
            )

    def _look_at(self, loader: Foreign, args: Foreign) -> None:
        try:
            drawn = read_loader(loader)
        except ValueError as refusal:
            self._warn("loader", f"It is not known how batches are drawn, because {refusal}")
            return
        size, declared = len(loader.dataset), args.train_batch_size * args.world_size
        if drawn.batches not in (size // declared, -(-size // declared)):
            self._warn(
                "batch size",
                f"The Trainer's arguments have batches of {declared:,}, and the loader draws "
                f"{size / drawn.batches:.4g} examples on average. The run is described by what the loader draws.",
            )
        if drawn.sampling != "shuffled":
            return
        self._warn(
            "sampling",
            "Batches are shuffled, and Opacus' accountants take them for Poisson samples: the engine's epsilon is no "
            "guarantee. Train with poisson_sampling=True, or use lastiterate.balls_in_bins_loader(loader).",
        )
        if left := size % loader.batch_sampler.batch_size if loader.batch_sampler.drop_last else 0:
            self._warn(
                "last batch",
                f"{left:,} of {size:,} examples are dropped in every epoch, with the last batch. The sample rate is "
                "that of the other examples.",
            )

    def on_optimizer_step(self, args: Foreign, state: Foreign, control: Foreign, **more: Foreign) -> None:
        """Notice if the number by which sums of gradients are divided follows the drawn batch."""
        if self._optimizer.expected_batch_size != self._divisor:
            self._warn(
                "normalisation",
                f"Sums of gradients were divided by {self._divisor:g} and then by "
                f"{self._optimizer.expected_batch_size:g}: dividing by the size of the drawn batch has no guarantee. "
                "Leave expected_batch_size as make_private sets it.",
                is_fatal=True,
            )

    def on_log(self, args: Foreign, state: Foreign, control: Foreign, **more: Foreign) -> None:
        """Log the values of the run so far after the Trainer's own, once for each number of steps.

        Nothing is logged after a warning that no guarantee holds.
        """
        recorded = self._recorded()
        if recorded == self._logged or not recorded:
            return
        self._logged, run = recorded, self._analysed()
        if run is None:
            return
        answers = {
            "guaranteed_epsilon": guaranteed(run, self.delta)[1],
            "predicted_epsilon": ask(run, "last_iterate", lambda curve: curve.epsilon(self.delta)),
            "guaranteed_mu": (mu := mu_of(run)).guarantee,
            "predicted_mu": mu.prediction,
        }
        self.trainer.log({name: each.value for name, each in answers.items() if each.value is not None})

    def on_train_end(self, args: Foreign, state: Foreign, control: Foreign, **more: Foreign) -> None:
        """Compare the number of noisy steps with the Trainer's, look for tensors that did not move, write the card."""
        recorded, updates = self._recorded(), state.global_step
        if recorded > updates:
            self._warn(
                "noise",
                f"Opacus added noise {recorded:,} times, and the Trainer counts {updates:,} updates: each micro-batch "
                "gets noise. Accumulate clipped gradients with optimizer.signal_skip_step(True).",
            )
        if recorded < updates:
            self._warn(
                "noise",
                f"The Trainer counts {updates:,} updates, and Opacus added noise to {recorded:,}: the others are not "
                "accounted for. After resuming, load the engine's state as well.",
                is_fatal=True,
            )
        now = dict(self.trainer.model.named_parameters())
        if still := [name for name, before in self._first.items() if torch.equal(before, _some(now[name]))]:
            self._warn("moved", f"{_names(still)} did not move in {updates:,} updates, although it is to be trained.")
        if self.card is not None and recorded:
            self.write_card(self.card)

    def write_card(self, path: Path) -> None:
        """Write the privacy card as Markdown, and the same facts to a JSON file beside it."""
        facts = self.facts()
        lines = ["## Privacy of this training", "", *[f"{each}\n" for each in facts["words"]]]
        if facts["warnings"]:
            lines += ["### What contradicts these numbers", "", *[f"- {each}" for each in facts["warnings"]], ""]
        lines += ["Versions: " + ", ".join(f"{name} {each}" for name, each in facts["versions"].items()) + ".", ""]
        write_whole(path, "\n".join(lines).encode(), "card")
        beside = json.dumps(facts, indent=2, allow_nan=False) + "\n"
        write_whole(path.with_suffix(".json"), beside.encode(), "card")

    def facts(self) -> Fields:
        """Return the facts of the card as JSON fields. If a warning says that no guarantee holds, it has no numbers."""
        run = self._analysed()
        rest = {"warnings": list(self.warnings.values()), "versions": {name: version(name) for name in _LIBRARIES}}
        if run is None:
            return {"words": ["No guarantee is known for this training, and nothing is predicted."], **rest}
        answers = {
            "guaranteed": guaranteed(run, self.delta)[1],
            "predicted": ask(run, "last_iterate", lambda curve: curve.epsilon(self.delta)),
        }
        return {
            "words": [sentence(run, self.delta), mu_sentence(run)],
            "run": run_fields(run) | {"clip_norm": run.clip_norm},
            "delta": self.delta,
            **answer_fields(answers, run),
            "mu": mu_of(run).fields(),
            "risk": [each.fields() for each in risks_of(run)],
            **rest,
        }

    def _analysed(self) -> DPSGD | None:
        """Return the run, or None if a warning says why it has no guarantee."""
        try:
            return None if self._is_refuted else self.run
        except ValueError as refusal:
            self._warn("run", f"Guarantee and prediction are not known, because {refusal}")
            return None

    def _recorded(self) -> int:
        return sum(count for _, _, count in self.engine.accountant.history)

    def _warn(self, name: str, words: str, *, is_fatal: bool = False) -> None:
        self._is_refuted |= is_fatal
        if name not in self.warnings:
            self.warnings[name] = words
            warnings.warn(words, PrivacyWarning, stacklevel=2)


def _some(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1)[:_WATCHED].cpu().clone()


def _names(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]} (with {len(names) - 1} more)"


def _mixes_examples(trainer: Foreign, loader: Foreign, reduction: str) -> bool:
    """Return whether the loss of a few examples together differs from the mean, or sum, of the losses of each alone."""
    data, model = loader.dataset, trainer.model
    places = range(0, len(data), max(1, len(data) // _COMPARED))[:_COMPARED]
    inputs = trainer._prepare_inputs(loader.collate_fn([data[place] for place in places]))
    if not all(torch.is_tensor(each) and each.ndim and len(each) == len(places) for each in inputs.values()):
        return False

    def loss(rows: slice) -> float:
        batch = {name: each[rows] for name, each in inputs.items()}
        _, items = trainer.get_batch_samples(iter([batch]), 1, trainer.args.device)
        return float(trainer.compute_loss(model, batch, num_items_in_batch=items))

    was_training = model.training
    model.eval()
    try:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            together, alone = loss(slice(None)), [loss(slice(place, place + 1)) for place in range(len(places))]
    finally:
        model.train(was_training)
    expected = sum(alone) / (1 if reduction == "sum" else len(alone))
    tolerance = 1e-4 if next(model.parameters()).dtype == torch.float32 else 0.02
    return abs(together - expected) > tolerance * sum(map(abs, alone)) / len(alone)

"""What analyses and runs are called wherever people read them: tables, titles, legends."""

from __future__ import annotations

from decimal import ROUND_CEILING, Decimal
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from lastiterate.run import DPSGD

ANALYSES = ("last_iterate", "composition", "full_batch")  # in the order in which they are shown

LABELS = {
    "last_iterate": "last iterate (heuristic)",
    "composition": "composition (standard)",
    "full_batch": "full batch (baseline)",
    "no_amplification": "no amplification (bound)",
    "max_over_steps": "largest up to T (heuristic)",
}

ASSUMPTIONS = {
    "last_iterate": "only the final model is seen, losses are linear: predicts, does not guarantee",
    "composition": "every intermediate model is seen: a guarantee",
    "full_batch": "all data in every step, the same noise: for comparison, not a guarantee",
    "no_amplification": "every intermediate model is seen, and which batches an example is in: a guarantee",
}

EXACT = "this example (exact)"
FOUND = "found by the attack"

METHODS = {
    "clopper-pearson": "Clopper-Pearson (assumption-free)",
    "gdp": "Gaussian DP family",
    "last-iterate": "last-iterate family",
    "composition": "composition family",
    "one-run": "one run (assumption-free)",
    "one-run-fdp": "one run, f-DP (Gaussian family)",
}

# Methods whose bound holds whatever the mechanism is.
ASSUMPTION_FREE = ("clopper-pearson", "one-run")

METHOD_ASSUMPTIONS = {
    "clopper-pearson": "assumes nothing about the mechanism",
    "gdp": "assumes that the best attack is one on Gaussian noise",
    "last-iterate": "assumes the heuristic's mechanism, with the noise unknown",
    "composition": "assumes that of the standard analysis, with the noise unknown",
    "one-run": "assumes nothing about the mechanism; many canaries in one training",
    "one-run-fdp": "assumes Gaussian DP; many canaries in one training",
}

THRESHOLDS = {
    "a-priori": "chosen before training",
    "split": "chosen on other models than those counted",
    "corrected": "best of all, corrected for the choice",
    "uncorrected": "best of all, uncorrected: not a valid bound",
}

VERDICTS = {
    "violation": (
        "The attack found more than the claimed guarantee allows. Unless chance played a trick that the stated "
        "confidence makes unlikely, the training is not as private as claimed: look for a fault in its clipping, its "
        "noise, or how it samples batches."
    ),
    "above heuristic": (
        "The attack found more than the heuristic predicts, but the tests that could refute the guarantee did not. "
        "This is worth a look: for this training the heuristic is too low, or it differs from its description."
    ),
    "inconclusive": (
        "This audit could not have told, or its attack did not work. It says neither that the training is as private "
        "as claimed nor that it is not."
    ),
    "consistent": (
        "The attack found no more than was predicted. This does not prove that the training is private: another "
        "attack, or more models, might find more."
    ),
}

CAVEAT = "The heuristic predicts, it does not guarantee."

_SAMPLING = {
    "poisson": "Poisson sampling",
    "fixed": "batches of fixed size",
    "shuffled": "shuffled batches",
    "full": "full batches",
}


def method_label(method: str) -> str:
    """What a method of estimation is called; one that is not known here goes by its own name."""
    return METHODS.get(method, method)


def per_cent(fraction: float) -> str:
    """A confidence or an accuracy, without zeros that say nothing."""
    return f"{100.0 * fraction:.6g}%"


def describe(run: DPSGD, *, noise: bool = True) -> str:
    """The run in one line, with its noise or without."""
    parts = [
        f"{run.steps:,} step{'s' if run.steps > 1 else ''}",
        f"sample rate {spell(run.sample_rate)}",
        *([f"noise multiplier {spell(run.noise_multiplier)}"] if noise else []),
        *training(run),
    ]
    return ", ".join(parts)


def training(run: DPSGD) -> list[str]:
    """How the run samples and what makes its steps count differently."""
    parts = [_SAMPLING[run.sampling]]
    if run.weights is not None:
        parts.append(f"weights {spell(run.weights)}")
    if run.optimizer is not None:
        sgd = run.optimizer
        if np.ndim(sgd.learning_rate):
            parts.append(f"learning rate {spell(sgd.learning_rate)}")
        if sgd.momentum:
            parts.append(f"{'Nesterov ' if sgd.nesterov else ''}momentum {spell(sgd.momentum)}")
        if sgd.weight_decay:
            rate = "" if np.ndim(sgd.learning_rate) else f" at learning rate {spell(sgd.learning_rate)}"
            parts.append(f"{'decoupled ' if sgd.decoupled else ''}weight decay {spell(sgd.weight_decay)}{rate}")
        if sgd.averaging is not None:
            parts.append("uniform averaging" if sgd.averaging == "uniform" else f"EMA {spell(sgd.averaging)}")
    return parts


def spell_up(value: Any, digits: int = 5) -> str:
    """A number rounded up: of noise, too much is safe and too little is not."""
    exact = Decimal(repr(float(value)))
    unit = Decimal(1).scaleb(exact.adjusted() + 1 - digits)
    return spell(exact.quantize(unit, ROUND_CEILING), digits)


def spell(value: Any, digits: int = 4) -> str:
    """A number, or a schedule by its first and last."""
    if np.ndim(value):
        return f"{spell(value[0], digits)} to {spell(value[-1], digits)}" if len(value) > 1 else spell(value[0], digits)
    mantissa, _, exponent = f"{float(value):.{digits}g}".partition("e")
    return f"{mantissa}e{int(exponent)}" if exponent else mantissa

"""All trainings: ``CORRECT`` and ``FAULTS``. Light to import; ``Training.load`` imports the framework.

``EXTRA`` has two faults more, which final parameters cannot show: a checker must not be blamed for these, nor claim
that it would have found them.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from . import declared


@dataclass(frozen=True)
class Training:
    """One training: ``load()(seed, canary, steps=None)`` returns the final parameters.

    ``canary`` is True or False, or a gradient in the form of the parameters, which then stands for the gradient of the
    canary, before clipping.

    Attributes:
        name: unique name.
        module: module within this package.
        function: function of the module.
        run: the declared run, as keyword arguments; ``optimizer`` holds the optimizer's ``name`` and arguments.
        kind: the kind of fault, or ``"correct"``.
        what: what is wrong.
        leaves_trace: False where the final parameters cannot show the fault in principle.
        paired: True if both worlds of a seed share noise, initial model, and batches of the other examples.
        mild: True if the fault is a small one.
        deviates: ``"less-private"`` if the training leaks more than the declared run does (for some example),
            ``"other"`` if it only is another training than the declared one, ``"none"`` if it is correct.
    """

    name: str
    module: str
    function: str
    run: dict[str, Any]
    kind: str
    what: str
    leaves_trace: bool = True
    paired: bool = True
    mild: bool = False
    deviates: str = "less-private"

    def load(self) -> Callable[..., Any]:
        """Return the function ``train(seed, canary, steps=None)``."""
        package = __name__.rpartition(".")[0]
        return getattr(importlib.import_module(f"{package}.{self.module}"), self.function)

    def declared_run(self) -> Any:
        """Return the declared run as a ``lastiterate.DPSGD``."""
        import lastiterate as li

        arguments = dict(self.run)
        optimizer = dict(arguments.pop("optimizer"))
        made = getattr(li, optimizer.pop("name"))(**optimizer)
        return li.DPSGD(**arguments, optimizer=made)


def _training(framework: str, function: str, kind: str, what: str, **more: Any) -> Training:
    return Training(
        f"{function}_{framework}",
        f"{framework}_trainings",
        function,
        declared.run(framework, function),
        kind,
        what,
        **more,
    )


def _correct(framework: str, function: str, what: str, paired: bool = True) -> Training:
    return _training(framework, function, "correct", what, paired=paired, deviates="none")


CORRECT: list[Training] = [
    *(
        _correct(f, f"correct_{m}", "Correct.")
        for f in ("numpy", "torch", "opacus", "jax")
        for m in ("logistic", "mlp")
    ),
    _correct("torch", "correct_momentum_mlp", "Correct, with momentum 0.8, declared."),
    _correct("jax", "correct_adam_logistic", "Correct, with Adam, declared."),
    _correct("numpy", "correct_fixed_size_logistic", "Correct, with batches of fixed size, declared."),
    _correct("opacus", "correct_shuffled_mlp", "Correct, with shuffled batches, declared."),
    _correct("numpy", "correct_unpaired_logistic", "Correct; the two worlds share no randomness.", paired=False),
    _correct("torch", "correct_unpaired_mlp", "Correct; the two worlds share no randomness.", paired=False),
]

_WHAT: dict[str, tuple[tuple[str, str, dict[str, Any]], tuple[str, str, dict[str, Any]]]] = {
    # kind: (framework, what, more) for the logistic regression and for the MLP.
    "noise_without_clip_norm": (
        ("numpy", "The noise's deviation lacks the clipping norm (2), so the noise is half the declared.", {}),
        ("opacus", "The noise's deviation lacks the clipping norm (1.5), so the noise is 2/3 of the declared.", {}),
    ),
    "noise_of_mean_on_sum": (
        ("torch", "Noise for the mean is added to the sum: 40 times too small.", {}),
        ("jax", "The sensitivity of the mean is divided by the batch size once more: noise 60 times too small.", {}),
    ),
    "noise_variance_as_deviation": (
        ("torch", "The noise's deviation is a square root: 0.82 of the declared.", {"mild": True}),
        ("numpy", "The noise's deviation is a square root: 0.82 of the declared.", {"mild": True}),
    ),
    "same_noise_every_step": (
        ("jax", "The key of the noise is the same at every step, so all steps have the same noise.", {}),
        ("torch", "The generator of the noise is seeded again in every step, so all steps have the same noise.", {}),
    ),
    "noise_missing_on_tensor": (
        ("opacus", "The bias gets no noise.", {}),
        ("numpy", "The output layer gets no noise.", {}),
    ),
    "noise_fixed_seed": (
        ("torch", "The generator of the noise is never seeded: every run has the same noise.", {}),
        ("opacus", "The generator of the noise is seeded with 42: every run has the same noise.", {}),
    ),
    "clip_per_tensor": (
        ("torch", "Weights and bias are each clipped to the norm that is meant for both.", {}),
        ("opacus", "Four tensors are each clipped to the norm that is meant for all.", {}),
    ),
    "clip_of_batch": (
        ("numpy", "The mean gradient of the batch is clipped, not each example's.", {}),
        ("torch", "clip_grad_norm_ clips the mean gradient of the batch, not each example's.", {}),
    ),
    "clip_norm_wrong": (
        (
            "opacus",
            "Gradients are clipped to 1.25 times the declared norm; the noise is for the declared.",
            {"mild": True},
        ),
        ("jax", "Clipped gradients are rescaled to norm 1, while the noise is for norm 0.5.", {}),
    ),
    "real_batch_size": (
        ("numpy", "The noisy sum is divided by the real instead of the expected batch size (12).", {"mild": True}),
        ("torch", "The noisy sum is divided by the real instead of the expected batch size (12).", {"mild": True}),
    ),
    "shuffled_for_poisson": (
        ("opacus", "A shuffling DataLoader is used where Poisson sampling is declared.", {}),
        ("torch", "Batches are cut from a permutation where Poisson sampling is declared.", {}),
    ),
    "rate_too_large": (
        ("opacus", "The sampling rate is twice the declared.", {}),
        ("numpy", "The sampling rate is 1.3 times the declared.", {"mild": True}),
    ),
    "canary_twice": (
        ("jax", "The canary is in the data twice.", {}),
        ("opacus", "The canary is in the data twice.", {}),
    ),
    "momentum_not_declared": (
        ("opacus", "Momentum 0.9 is used and not declared.", {"deviates": "other"}),
        ("jax", "Momentum 0.5 is used and not declared.", {"deviates": "other"}),
    ),
    "gradients_not_zeroed": (
        ("torch", "Noisy gradients of all earlier steps stay in the gradient.", {"deviates": "other"}),
        ("opacus", "Clipped gradients of all earlier steps stay in the sum; the noise is for one step.", {}),
    ),
    "private_steps_at_end": (
        ("torch", "Five last steps on all data are neither clipped nor noised.", {}),
        ("opacus", "The output layer is tuned on the private data without clipping and noise.", {}),
    ),
    "private_start": (
        ("numpy", "Training starts at a least-squares fit to the private data.", {}),
        ("torch", "Features are scaled by the largest value of the private data, the canary's if it is there.", {}),
    ),
    "antithetic_noise": (
        ("numpy", "Every second noise is minus the one before, so the noise cancels.", {}),
        ("jax", "Each step takes back the noise of the step before, so only the last noise stays.", {}),
    ),
    "noise_decays": (
        ("opacus", "The noise multiplier decays by 4% a step, declared constant.", {}),
        ("numpy", "The noise multiplier decays to 0.3 of the declared over the run, declared constant.", {}),
    ),
    "sampling_by_data": (
        ("numpy", "Examples with a large loss are drawn more often, the canary nearly always.", {}),
        ("torch", "Batches are balanced by class, so the canary, of a rare class, is drawn more often.", {}),
    ),
    "augmentations_clipped_apart": (
        ("torch", "Four views of an example are clipped each for itself, and the noise is averaged with them.", {}),
        ("jax", "Two views of an example are clipped each for itself and added up.", {}),
    ),
    "clip_norm_from_batch": (
        ("numpy", "Gradients are clipped to the median norm of the batch; the noise is for the declared norm.", {}),
        ("torch", "Gradients are clipped to the 90% quantile of the batch's norms; the noise follows it.", {}),
    ),
    "adam_second_moment_without_noise": (
        ("jax", "Adam's second moment is made from gradients before the noise.", {}),
        ("torch", "Adam's second moment is made from gradients before the noise.", {}),
    ),
    "noise_chosen_by_loss": (
        ("torch", "Steps after which the loss on the private data is higher are taken back.", {}),
        ("numpy", "Of four draws of the noise the one with the lowest loss on the private data is kept.", {}),
    ),
    "sparse_noise": (
        ("jax", "Noise is added only where the gradient is not zero; only the canary has the last feature.", {}),
        ("numpy", "Noise is added only where the gradient is not zero; only the canary has the last feature.", {}),
    ),
}

FAULTS: list[Training] = [
    _training(framework, f"{kind}_{model}", kind, what, **more)
    for kind, pair in _WHAT.items()
    for model, (framework, what, more) in zip(("logistic", "mlp"), pair, strict=True)
]

EXTRA: list[Training] = [
    _training(
        "numpy",
        "noise_half_precision_logistic",
        "noise_half_precision",
        "Noise is drawn in half precision, whose gaps can give away the sum to who sees all bits.",
        leaves_trace=False,
    ),
    _training(
        "numpy",
        "noise_few_seeds_mlp",
        "noise_few_seeds",
        "The generator of the noise has one of 2^20 seeds, all of which can be tried.",
        leaves_trace=False,
    ),
]

"""Input-space attacks: the canary is an example, and the score is minus the loss of the released model on it."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from lastiterate.attacks.attack import ONE_EXAMPLE, Armed, Facts, LinearScores, References, Words
from lastiterate.common.types import FloatArray, IntArray
from lastiterate.common.validation import integer, one_of
from lastiterate.privacy.mixtures.law import law_of
from lastiterate.run import DPSGD
from lastiterate.supported_runs import GROUPS, REPLACEMENT, Support
from lastiterate.training.problem import ExampleCanary, Loss, Moment, Problem

Kind = Literal["mislabelled", "blank", "clipbkd"]

_WORDS = {
    "mislabelled": "a natural example with a wrong label",
    "blank": "a blank image",
    "clipbkd": "an image along the direction in which natural ones vary least (ClipBKD)",
}
_CANDIDATES = 256  # examples among which the canary is searched


@dataclass(frozen=True)
class InputSpace:
    """An example as canary. The problem's examples must be pairs (images, labels).

    Args:
        canary: "mislabelled" (the natural example and wrong label with the largest loss on models without the example,
            which is removed from the data), "blank" (zeros) or "clipbkd" (Jagielski et al. 2020: along the direction in
            which natural images vary least). "blank" and "clipbkd" get the label that models without the canary find
            least likely. The canary of a group is several mislabelled examples, or copies of a blank or clipbkd
            example. A replacement is the same image with the right label, or with the most likely label.
        others: "natural", or "blank" to replace all other images by zeros. Labels are kept.
        pilots: number of models that are trained first to choose the canary, and again in each world to find the centre
            and the spread of the scores. These models are not counted.
        seed: chooses the candidates.
    """

    canary: Kind = "mislabelled"
    others: Literal["natural", "blank"] = "natural"
    pilots: int = 32
    seed: int = 0

    def __post_init__(self) -> None:
        one_of("canary", self.canary, get_args(Kind))
        one_of("others", self.others, ("natural", "blank"))
        integer("pilots", self.pilots, 2)
        integer("seed", self.seed, 0)

    @property
    def to_craft(self) -> int:
        """Number of reference models: ``pilots`` to choose the canary, and ``pilots`` in each world."""
        return 3 * self.pilots

    supports: ClassVar = Support("the attack InputSpace", ONE_EXAMPLE | {GROUPS, REPLACEMENT})

    def craft(self, run: DPSGD, problem: Problem, references: References) -> Facts:
        problem = self._prepared(problem)
        images, labels = _images(problem)
        law = law_of(run)
        setting = self._others(problem)
        scout = references(run, setting, models=self.pilots, purpose=1)
        index = None
        if self.canary == "mislabelled":
            index = np.random.default_rng(self.seed).permutation(len(images))[:_CANDIDATES]
        inputs = images[index] if index is not None else self._image(images)[None]
        losses = _losses_by_label(problem, scout, inputs, int(labels.max()) + 1)
        facts = _chosen(run, losses, index, labels)
        armed = self.arm(run, problem, facts | {"centre": 0.0, "unit": 1.0})
        worlds = [
            armed.score(references(run, armed.problem, armed.canary, models=self.pilots, present=present, purpose=2))
            for present in (False, True)
        ]
        centre, unit = float(worlds[0].mean()), float(worlds[0].std(ddof=1))
        distance = float(worlds[1].mean() - centre)
        if run.is_mirrored:  # either example shifts the mean by half, and adds variance
            distance *= 0.5
            centre += distance
            known = (distance / law.mean) ** 2 * law.variance
            unit = float(np.sqrt(max(unit**2 - known, 0.1 * unit**2)))
        signal = distance / unit / (law.mean / law.noise)
        return facts | {"centre": centre, "unit": unit, "signal": float(np.clip(signal, 0.02, 1.0))}

    def arm(self, run: DPSGD, problem: Problem, facts: Facts) -> Armed:
        problem = self._prepared(problem)
        images, labels = _images(problem)
        index, setting = facts["index"], self._others(problem)
        image = self._image(images) if index is None else images[index]
        if index is not None:
            setting = replace(setting, examples=tuple(np.delete(leaf, index, axis=0) for leaf in setting.examples))
        is_group = isinstance(index, list)
        example, other = (
            None if label is None else (image, np.asarray(label, labels.dtype))
            for label in (facts["label"], facts.get("replacement"))
        )
        canary = ExampleCanary(example, other, is_group)
        loss = _loss_of(problem, example, is_group)
        instead = None if other is None else _loss_of(problem, other, is_group)

        def score(trained: PyTree) -> FloatArray:
            won = 0.0 if instead is None else instead(trained)
            return (won - loss(trained) - float(facts["centre"])) / float(facts["unit"])

        return Armed(setting, canary, score)

    def expected(self, facts: Facts) -> LinearScores:
        return LinearScores(facts["signal"], 1.0)

    def words(self, facts: Facts) -> Words:
        others = "natural data" if self.others == "natural" else "all other images blank"
        what, score = f"{_WORDS[self.canary]}, label {facts['label']}", "minus the loss on it"
        is_group = isinstance(facts["index"], list)
        if is_group:
            what, score = f"{len(facts['index'])} natural examples with wrong labels", "minus the mean loss on them"
        if "replacement" in facts:
            score = f"loss on the replacement minus loss on {'them' if is_group else 'it'}"
        return Words(
            f"input space, {others}: {what}; score: {score}",
            "standard deviations of the score without the canary",
            (f"{3 * self.pilots} pilot models chose the canary and the threshold; they are not counted.",),
        )

    def _prepared(self, problem: Problem) -> Problem:
        """Return the problem with float32 instead of uint8, which cannot hold a ClipBKD canary."""
        images, labels = _images(problem)
        if self.canary != "clipbkd" or images.dtype != np.uint8:
            return problem
        return replace(problem, examples=(images.astype(np.float32), labels))

    def _others(self, problem: Problem) -> Problem:
        images, labels = _images(problem)
        return problem if self.others == "natural" else replace(problem, examples=(np.zeros_like(images), labels))

    def _image(self, images: FloatArray) -> FloatArray:
        return np.zeros_like(images[0]) if self.canary == "blank" else _least_varying(images)


def _images(problem: Problem) -> tuple[FloatArray, IntArray]:
    examples = problem.examples
    if problem.loss is None or not isinstance(examples, tuple) or len(examples) != 2 or np.ndim(examples[1]) != 1:
        raise ValueError(
            "problem must have a loss and pairs of images and labels as examples for an input-space attack"
        )
    return np.asarray(examples[0]), np.asarray(examples[1])


def _least_varying(images: FloatArray) -> FloatArray:
    flat = images.reshape(len(images), -1).astype(np.float64)
    _, directions = np.linalg.eigh(flat.T @ flat)
    direction = directions[:, 0]
    length = np.linalg.norm(flat, axis=1).mean()
    image: FloatArray = length * direction * np.sign(direction[np.argmax(np.abs(direction))])
    return image.reshape(images.shape[1:]).astype(images.dtype)


def _chosen(run: DPSGD, losses: FloatArray, index: IntArray | None, labels: IntArray) -> Facts:
    """Return the examples and labels with the largest mean loss, and the labels of replacements.

    ``losses`` has the axes [examples, labels]. ``index`` has the positions of the examples in the data. It is None if
    the only example is not part of the data.
    """
    if index is None:
        facts: Facts = {"index": None, "label": int(np.argmax(losses[0])), "replacement": int(np.argmin(losses[0]))}
    else:
        integer("group_size", run.group_size, 1, len(index))
        wrong = losses.copy()
        wrong[np.arange(len(index)), labels[index]] = -np.inf  # the right label
        worst = np.argsort(-wrong.max(axis=1), kind="stable")[: run.group_size]
        chosen = {"index": index[worst], "label": wrong[worst].argmax(axis=1), "replacement": labels[index[worst]]}
        facts = {name: value.tolist() if run.group_size > 1 else value.tolist()[0] for name, value in chosen.items()}
    if not run.is_mirrored:
        del facts["replacement"]
    return facts


def _evaluated(problem: Problem) -> tuple[Loss, Moment]:
    assert problem.loss is not None
    return problem.loss, Moment(jnp.int32(0), jax.random.key(0, impl="threefry2x32"))


def _loss_of(problem: Problem, example: PyTree, is_group: bool = False) -> Callable[[PyTree], FloatArray]:
    loss, moment = _evaluated(problem)
    each: Callable[..., jax.Array] = jax.vmap(loss, (None, 0, None))

    def one(trained: PyTree) -> jax.Array:
        model = problem.model(trained)
        return jnp.mean(each(model, example, moment)) if is_group else loss(model, example, moment)

    many = jax.jit(jax.vmap(one))
    return lambda trained: np.asarray(many(trained), np.float64)


def _losses_by_label(problem: Problem, trained: PyTree, inputs: FloatArray, classes: int) -> FloatArray:
    loss, moment = _evaluated(problem)

    def one(trained: PyTree) -> jax.Array:
        model = problem.model(trained)
        by_label: Callable[..., jax.Array] = jax.vmap(lambda x, y: loss(model, (x, y), moment), (None, 0))
        losses: jax.Array = jax.lax.map(lambda x: by_label(x, jnp.arange(classes)), jnp.asarray(inputs))
        return losses

    return np.array(jax.jit(lambda trained: jnp.mean(jax.lax.map(one, trained), axis=0))(trained), np.float64)

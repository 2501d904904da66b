"""One fine-tuning with many canaries, each included by its own fair coin (Steinke et al. 2023).

All canaries of unseen tokens make unseen tokens more probable, so their gradients are similar. Texts that the model
writes before training, at a high temperature (Mitchell et al. 2026, arXiv 2606.10481), have nearly orthogonal
gradients. The score of a canary is the displacement along the component of its gradient that is orthogonal to the
gradients of all other canaries. It is a function of the released model, and does not depend on any coin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch

from lastiterate.attacks.attack import Facts, LinearScores, Words
from lastiterate.attacks.released_iterates import noise_unit
from lastiterate.common.types import FloatArray
from lastiterate.common.validation import integer, one_of
from lastiterate.lm.example_gradients import Tensors
from lastiterate.lm.fine_tuning import TextReferences
from lastiterate.lm.text_problem import Loaded, TextProblem, load
from lastiterate.lm.unseen_tokens import LEAST_SIGNAL, Where, find_direction, protected
from lastiterate.run import DPSGD

_MOST = 256  # largest default number of canaries
_TEMPERATURE = 2.0  # of 1, 2 and 4, the one with the most orthogonal gradients on stories260k
_AT_ONCE = 64  # number of texts that are sampled at once
_MEMORY = 2**31  # bytes for the gradients of the default number of canaries


@dataclass(frozen=True)
class OneRunTokens:
    """An attack with many canaries at once. ``models`` is the number of canaries.

    Args:
        score: "gradient" (all trained parameters; keeps a gradient for each canary in memory) or "rows" (the rows of
            the canaries' tokens in the embeddings).
        length: length of each canary, in tokens.
        references: number of models without canaries that are trained first, to centre the scores. The default is 0:
            one run is one training, and the scores of canaries that are left out are the centre.
        seed: seed for the choice of tokens.
        canary: "tokens" (each canary is a token that never occurs in the data, repeated) or "sampled" (each canary is a
            text that the model writes before training, at temperature 2).
    """

    score: Where = "gradient"
    length: int = 16
    references: int = 0
    seed: int = 0
    canary: Literal["tokens", "sampled"] = "tokens"

    def __post_init__(self) -> None:
        one_of("score", self.score, get_args(Where))
        integer("length", self.length, 2)
        if integer("references", self.references, 0) == 1:
            raise ValueError("references must be 0 or at least 2, got 1")
        integer("seed", self.seed, 0)
        one_of("canary", self.canary, ("tokens", "sampled"))

    def most_canaries(self, problem: TextProblem) -> int:
        """Return the largest useful number of canaries, limited by the texts, the unseen tokens, memory and time."""
        loaded = load(problem)
        size = 4 * sum(part.numel() for part in loaded.start.values()) if self.score == "gradient" else 0
        fit = _MEMORY // size if size else _MOST
        unseen = int(loaded.unseen.size) if self.canary == "tokens" else _MOST
        return max(min(_MOST, unseen, problem.size, fit), 2)

    def craft_many(self, run: DPSGD, problem: TextProblem, references: TextReferences, canaries: int) -> Facts:
        sequences = self._sequences(problem, canaries)
        armed = ArmedTexts(run, problem, sequences, self.score, np.zeros(canaries))
        centres = np.zeros(canaries)
        if self.references:
            centres = np.mean(references(run, problem, armed.scores, models=self.references), axis=0)
        return {"protected": problem.unit, "canaries": sequences, "centres": centres.tolist(), "signal": armed.signal}

    def _sequences(self, problem: TextProblem, canaries: int) -> list[list[int]]:
        loaded = load(problem)
        if self.canary == "sampled":
            return _sampled(loaded, canaries, self.length, self.seed)
        unseen = loaded.unseen
        if canaries > unseen.size:
            most = f"{unseen.size}, one canary for each token that never occurs, got {canaries}"
            what = f"add tokens to the model, as with added_tokens={canaries} (--added-tokens {canaries})"
            raise ValueError(f"models must be at most {most}: {what}")
        tokens = np.random.default_rng(self.seed).permutation(unseen)[:canaries]
        return [[int(token)] * self.length for token in tokens]

    def arm(self, run: DPSGD, problem: TextProblem, facts: Facts) -> ArmedTexts:
        return ArmedTexts(run, problem, facts["canaries"], self.score, np.array(facts["centres"]))

    def expected(self, facts: Facts) -> LinearScores:
        return LinearScores(facts["signal"])

    def words(self, facts: Facts) -> Words:
        count = len(facts["canaries"])
        where = "the whole of its gradient" if self.score == "gradient" else "its token's rows of the embeddings"
        each = f"a token that never occurs in the data, {self.length} times"
        if self.canary == "sampled":
            each = f"a text of {self.length} tokens that the model wrote itself, at temperature {_TEMPERATURE:g}"
        what = f"one run: {count} canaries, each {each}"
        score = f"displacement along {where}, without the part that it shares with other canaries"
        caveats: tuple[str, ...] = (
            protected(facts["protected"]),
            f"One model is trained with about half of {count} canaries, which makes it less useful.",
        )
        if self.references:
            trained = f"{self.references} models without canaries were trained to centre the scores"
            caveats += (f"{trained}; they are not counted.",)
        return Words(f"{what}; score: {score}", "standard deviations of the noise", caveats)


def _sampled(loaded: Loaded, count: int, length: int, seed: int) -> list[list[int]]:
    """Sample texts from the model before training. The first token is uniform."""
    device = loaded.examples[0].device
    found: list[list[int]] = []
    generator = torch.Generator().manual_seed(seed)
    rows = loaded.model.get_input_embeddings().weight.shape[0]
    for begin in range(0, count, _AT_ONCE):
        tokens = torch.randint(rows, (min(_AT_ONCE, count - begin), 1), generator=generator)
        while tokens.shape[1] < length:
            with torch.no_grad():
                logits = loaded.model(input_ids=tokens.to(device)).logits[:, -1].float().cpu()
            drawn = torch.multinomial((logits / _TEMPERATURE).softmax(-1), 1, generator=generator)
            tokens = torch.cat([tokens, drawn], dim=1)
        found.extend(tokens.tolist())
    return found


class ArmedTexts:
    """The canaries, and the scores of the one released model, in standard deviations of the noise."""

    def __init__(
        self, run: DPSGD, problem: TextProblem, canaries: list[list[int]], where: Where, centres: FloatArray
    ) -> None:
        self.canaries, self.centres, self._unit = canaries, centres, noise_unit(run)
        self._directions = [find_direction(load(problem), canary, where) for canary in canaries]
        products = np.zeros((len(canaries), len(canaries)))
        for i, one in enumerate(self._directions):
            products[i, : i + 1] = products[: i + 1, i] = [one.dot(other) for other in self._directions[: i + 1]]
        inverse = np.linalg.pinv(products, hermitian=True)
        lengths = np.sqrt(np.diag(inverse))
        # This matrix maps displacements along the gradients to displacements along their orthogonal components.
        self._apart: FloatArray = inverse / lengths[:, None]
        shares = np.array([direction.shown(run.clip_norm) for direction in self._directions]) / lengths
        self.signal = float(np.clip(shares.mean(), LEAST_SIGNAL, 1.0))  # mean share of the orthogonal components

    def scores(self, loaded: Loaded, released: Tensors) -> FloatArray:
        moved = np.array([direction.moved(loaded, released) for direction in self._directions])
        shown: FloatArray = self._apart @ moved / self._unit - self.centres
        return shown

"""What was found in a counterexample: predictions, exact epsilons, and what an attack on its last iterates shows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from lastiterate.answers import Answer, ask

if TYPE_CHECKING:
    from lastiterate.arrays import FloatArray
    from lastiterate.attacks.attack import Attack
    from lastiterate.counterexamples.setting import Setting
    from lastiterate.rows import Row
    from lastiterate.run import DPSGD

_FROM_BELOW = Answer(None, "the method bounds epsilon from below only")
_PREDICTED = ("last_iterate", "max_over_steps", "composition")


@dataclass(frozen=True)
class Case:
    """One variant of a counterexample.

    Attributes:
        label: which one; empty where there is only one.
        exact: the epsilon of its last iterate.
        empirical: what the attack found: at least this, with the setting's confidence.
        method: by which it was found, in plain words.
        at_most: an upper bound on the exact epsilon, with the same confidence, or why there is none.
        by_composition: what the composition family makes of the same scores, where the method is another.
        exact_lower: the exact epsilon lies between this and ``exact``; None: the two are one number to a reader.
    """

    label: str
    exact: Answer
    empirical: float
    method: str
    at_most: Answer = _FROM_BELOW
    by_composition: float | None = None
    exact_lower: float | None = None


@dataclass(frozen=True, eq=False)
class Probe:
    """A counterexample, analysed and run.

    Attributes:
        name: of the counterexample.
        setting: what was asked, complete.
        run: what was trained.
        predictions: what the analyses say of the run, which know nothing of the counterexample.
        cases: its variants, the most telling one last.
        rows: the numbers of the picture.
        fields: of its own, as plain values.
    """

    name: str
    setting: Setting
    run: DPSGD
    predictions: dict[str, Answer]
    cases: tuple[Case, ...]
    rows: list[Row]
    fields: Row = field(default_factory=dict)


def predict(run: DPSGD, delta: float) -> dict[str, Answer]:
    """What a user would be told of the run."""
    return {name: ask(run, name, lambda curve: curve.epsilon(delta)) for name in _PREDICTED}


def last_iterate_scores(setting: Setting, run: DPSGD, attack: Attack, name: str) -> tuple[FloatArray, FloatArray]:
    """Train models with the canary and without it, and score their last iterates, in this order."""
    from lastiterate.auditing.conduct import collected
    from lastiterate.auditing.experiments.choose import Given, experiment_on

    experiment = experiment_on(None, Given(run, attack, setting.models, setting.seed, data=name))
    file = None if setting.store is None else setting.store / f"{name}-{experiment.identity().digest()}.sqlite"
    with collected(experiment, store=file, engine=setting.engine) as store:
        trials = store.scores()
    return trials.scores[trials.present], trials.scores[~trials.present]


def known(answer: Answer) -> float:
    """The value of an answer that sentences and pictures cannot do without."""
    if answer.value is None:
        raise ValueError(f"this counterexample has no numbers to show: {answer.reason}")
    return answer.value

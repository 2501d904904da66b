"""Which experiment the shipped trainer, or what stands in for it, makes of a problem and an attack."""

from __future__ import annotations

from lastiterate.attacks.adversarial import Adversarial
from lastiterate.attacks.attack import Attack, BringsProblem
from lastiterate.auditing.experiments.choose import Given
from lastiterate.auditing.experiments.exact_draws import ExactDraws
from lastiterate.auditing.experiments.protocol import Experiment
from lastiterate.values import told


def shipped_experiment(problem: object, given: Given) -> Experiment:
    """The experiment on a ``training.Problem``, or on None where the attack brings its own."""
    if isinstance(given.attack, Adversarial) and given.attack.iterates == "exact":
        return ExactDraws(given.run, given.attack, given.paired(), given.seed, given.data or "no data")
    from lastiterate.attacks import GradientSpace, OneRun
    from lastiterate.auditing.experiments.one_training import OneTraining
    from lastiterate.auditing.experiments.trained_models import TrainedModels
    from lastiterate.training import Problem

    if problem is not None and not isinstance(problem, Problem):
        raise ValueError(f"problem must be a training.Problem, a lm.TextProblem or a trainer, got {told(problem)}")
    attack = GradientSpace() if given.attack is None else given.attack
    if isinstance(attack, type) or not isinstance(attack, (Attack, OneRun)):
        raise ValueError(
            f"attack must be one of lastiterate.attacks for a problem, or have craft, arm, expected and words, got "
            f"{told(attack)}"
        )
    if problem is None and not isinstance(attack, BringsProblem):
        raise ValueError("problem must be a training.Problem or a trainer for this attack, got None")
    if isinstance(attack, OneRun):
        assert problem is not None
        return OneTraining(given.run, problem, attack, given.models, given.seed, given.test, given.data)
    return TrainedModels(given.run, problem, attack, given.paired(), given.seed, given.test, given.data)

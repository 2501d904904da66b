"""Sentences on a run: guarantee and prediction for a paper, and a person's risk. BibTeX entries of tool and paper."""

from collections.abc import Callable
from dataclasses import dataclass

from lastiterate.common.types import Fields
from lastiterate.common.validation import number
from lastiterate.compare_analyses import Answer, Curves, answer_fields, ask, require_curves
from lastiterate.formatting import ONE_TRAINING, describe, neighbours_of, per_cent, spell_exact, spell_up
from lastiterate.optimizer import APPROXIMATION
from lastiterate.privacy.curve import SMALLEST_ERROR, PrivacyCurve
from lastiterate.run import DPSGD, require_run

_DIGITS = 4  # significant digits of an epsilon, rounded up
_SEEN = {
    "composition": "for all iterates (composition)",
    "no_amplification": "for all iterates, even if it is known which batches an example is in (no amplification)",
}
_CORRELATED = "for all iterates, whichever of the allowed batches an example is in (a Gaussian mechanism)"


def sentence(run: DPSGD, delta: float, curves: Curves | None = None) -> str:
    """Return sentences about a run for a paper: guarantee, neighbouring relation, heuristic, and a person's risk.

    The numbers of the run are exact, so that the run can be rebuilt from the sentence. Schedules are described by their
    first and last values and their range. Epsilons and delta are rounded up. The epsilon of the guarantee is the upper
    end of its bracket. If the standard analysis does not hold for the run, the guarantee of another analysis is used.
    ``curves`` may contain "convex": ``lastiterate.convex`` with a contraction or a diameter. Its guarantee for the
    final model is then added, with its condition.
    """
    require_run(run)
    delta = number("delta", delta, 0.0, 1.0, open_low=True, open_high=True)
    words = [_guaranteed(run, delta), *_of_convex(run, delta, require_curves(curves)), _predicted(run, delta)]
    words += [*risk_sentences(run), ONE_TRAINING]
    return f"Training was DP-SGD: {describe(run, quoted=True)}. {' '.join(words)}"


def guaranteed(run: DPSGD, delta: float) -> tuple[str, Answer]:
    """Return the analysis and its guarantee (the upper end of its bracket), or the reason why there is none."""
    return _by_guarantee(run, lambda curve: curve.bracket(delta)[1])


def _by_guarantee(run: DPSGD, question: Callable[[PrivacyCurve], float]) -> tuple[str, Answer]:
    found, name = Answer(None), ""
    for name in dict.fromkeys([run.guarantee, "no_amplification"]):
        found = ask(run, name, question)
        if found.value is not None:
            break
    return name, found


def _of_convex(run: DPSGD, delta: float, curves: Curves) -> list[str]:
    if "convex" not in curves:
        return []
    found = ask(run, "convex", lambda curve: curve.bracket(delta)[1], curves["convex"])
    if found.value is None:
        return [f"Convexity gives no guarantee for the final model alone: {found.reason}."]
    bound = f"({spell_up(found.value, _DIGITS)}, {spell_up(delta)})"
    return [
        f"The final model alone is {bound}-DP on the condition that losses are convex and steps contract as stated."
    ]


def seen_by(run: DPSGD, name: str) -> str:
    """Return in words what an attack may see under the guarantee of this analysis."""
    return _CORRELATED if run.noise_filter else _SEEN[name]


def released_by(run: DPSGD) -> str:
    """Return in words what an attack on this run sees."""
    if run.release_count > 1:
        every = run.release_count == run.steps
        return f"all {run.steps:,} iterates" if every else f"the {run.release_count:,} released checkpoints alone"
    if run.optimizer is not None and run.optimizer.averaging is not None:
        return "the released average of the iterates alone"
    return "the final model alone"


def _guaranteed(run: DPSGD, delta: float) -> str:
    name, found = guaranteed(run, delta)
    if found.value is None:
        return f"No guarantee can be stated under {neighbours_of(run)}: {found.reason}."
    bound = f"({spell_up(found.value, _DIGITS)}, {spell_up(delta)})"
    return f"It is {bound}-DP under {neighbours_of(run)}, {seen_by(run, name)}."


def _predicted(run: DPSGD, delta: float) -> str:
    found = ask(run, "last_iterate", lambda curve: curve.epsilon(delta))
    heuristic = "the last-iterate heuristic (Steinke et al. 2025)"
    if run.prediction == APPROXIMATION:
        heuristic = f"an {APPROXIMATION}, the last-iterate one (Steinke et al. 2025) with Adam's divisor fixed,"
    if found.value is None:
        return f"For {released_by(run)}, {heuristic} predicts nothing: {found.reason}."
    return (
        f"For {released_by(run)}, {heuristic} predicts epsilon {spell_up(found.value, _DIGITS)} at the same delta "
        "for the same neighbours; this is not a guarantee."
    )


# Risk of a person, in words for readers without training in statistics.

FALSE_ALARMS, LUCKY_GUESSES = 0.01, 0.1  # baselines of the two sentences
_RISK_DIGITS, _ALL = 3, "100%"
_ERROR = 1e-6  # above the largest numerical error of a risk; added before the risk is rounded up


@dataclass(frozen=True)
class Risk:
    """A risk by guarantee and by prediction: the success of an attack on what a run releases, or mu of Gaussian DP.

    ``at`` names and gives the baseline of the attack, or the smallest error rate for which mu holds.
    """

    at: tuple[str, float]
    guarantee: Answer
    prediction: Answer

    def fields(self) -> Fields:
        """Return JSON fields. ``guarantee_reason`` and ``prediction_reason`` say why a field is null."""
        name, value = self.at
        return {name: value} | answer_fields({"guarantee": self.guarantee, "prediction": self.prediction})


def risk_of(run: DPSGD, baseline: float) -> Risk:
    """Return the largest probability of success of an attack that succeeds with probability ``baseline`` without data.

    The baseline is for a model that is trained without the person's data.
    """
    baseline = number("baseline", baseline, 0.0, 1.0)
    return _both(run, ("baseline", baseline), lambda curve: curve.risk(baseline))


def risks_of(run: DPSGD) -> tuple[Risk, Risk]:
    """Return the risks that the two sentences state."""
    return risk_of(run, FALSE_ALARMS), risk_of(run, LUCKY_GUESSES)


def mu_of(run: DPSGD) -> Risk:
    """Return mu of Gaussian DP, on error rates of at least 1e-10."""
    return _both(run, ("smallest_error", SMALLEST_ERROR), lambda curve: curve.mu(SMALLEST_ERROR))


def _both(run: DPSGD, at: tuple[str, float], question: Callable[[PrivacyCurve], float]) -> Risk:
    return Risk(at, _by_guarantee(require_run(run), question)[1], ask(run, "last_iterate", question))


def mu_sentence(run: DPSGD) -> str:
    """Return mu of Gaussian DP in words: the guarantee first, the range of error rates, and the prediction."""
    found = mu_of(run)
    guarantee, prediction = (
        "none" if each.value is None else spell_up(each.value, _RISK_DIGITS)
        for each in (found.guarantee, found.prediction)
    )
    on = f"where both error rates are at least {spell_exact(SMALLEST_ERROR)}"
    return f"Mu of Gaussian DP, {on}: {guarantee} (predicted: {prediction})."


def risk_sentences(
    run: DPSGD, false_alarms: float = FALSE_ALARMS, lucky_guesses: float = LUCKY_GUESSES
) -> tuple[str, ...]:
    """Return two sentences on what an attacker can learn about a person: the guarantee, and then the prediction.

    The first sentence is about membership, the second about a secret in the person's data. The arguments are the two
    baselines. Risks are rounded up. Without a guarantee and a prediction, the result is empty.
    """
    member, secret = risk_of(run, false_alarms), risk_of(run, lucky_guesses)
    if member.guarantee.value is None and member.prediction.value is None:
        return ()
    without = "trained on someone else instead of" if run.neighbours == "replace" else "trained without"
    these = "from this one" if run.release_count == 1 else "from the released ones"
    most = f"at most {run.group_size:,} examples" if run.group_size > 1 else "one example"
    return (
        f"An attacker who accepts {per_cent(false_alarms)} false alarms (people outside the data) "
        f"{_succeeds(run, member, 'finds', 'find', 'of the people in the data')}.",
        f"An attacker who guesses a person's secret with probability {per_cent(lucky_guesses)} from a model {without} "
        f"that person {_succeeds(run, secret, 'guesses it with probability', 'guess it with probability', these)}. "
        f"Both sentences are for people with {most} in the data.",
    )


def _succeeds(run: DPSGD, risk: Risk, verb: str, infinitive: str, of: str) -> str:
    """Return what an attacker achieves: the guarantee and, in parentheses, the prediction."""
    kind = "predicted" + (f" by an {APPROXIMATION}" if run.prediction == APPROXIMATION else "")
    promised, expected = _share(risk.guarantee), _share(risk.prediction)
    if not promised:
        return f"is {kind} to {infinitive} {expected} {of}; nothing is guaranteed"
    achieves = f"{verb} {promised} {of}" if promised != _ALL else f"may {infinitive} {promised} {of}"
    return f"{achieves} ({f'{kind}: {expected}' if expected else 'no prediction'})"


def _share(risk: Answer) -> str:
    if risk.value is None:
        return ""
    words = f"{spell_up(100.0 * min(risk.value + _ERROR, 1.0), _RISK_DIGITS)}%"
    return words if words == _ALL else f"at most {words}"


# BibTeX entries, with the same facts as CITATION.cff.

_PAPER = """@inproceedings{steinke2025lastiterate,
  title = {The Last Iterate Advantage: Empirical Auditing and Principled Heuristic Analysis of Differentially Private
    {SGD}},
  author = {Steinke, Thomas and Nasr, Milad and Ganesh, Arun and Balle, Borja and Choquette-Choo, Christopher A. and
    Jagielski, Matthew and Hayes, Jamie and Guha Thakurta, Abhradeep and Smith, Adam and Terzis, Andreas},
  booktitle = {The Thirteenth International Conference on Learning Representations},
  year = {2025},
  url = {https://openreview.net/forum?id=DwqoBkj2Mw},
}"""


def bibtex() -> dict[str, str]:
    """Return BibTeX entries of the tool, with its version, and of the paper."""
    from lastiterate import __version__

    tool = f"""@software{{lastiterate,
  title = {{lastiterate: predict, audit and probe what the last iterate of {{DP-SGD}} leaks}},
  author = {{{{the lastiterate authors}}}},
  version = {{{__version__}}},
}}"""
    return {"tool": tool, "paper": _PAPER}

"""What Adam's second moment says about the prediction, in sentences for a report."""

from __future__ import annotations

from lastiterate.answers import ask
from lastiterate.optimizer import Adam
from lastiterate.run import DPSGD
from lastiterate.second_moment import SecondMoment
from lastiterate.wording import per_cent, spell, spell_up

_DOMINATES = 0.5  # of the second moment is noise
_GROWS = 1.05  # more than so much


def second_moment_sentences(run: DPSGD, moment: SecondMoment | None, delta: float) -> list[str]:
    """Whether noise makes up the second moment, and what it means that later steps grow, if they do."""
    if not isinstance(run.optimizer, Adam):
        return []
    if moment is None:
        return ["How far noise makes up Adam's second moment, as the prediction supposes, was not measured."]
    return [_dominance(moment), *_growth(run, moment, delta)]


def _dominance(moment: SecondMoment) -> str:
    all_, busy = (per_cent(round(min(share, 1.0), 2)) for share in (moment.noise_share, moment.busy_noise_share))
    shares = f"{all_} of it at least, and {busy} in the tenth of the parameters where it is largest"
    if moment.noise_share < _DOMINATES:
        return (
            f"Noise does not dominate Adam's second moment, as the prediction supposes: it makes up {shares}. Steps "
            "are smaller there than supposed, and not of one size: the prediction is less to be trusted."
        )
    if moment.busy_noise_share < _DOMINATES:
        return (
            f"Noise dominates Adam's second moment, as the prediction supposes, but not everywhere: it makes up "
            f"{shares}."
        )
    return f"Noise dominates Adam's second moment, as the prediction supposes: it makes up {shares}."


def _growth(run: DPSGD, moment: SecondMoment, delta: float) -> list[str]:
    if moment.growth < _GROWS + moment.uncertainty:
        return []
    found = [ask(each, "last_iterate", lambda curve: curve.epsilon(delta)).value for each in moment.as_measured(run)]
    predicted = ask(run, "last_iterate", lambda curve: curve.epsilon(delta)).value
    known = [value for value in found if value is not None]
    words = ""
    if known and predicted is not None:
        measured, supposed = spell_up(max(known), 4), spell_up(predicted, 4)
        words = f": with steps of these sizes the prediction would be {measured} instead of {supposed}"
    return [
        "Adam's second moment shrinks while training goes on, and later steps grow, by "
        f"{spell(moment.growth, 3)} more than the prediction supposes{words}."
    ]

"""A malicious data set: without any regulariser, other people's data make the last iterate remember every step.

The paper keeps one bit of every step. That has an exact epsilon, far below composition, so that this attack cannot
match the standard analysis; keeping the value of every step ("linear") does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, get_args

from scipy.stats import binom

from lastiterate.answers import Answer
from lastiterate.attacks.likelihood import TELLING_RATE, telling_threshold
from lastiterate.counterexamples.one_bit import best_threshold, epsilon_bounds, one_bit, pass_rates
from lastiterate.counterexamples.probe import Case, Probe, Setting, last_iterate_scores, predict
from lastiterate.counterexamples.repeaters import Encoding, Malicious, seen
from lastiterate.counterexamples.words import compare, known
from lastiterate.plot.style import EXACT, FOUND, Row, Track, chart_of, colour_of, styled
from lastiterate.privacy.analyses.composition import composition
from lastiterate.run import DPSGD
from lastiterate.values import Array
from lastiterate.vocabulary import ANALYSES, METHODS
from lastiterate.wording import CAVEAT, describe, per_cent, spell

TITLE = "Malicious data set: other examples make the last iterate remember every step"
STORY = (
    "There is no regulariser, and every gradient is clipped. But all other examples are engineered: their gradients "
    "depend on the parameters and the step. The canary marks one coordinate at each step; the others keep coordinates "
    "clean until their step comes, and then write what is there so large that later noise does not reach it. Who sees "
    "only the final model reads all steps from it."
)
TAKES = ("encoding",)
_MATCHES = 0.999  # of an epsilon: as good as equal
DEFAULTS = Setting(steps=100, sample_rate=0.01, noise_multiplier=None, delta=1e-5, models=100_000)


def probe(setting: Setting, track: Track = iter) -> Probe:
    """Both encodings, or the one that was asked for."""
    run = setting.calibrated_run()
    predictions = predict(run, setting.delta)
    encodings = [setting.encoding] if setting.encoding else list(get_args(Encoding))
    cases = tuple(find_epsilon(setting, run, encoding) for encoding in track(encodings))
    rows: list[Row] = [
        {"encoding": case.label, "exact": case.exact.value, "empirical": case.empirical, "models": setting.models}
        for case in cases
    ]
    return Probe("malicious", setting, run, predictions, cases, _sentences(predictions, cases), rows)


def find_epsilon(setting: Setting, run: DPSGD, encoding: Encoding) -> Case:
    """The exact epsilon of an encoding, and what its distinguisher finds in last iterates."""
    if encoding == "one-bit":
        return _one_bit_case(setting, run, best_threshold(run, setting.delta))
    scores = last_iterate_scores(setting, run, Malicious(encoding), "malicious-linear")
    found = _by_composition(setting, run, *scores, telling_threshold(run))
    return Case("linear", Answer(composition(seen(run)).epsilon(setting.delta)), found, METHODS["composition"].label)


def _one_bit_case(setting: Setting, run: DPSGD, threshold: float) -> Case:
    bits_in, bits_out = last_iterate_scores(setting, run, Malicious("one-bit", threshold), "malicious-one-bit")
    exact = one_bit(run, threshold).epsilon(setting.delta)
    low, high = epsilon_bounds(run.steps, bits_in, bits_out, setting.delta, setting.confidence)
    enough = max(1.0, float(binom.isf(TELLING_RATE, run.steps, pass_rates(run, threshold)[0])) + 1.0)
    as_composition = _by_composition(setting, run, bits_in, bits_out, enough - 0.5)
    at_most = Answer(high) if math.isfinite(high) else Answer(None, "no bit was set without the canary")
    return Case("one-bit", Answer(exact), low, "the rates of independent bits", at_most, as_composition)


def _by_composition(setting: Setting, run: DPSGD, scores_in: Array, scores_out: Array, threshold: float) -> float:
    from lastiterate.auditing.evidence.estimate import estimate

    question = setting.delta, setting.confidence, "composition", threshold, run
    return estimate(scores_in, scores_out, *question).epsilon


def _sentences(predictions: dict[str, Answer], cases: Sequence[Case]) -> tuple[str, ...]:
    heuristic, standard = known(predictions["last_iterate"]), known(predictions["composition"])
    sentences = []
    for case in cases:
        exact = known(case.exact)
        if case.label == "one-bit":
            share = exact / standard if standard > 0.0 else 1.0
            matches = "cannot match" if share < _MATCHES else "matches"
            sentences.append(
                f"One bit a step, the paper's encoding, leaks an epsilon of {spell(exact)}, where the heuristic says "
                f"{spell(heuristic)} and composition {spell(standard)}: with {spell(share, 2)} of composition it "
                f"{matches} the standard analysis."
            )
        elif exact <= heuristic * (2.0 - _MATCHES):
            sentences.append(f"The value of every step leaks {spell(exact, 5)}: this is no counterexample.")
        else:
            sentences.append(
                f"The value of every step leaks {spell(exact, 5)}: the last iterate is as good as all iterates; "
                f"where the heuristic says {spell(heuristic)}, {compare(exact, heuristic)}."
            )
    return (
        *sentences,
        f"{CAVEAT} The example needs a data set in which all other examples conspire, with gradients that know the "
        "parameters and the step. Natural data do nothing of the kind; data that an adversary can choose might.",
    )


def chart(found: Probe) -> Any:
    """Each encoding's epsilon, exact and as found, between the heuristic and composition."""
    import altair as alt

    y = alt.Y("what:N", title=None, sort=None, axis=alt.Axis(labelLimit=0, labelFontSize=14))
    x = alt.X("epsilon:Q", title=f"epsilon at delta {spell(found.setting.delta)}", scale=alt.Scale(zero=True))
    names = {
        ANALYSES[name].label: answer.value for name, answer in found.predictions.items() if name != "max_over_steps"
    }
    for case in found.cases:
        names[f"{case.label}, {EXACT}"] = case.exact.value
        names[f"{case.label}, {FOUND}"] = case.empirical
    bars = [
        {"what": name, "epsilon": value, "text": spell(value, 3), "colour": colour_of(name.split(", ")[-1])}
        for name, value in names.items()
        if value is not None
    ]
    marks = chart_of(bars).mark_bar(height=18).encode(x=x, y=y, color=alt.Color("colour:N", scale=None))
    texts = chart_of(bars).mark_text(align="left", dx=5, fontSize=14).encode(x=x, y=y, text="text:N")
    words = [
        f"{describe(found.run)}. Found: at least this, at {per_cent(found.setting.confidence)} confidence, with "
        f"{found.setting.models:,} models in each world. {CAVEAT}"
    ]
    return styled(alt.layer(marks, texts).properties(width=560, height=260), TITLE, words, width=100)

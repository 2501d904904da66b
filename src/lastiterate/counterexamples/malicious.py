"""A malicious data set: without any regulariser, other people's data make the last iterate remember every step.

The paper keeps one bit of every step. That has an exact epsilon, far below composition, so that this attack cannot
match the standard analysis; keeping the value of every step ("linear") does.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, get_args

from scipy.stats import binom

from lastiterate.answers import Answer
from lastiterate.attacks.likelihood import TELLING_RATE, telling_threshold
from lastiterate.counterexamples.finding import Case, Probe, last_iterate_scores, predict
from lastiterate.counterexamples.one_bit import best_threshold, epsilon_bounds, one_bit, pass_rates
from lastiterate.counterexamples.repeaters import Malicious, seen
from lastiterate.counterexamples.setting import Encoding, Setting
from lastiterate.privacy.analyses.composition import composition
from lastiterate.run import DPSGD
from lastiterate.vocabulary import METHODS

if TYPE_CHECKING:
    from lastiterate.arrays import FloatArray
    from lastiterate.rows import Row, Track

TAKES = ("encoding",)
DEFAULTS = Setting(steps=100, sample_rate=0.01, noise_multiplier=None, delta=1e-5, models=100_000)


def probe(setting: Setting, track: Track = iter) -> Probe:
    """Both encodings, or the one that was asked for."""
    run = setting.calibrated_run()
    predictions = predict(run, setting.delta)
    encodings: list[Encoding] = [setting.encoding] if setting.encoding else list(get_args(Encoding))
    cases = tuple(find_epsilon(setting, run, encoding) for encoding in track(encodings))
    rows: list[Row] = [
        {"encoding": case.label, "exact": case.exact.value, "empirical": case.empirical, "models": setting.models}
        for case in cases
    ]
    return Probe("malicious", setting, run, predictions, cases, rows)


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


def _by_composition(
    setting: Setting, run: DPSGD, scores_in: FloatArray, scores_out: FloatArray, threshold: float
) -> float:
    from lastiterate.auditing.evidence.estimate import estimate

    question = setting.delta, setting.confidence, "composition", threshold, run
    return estimate(scores_in, scores_out, *question).epsilon

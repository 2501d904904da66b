"""Pictures of an audit contain what they claim, however odd the audit."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import vl_convert
from scipy.stats import beta, norm

import lastiterate as li
from lastiterate.auditing.evidence.audit_result import AuditResult
from lastiterate.auditing.evidence.estimate import Estimate
from lastiterate.auditing.evidence.verdict_strength import Strength
from lastiterate.compare_analyses import Answer
from lastiterate.plot.audit_charts import audit_chart
from lastiterate.plot.epsilons import epsilon_rows
from lastiterate.plot.histogram import histogram_panel
from lastiterate.plot.roc import roc_panel
from lastiterate.privacy.mixtures.law import law_of

RUN = li.DPSGD(steps=225, sample_rate=0.178, noise_multiplier=1.8, optimizer=li.SGD(0.002, momentum=0.9))
QUICK = li.DPSGD(100, 1.0, 20.0, sampling="full")  # its analyses have closed forms
PREDICTIONS = {"last_iterate": 7.394710793959728, "composition": 7.97130438452517, "full_batch": 6.880767976160021}


def upper(errors: int, models: int, error: float) -> float:
    return 1.0 if errors == models else float(beta.ppf(1 - error, errors + 1, models - errors))


def estimate_of(scores_in, scores_out, threshold, method="clopper-pearson", epsilon=None, largest=4.93, **more):
    """By hand: the bound of Clopper-Pearson, whatever the method is called."""
    positives, negatives = int(np.sum(scores_out >= threshold)), int(np.sum(scores_in < threshold))
    fpr, fnr = upper(positives, len(scores_out), 0.025), upper(negatives, len(scores_in), 0.025)
    if epsilon is None:
        epsilon = max(0.0, math.log(max(1 - fnr - 1e-5, 1e-300) / fpr))
    sizes = dict(models_in=len(scores_in), models_out=len(scores_out))
    errors = dict(false_positives=positives, false_negatives=negatives, fpr_upper=fpr, fnr_upper=fnr)
    fields = dict(threshold=threshold, threshold_choice="a-priori", largest=largest)
    return Estimate(epsilon, method, delta=1e-5, confidence=0.95, **{**sizes, **errors, **fields, **more})


def fake(models=512, seed=0, signal=True, **changes):
    """An audit as the linear analysis would have it, or one without any signal."""
    rng = np.random.default_rng(seed)
    law = law_of(RUN)
    taken = rng.random((models, law.weights.size)) < law.rates
    shift = (taken * law.weights).sum(axis=1) / law.noise
    scores_out, scores_in = rng.standard_normal(models), rng.standard_normal(models) + shift * signal
    grid = np.linspace(-5.0, 7.0, 121)
    spread = math.sqrt(1.0 + law.variance / law.noise**2)
    density = np.stack((grid, norm.pdf(grid), norm.pdf(grid, law.mean / law.noise, spread)), axis=1)
    largest = max(0.0, math.log((1 - upper(0, models, 0.025) - 1e-5) / upper(0, models, 0.025)))
    result = AuditResult(
        run=RUN,
        attack="Gradient space: the canary's gradient is a quiet direction; the score is the displacement along it.",
        data="a linear classifier of 1,797 handwritten digits (scikit-learn)",
        caveats=("The canary was chosen by looking at models that were trained without it.",),
        delta=1e-5,
        confidence=0.95,
        predictions={name: Answer(value) for name, value in PREDICTIONS.items()},
        estimates={
            "clopper-pearson": estimate_of(scores_in, scores_out, 1.9, largest=largest),
            "gdp": estimate_of(scores_in, scores_out, 1.9, "gdp", 5.62 * signal, 23.4),
            "last-iterate": estimate_of(scores_in, scores_out, 1.9, "last-iterate", 6.21 * signal, 28.1),
        },
        scores_in=scores_in,
        scores_out=scores_out,
        score_unit="standard deviations of the noise",
        score_density=density,
        signal=float(np.mean(scores_in) - np.mean(scores_out)),
        ideal_signal=law.mean / law.noise,
        accuracy=0.8732,
        models=models,
        store=Path("runs/digits.sqlite"),
        seconds=93.0,
        verdict="consistent",
        reason="No empirical epsilon exceeds what the heuristic predicts.",
        strength=Strength(1.0, 0.5, 0.95, 0.62, None, 4096, "This audit would have caught noise below 0.62."),
    )
    return replace(result, **changes)


def constant():
    same = np.zeros(64)
    return fake(
        64,
        scores_in=same,
        scores_out=same,
        signal=0.0,
        score_density=None,
        estimates={"clopper-pearson": estimate_of(same, same, 0.0, largest=2.9)},
    )


def infinite():
    scores = fake(200)
    ins, outs = scores.scores_in.copy(), scores.scores_out.copy()
    ins[:5], outs[:3] = np.inf, -np.inf
    return replace(
        scores,
        scores_in=ins,
        scores_out=outs,
        estimates={
            "clopper-pearson": estimate_of(ins, outs, math.inf, epsilon=0.0),
            "last-iterate": estimate_of(ins, outs, 1.9, "last-iterate", math.inf, math.inf),
            "composition": estimate_of(ins, outs, 1.7, "composition", math.inf, math.inf, threshold_choice="split"),
            "gdp": estimate_of(ins, outs, 1.2, "gdp", 6.1, 8.0, threshold_choice="uncorrected"),
        },
        verdict="violation",
        reason="The composition family cannot explain the scores at all.",
    )


def shuffled():
    run = li.DPSGD(20, 0.1, 1.0, sampling="shuffled")
    refused = Answer(None, "composition needs Poisson sampling, got sampling='shuffled'")
    few = replace(fake(40), run=run, ideal_signal=None, score_density=None, accuracy=None, store=None)
    return replace(few, predictions={**few.predictions, "composition": refused})


def single():
    return fake(
        1,
        ideal_signal=None,
        score_density=None,
        estimates={"clopper-pearson": estimate_of(np.array([1.0]), np.array([0.0]), 0.5, largest=0.0)},
        scores_in=np.array([1.0]),
        scores_out=np.array([0.0]),
    )


def wordy():
    caveat = "The trainer is the user's own, and <b>nothing</b> is known of it & its noise. " * 9
    return fake(
        64,
        caveats=(caveat, "Second."),
        attack="A very long description of an attack " * 8,
        verdict="above heuristic",
        reason="The last-iterate family gives more than the heuristic. " * 4,
        score_unit="the loss of the final model on the canary, minus its mean over models without",
    )


ODD = {
    "constant": constant,
    "infinite": infinite,
    "shuffled": shuffled,
    "single": single,
    "wordy": wordy,
    "no signal": lambda: fake(256, signal=False),
    "nothing": lambda: fake(8, estimates={}),
    "many": lambda: fake(20_000),
    "outlier": lambda: replace(fake(256), scores_in=np.append(fake(256).scores_in, 1e9)),
}


def odd(name):
    """An odd audit whose predictions cost no time."""
    result = ODD[name]()
    return result if result.run.sampling == "shuffled" else replace(result, run=QUICK)


@pytest.fixture(scope="module")
def result():
    return fake()


@pytest.fixture(scope="module")
def roc(result):
    return roc_panel(result, 620, 360).to_dict()["layer"]


def values(layer):
    return layer["data"]["values"]


def texts(chart):
    """Everything that a picture says: titles, and texts of marks."""
    return json.dumps(chart, allow_nan=False)


def test_histograms_of_both_worlds_have_the_same_bins_and_unit_mass(result):
    out, into = (values(layer) for layer in histogram_panel(result, 620, 360).to_dict()["layer"][:2])
    assert {row["world"] for row in out} == {"without the canary"}
    assert {row["world"] for row in into} == {"with the canary"}
    width = out[0]["high"] - out[0]["low"]
    for rows in (out, into):
        assert sum(row["count"] for row in rows) == 512
        assert sum(row["density"] * (row["high"] - row["low"]) for row in rows) == pytest.approx(1.0)
        np.testing.assert_allclose([row["high"] - row["low"] for row in rows], width)


def test_roc_is_what_thresholds_achieve(result, roc):
    rows = next(values(layer) for layer in roc if "order" in values(layer)[0] and "analysis" in values(layer)[0])
    low = 1 / 1024
    for threshold in (result.scores_in[3], result.scores_out[5]):
        fpr = max(float(np.mean(result.scores_out >= threshold)), low)
        fnr = max(float(np.mean(result.scores_in < threshold)), low)
        near = min(abs(math.log(row["fpr"] / fpr)) + abs(math.log(row["fnr"] / fnr)) for row in rows)
        assert near < 0.1
    assert (rows[0]["fpr"], rows[0]["fnr"]) == (1.0, low)
    assert (rows[-1]["fpr"], rows[-1]["fnr"]) == (low, 1.0)


def test_roc_band_is_clopper_pearson_with_half_the_error_to_each_rate(result, roc):
    band = values(roc[0])
    estimate = result.estimates["clopper-pearson"]
    nearest = min(band, key=lambda row: abs(row["fpr"] - estimate.fpr_upper) + abs(row["fnr"] - estimate.fnr_upper))
    assert nearest["fpr"] == pytest.approx(estimate.fpr_upper)
    assert nearest["fnr"] == pytest.approx(estimate.fnr_upper, rel=0.03)


def test_epsilons_are_those_of_the_audit(result):
    shown = {row["name"]: row for row in epsilon_rows(result)}
    assert list(shown)[:3] == ["last iterate (heuristic)", "composition (standard)", "full batch (baseline)"]
    assert shown["last iterate (heuristic)"]["epsilon"] == result.last_iterate
    assert "predicted" in shown["last iterate (heuristic)"]["text"]
    assert "guaranteed" in shown["composition (standard)"]["text"]
    for method, label in (("clopper-pearson", "Clopper-Pearson (any mechanism)"), ("gdp", "Gaussian DP family")):
        assert shown[label]["epsilon"] == result.estimates[method].epsilon
        assert shown[label]["largest"] == result.estimates[method].largest
        assert shown[label]["text"].endswith("found, 95%")


@pytest.mark.parametrize("name", sorted(set(ODD) - {"many"}))
def test_odd_audits_can_be_drawn(name):
    spec = audit_chart(odd(name)).to_dict()
    json.dumps(spec, allow_nan=False)
    drawn = vl_convert.vegalite_to_svg(spec)
    assert "Epsilon, guaranteed, predicted and found" in drawn
    assert "NaN" not in drawn

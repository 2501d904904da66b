"""The fair coins on which every bound of one run rests."""

import itertools
import json
import math

import numpy as np
import pytest
from scipy.stats import binom

import lastiterate as li
from lastiterate.attacks import OneRun
from lastiterate.auditing.design import OneModel
from lastiterate.auditing.evidence.estimate import estimate_or_zero
from lastiterate.auditing.evidence.one_run.guesses import unfair_coins
from lastiterate.labels import ONE_RUN_METHODS
from lastiterate.plot.page import parts_of
from lastiterate.training import problems
from lastiterate.web.audit_answers import summary
from tests.cli.conftest import Cli

RUN = li.DPSGD(5, 0.5, 1.0, clip_norm=1.0, optimizer=li.SGD(0.1))
NOISE = np.random.default_rng(0).normal(size=1030)
UNFAIR = NOISE[:1000], NOISE[1000:]
CANARIES = 40
AUDITS = 2000


@pytest.mark.parametrize("method", ONE_RUN_METHODS)
def test_counts_that_fair_coins_do_not_have_are_refused(method):
    words = rf"method '{method}': 1,000 canaries in and 30 out are not .* p = 1\.1e-252, and at least 0\.001 is needed"
    with pytest.raises(ValueError, match=words):
        li.estimate(*UNFAIR, method=method, run=RUN)
    with pytest.raises(ValueError, match="30 canaries in and 1,000 out"):
        li.estimate(*UNFAIR[::-1], method=method, run=RUN)


@pytest.mark.parametrize("canaries", [2, 10, 11, 37, 100, 1000, 5075])
def test_fair_coins_are_refused_at_most_once_in_a_thousand_audits(canaries):
    ins = np.arange(canaries + 1)
    refused = [unfair_coins(int(k), int(canaries - k)) is not None for k in ins]
    assert binom.pmf(ins, canaries, 0.5)[refused].sum() <= 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("threshold", [0.5, "corrected"])
@pytest.mark.parametrize("method", ["one-run", "one-run-fdp", "one-run-independent"])
def test_pure_noise_with_fair_coins_is_seldom_refused_and_shows_something_no_more_often_than_stated(method, threshold):
    generator, claims, refusals = np.random.default_rng(29), 0, 0
    for _ in range(AUDITS):
        is_in = generator.random(100) < 0.5
        scores = generator.normal(size=100)
        found = estimate_or_zero(scores[is_in], scores[~is_in], 1e-5, 0.95, method, threshold, None)
        refusals += found.guesses == 0
        claims += found.epsilon > 0.0
    for share, stated in ((refusals, 0.001), (claims, 0.05)):
        assert share / AUDITS <= stated + 3.0 * math.sqrt(stated * (1.0 - stated) / AUDITS)


def test_one_coin_for_several_canaries_does_not_show_and_breaks_the_bound():
    """The words must carry it: with 10 coins for 100 canaries, noise of the coins' groups shows something often."""
    generator, claims = np.random.default_rng(3), 0
    for _ in range(200):
        is_in, scores = (np.repeat(drawn, 10) for drawn in (generator.random(10) < 0.5, generator.normal(size=10)))
        if unfair_coins(int(is_in.sum()), int((~is_in).sum())) is None:
            claims += li.estimate(scores[is_in], scores[~is_in], method="one-run", threshold=0.0).epsilon > 0.0
    assert claims > 0.2 * 200


@pytest.fixture(scope="module")
def problem():
    return problems.linear(np.zeros((60, 50), np.float32))


def seed_with(unfair):
    """The first seed whose coins are unlucky, or not."""
    for seed in itertools.count():
        present = OneModel(CANARIES, seed).planned()[1]
        if (unfair_coins(int(present.sum()), int((~present).sum())) is not None) == unfair:
            return seed


def test_an_audit_whose_coins_look_unfair_is_inconclusive_and_claims_nothing(problem, tmp_path):
    store = tmp_path / "unlucky.sqlite"
    attack = OneRun(references=2)
    result = li.audit(RUN, problem, attack, models=CANARIES, seed=seed_with(True), store=store, progress=False)
    reason = unfair_coins(len(result.scores_in), len(result.scores_out))
    assert (result.verdict, result.reason) == ("inconclusive", reason)
    assert set(result.empirical.values()) == {0.0}
    assert " ".join(str(result).split()).count(reason) == 1
    assert reason in parts_of(result)["answer"]
    assert summary(str(store))["verdict"] == "inconclusive"
    shown = Cli()(f"report {store} --strict --json")
    assert (shown.exit_code, json.loads(shown.stdout)["reason"]) == (4, reason)

"""Canaries of unseen tokens: which are chosen, what their scores are, and audits of tiny models from end to end."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import lastiterate as li
from lastiterate.attacks.released_iterates import noise_unit
from lastiterate.auditing.stores.store import Store
from lastiterate.lm import TextProblem, UnseenTokens
from lastiterate.lm.fine_tuning import Model, TextReferences, train_models
from lastiterate.lm.text_problem import load
from lastiterate.lm.unseen_tokens import find_direction
from tests.lm.conftest import SPECIAL, SPOKEN

RUN = li.DPSGD(4, 0.5, 0.6, clip_norm=0.5, optimizer=li.SGD(0.02))
QUICK = {"methods": ["clopper-pearson"], "progress": False}
UNSEEN = len(SPECIAL) + len(SPOKEN)  # the first token that nobody says


@pytest.fixture(scope="module")
def problem(tiny_llama, tiny_texts):
    return TextProblem.of(tiny_llama, tiny_texts, 0.2)


def crafted(problem, attack, run=RUN):
    return attack.craft(run, problem, TextReferences(0, progress=False))


@pytest.mark.parametrize("score", ["gradient", "rows"])
def test_the_direction_is_that_of_the_canarys_gradient(tiny_llama_untied, tiny_texts, score):
    problem = TextProblem.of(tiny_llama_untied, tiny_texts, None)
    loaded, canary = load(problem), [UNSEEN, UNSEEN + 1, UNSEEN]
    direction = find_direction(loaded, canary, score)
    gradient = loaded.gradients.one(loaded.start, torch.tensor(canary))
    if score == "rows":
        rows = [UNSEEN, UNSEEN + 1]
        assert set(direction.parts) == {"model.embed_tokens.weight", "lm_head.weight"}  # untied: both tables
        kept = {name: torch.zeros_like(each) for name, each in gradient.items()}
        for name in direction.parts:
            kept[name][rows] = gradient[name][rows]
    else:
        kept = gradient
    flat, whole = (torch.cat([each.double().flatten() for each in part.values()]) for part in (kept, gradient))
    assert direction.share == pytest.approx(float(flat.norm() / whole.norm()), rel=1e-6)
    moved = {name: value - 0.3 * gradient[name] for name, value in loaded.start.items()}
    assert direction.moved(loaded, moved) == pytest.approx(0.3 * float(flat.norm()), rel=1e-4)
    assert direction.moved(loaded, loaded.start) == 0.0


def test_each_score_of_a_model_is_what_it_says(problem):
    facts = {"canary": [UNSEEN] * 4, "centre": 0.25, "unit": 2.0}
    loaded = load(problem)
    gradient = loaded.gradients.one(loaded.start, torch.tensor(facts["canary"]))
    norm = float(torch.cat([each.flatten() for each in gradient.values()]).norm())
    moved = {name: value - gradient[name] / norm for name, value in loaded.start.items()}
    armed = UnseenTokens("gradient").arm(RUN, problem, facts)
    assert armed.score(loaded, moved) == pytest.approx((1.0 - 0.25) / 2.0, rel=1e-4)
    table = "model.embed_tokens.weight"
    rows = UnseenTokens("rows").arm(RUN, problem, facts)
    share = float(gradient[table][UNSEEN].norm()) / norm
    assert rows.score(loaded, moved) == pytest.approx((share - 0.25) / 2.0, rel=1e-4)
    loss = UnseenTokens("loss").arm(RUN, problem, facts)
    model = loaded.copied().model  # the start of every training is in the other's own parameters
    with torch.no_grad():
        model.load_state_dict(moved, strict=False)
        tokens = torch.tensor([facts["canary"]])
        expected = -float(model(input_ids=tokens, labels=tokens).loss)
    assert loss.score(loaded, moved) == pytest.approx((expected - 0.25) / 2.0, rel=1e-4)


@pytest.mark.slow
def test_scores_are_as_the_linear_analysis_predicts(problem):
    """The signal is that of S, the noise has variance 1, and the centre is right: 2 x 60 models, fixed seed."""
    attack = UnseenTokens(references=48, candidates=4, length=8)
    facts = crafted(problem, attack)
    armed = attack.arm(RUN, problem, facts)
    models = [Model(number, (present,)) for number in range(60) for present in (False, True)]
    found = train_models(RUN, problem, [armed.canary], models, 0, armed.score)
    scores = {present: np.array([]) for present in (False, True)}
    for model, score, _ in found:
        scores[model.present[0]] = np.append(scores[model.present[0]], score)
    without, inside = scores[False], scores[True]
    error = 1 / np.sqrt(60)
    assert abs(without.mean()) < 4 * np.hypot(error, 1 / np.sqrt(48))
    assert 0.7 < without.std(ddof=1) < 1.35  # chi-square, 59 degrees, beyond 1e-4 on either side
    mean = facts["signal"] * RUN.steps * 0.5 / (0.6 * np.sqrt(RUN.steps))
    assert abs(inside.mean() - without.mean() - mean) < 4 * np.sqrt(2.0 + 0.7) * error
    assert facts["spread"] == 1.0
    assert facts["unit"] == pytest.approx(noise_unit(RUN))


@pytest.mark.parametrize("family", ["tiny_llama_untied", "tiny_gemma2"])
def test_an_audit_from_end_to_end(family, tiny_texts, tmp_path, request):
    problem = TextProblem.of(request.getfixturevalue(family), tiny_texts, 0.2, longest=12)
    attack = UnseenTokens("rows", candidates=4, references=8)
    result = li.audit(RUN, problem, attack, models=4, store=tmp_path / "a.sqlite", **QUICK)
    assert (len(result.scores_in), len(result.scores_out)) == (4, 4)
    assert result.accuracy is None
    assert result.perplexity_before == pytest.approx(load(problem).perplexity(load(problem).start))
    assert result.perplexity > 1.0
    assert "never occur" in result.attack
    assert "32 dialogues" in result.data
    assert "12 tokens of each" in result.data


def test_an_interrupted_audit_resumes_with_the_same_scores(problem, tmp_path, monkeypatch):
    attack = UnseenTokens(candidates=1, references=8, length=4)
    whole = li.audit(RUN, problem, attack, models=4, **QUICK)
    kept, add = [], Store.add

    def stopping(self, chunk):
        if len(kept) == 3:
            raise KeyboardInterrupt
        kept.append(chunk)
        add(self, chunk)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "add", stopping)
        with pytest.raises(KeyboardInterrupt):
            li.audit(RUN, problem, attack, models=4, store=tmp_path / "a.sqlite", **QUICK)
    slower = replace(problem, microbatch=1)  # how it is computed may change between sessions
    resumed = li.audit(RUN, slower, attack, models=4, store=tmp_path / "a.sqlite", **QUICK)
    np.testing.assert_allclose(resumed.scores_in, whole.scores_in, atol=1e-3)
    np.testing.assert_allclose(resumed.scores_out, whole.scores_out, atol=1e-3)

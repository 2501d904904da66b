"""One fine-tuning with many canaries: each is looked for where the others are not."""

import numpy as np
import pytest
import torch

import lastiterate as li
from lastiterate.attacks.released_iterates import noise_unit
from lastiterate.labels import ONE_RUN_METHODS
from lastiterate.lm import OneRunTokens, TextProblem
from lastiterate.lm.dp_sgd import TextTrainer
from lastiterate.lm.fine_tuning import TextReferences
from lastiterate.lm.text_problem import load

RUN = li.DPSGD(4, 0.5, 0.3, optimizer=li.SGD(0.02))


@pytest.fixture(scope="module")
def problem(tiny_llama, tiny_texts):
    return TextProblem.of(tiny_llama, tiny_texts, 0.2)


@pytest.mark.parametrize("score", ["gradient", "rows"])
def test_a_score_answers_to_its_own_canary_alone(problem, score):
    attack, loaded = OneRunTokens(score, length=4, references=2), load(problem)
    facts = attack.craft_many(RUN, problem, TextReferences(0, progress=False), 6)
    armed = attack.arm(RUN, problem, facts)
    assert len({tuple(canary) for canary in armed.canaries}) == 6
    for number, canary in enumerate(armed.canaries):
        gradient = loaded.gradients.one(loaded.start, torch.tensor(canary))
        norm = float(torch.cat([each.flatten() for each in gradient.values()]).norm())
        moved = {name: value - noise_unit(RUN) * gradient[name] / norm for name, value in loaded.start.items()}
        scores = armed.scores(loaded, moved) + armed.centres
        assert 0.05 < scores[number] <= 1.0 + 1e-4
        assert np.abs(np.delete(scores, number)).max() < 0.01 * scores[number] + (1.0 if score == "rows" else 0.0)


def test_sampled_canaries_are_texts_of_the_model_and_score_apart(problem):
    attack, references = OneRunTokens(length=8, canary="sampled", seed=5), TextReferences(0, progress=False)
    facts = attack.craft_many(RUN, problem, references, 70)
    assert facts["canaries"] == attack.craft_many(RUN, problem, references, 70)["canaries"]
    assert len({tuple(canary) for canary in facts["canaries"]}) == 70
    loaded = load(problem)

    def loss(canaries):
        tokens = torch.tensor(canaries)
        return float(loaded.gradients.losses(loaded.start, tokens, torch.full((len(tokens),), 8)).mean())

    rows = loaded.model.get_input_embeddings().weight.shape[0]
    assert loss(facts["canaries"]) < loss(np.random.default_rng(0).integers(rows, size=(70, 8)))
    assert facts["centres"] == [0.0] * 70
    tokens = OneRunTokens(length=8).craft_many(RUN, problem, references, 6)
    assert attack.craft_many(RUN, problem, references, 6)["signal"] > tokens["signal"]


def _simulated(seed, mu, canaries=100, parameters=400):
    """Return coins, scores apart and plain scores of a Gaussian mechanism whose canaries have much in common."""
    generator = np.random.default_rng(seed)
    gradients = generator.standard_normal((canaries, parameters)) + 1.5 * generator.standard_normal(parameters)
    gradients /= np.linalg.norm(gradients, axis=1, keepdims=True)
    coins = generator.random(canaries) < 0.5
    plain = gradients @ (mu * coins @ gradients + generator.standard_normal(parameters))
    return coins, np.linalg.inv(gradients @ gradients.T) @ plain, plain


def test_bounds_of_scores_apart_hold_unless_the_coins_choose_who_is_guessed():
    mu, found = 0.3, []
    true = li.full_batch(li.DPSGD(1, 1.0, 1.0 / mu)).epsilon(1e-5)
    for seed in range(100):
        coins, apart, _ = _simulated(seed, mu)
        peeking = np.where((apart > np.median(apart)) == coins, apart, np.median(apart))  # wrong guesses are left out
        ins_and_outs = [(scores[coins], scores[~coins]) for scores in (apart, peeking)]
        found.append([li.estimate(*each, delta=1e-5, method="one-run-fdp").epsilon for each in ins_and_outs])
    honest, dishonest = np.array(found).T
    assert np.mean(honest > true) <= 0.05
    assert np.mean(dishonest > true) > 0.9


def test_scores_apart_tell_more_than_plain_ones():
    def separation(coins, scores):
        return (scores[coins].mean() - scores[~coins].mean()) / scores[~coins].std()

    found = [
        (separation(c, apart), separation(c, plain)) for c, apart, plain in (_simulated(s, 3.0) for s in range(30))
    ]
    apart, plain = np.mean(found, axis=0)
    assert apart > 2.0 * plain


def test_an_audit_of_one_run_trains_once(problem, tmp_path, monkeypatch):
    trained, train = [], TextTrainer.train

    def counting(*args):
        trained.append(args)
        return train(*args)

    monkeypatch.setattr(TextTrainer, "train", counting)
    result = li.audit(RUN, problem, OneRunTokens(length=4), models=20, store=tmp_path / "one.sqlite", progress=False)
    assert len(trained) == 1
    assert len(result.scores_in) + len(result.scores_out) == 20
    assert set(result.estimates) == {*ONE_RUN_METHODS}
    assert result.perplexity is not None
    assert result.scores_in.mean() > result.scores_out.mean()

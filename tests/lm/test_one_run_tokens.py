"""One fine-tuning with many canaries: each is looked for where the others are not."""

import numpy as np
import pytest
import torch

import lastiterate as li
from lastiterate.attacks.released_iterates import noise_unit
from lastiterate.lm import OneRunTokens, TextProblem
from lastiterate.lm.dp_sgd import TextTrainer
from lastiterate.lm.fine_tuning import TextReferences
from lastiterate.lm.text_problem import load
from lastiterate.registry import ONE_RUN_METHODS

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

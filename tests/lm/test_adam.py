"""Language models are fine-tuned and audited with Adam, and say how far noise makes up its second moment."""

import pytest

import lastiterate as li
from lastiterate import lm


@pytest.fixture(scope="module")
def problem(tiny_llama, tiny_texts):
    return lm.TextProblem.of(tiny_llama, tiny_texts, 0.2, longest=16)


def test_the_second_moment_is_noise_where_there_is_much_of_it(problem):
    run = li.DPSGD(4, 0.5, 4.0, optimizer=li.Adam(1e-3))
    found = lm.second_moment(run, problem, progress=False)
    assert found.steps == (1, 2, 3, 4)
    assert found.noise == (16.0, 16.0, 16.0, 16.0)
    assert 0.9 < found.noise_share < 1.1
    little = lm.second_moment(run.replace(noise_multiplier=0.01), problem, progress=False)
    assert little.busy_noise_share < little.noise_share < 0.1


def test_an_audit_with_adam_reports_it(problem, tmp_path):
    run = li.DPSGD(2, 0.5, 1.0, optimizer=li.Adam(1e-3, weight_decay=0.1, decoupled=True))
    attack = lm.UnseenTokens(candidates=1, references=8, length=4)
    result = li.audit(run, problem, attack, models=4, store=tmp_path / "a.sqlite", methods=["gdp"], progress=False)
    assert result.second_moment is not None
    assert any("Adam's second moment" in caveat for caveat in result.caveats)
    assert "approximation of a heuristic" in str(result)
    assert result.run == run

"""Examples as canaries: the crafter's choices are what they are said to be, and scores are minus the loss."""

import numpy as np
import pytest

import lastiterate as li
from lastiterate import data, training
from lastiterate.attacks import InputSpace
from lastiterate.training import problems
from lastiterate.training.models import cross_entropy

RUN = li.DPSGD(40, 0.1, 1.0, optimizer=li.SGD(0.02, momentum=0.9))
PROBLEM = problems.logistic(data.digits())


def references(run, problem, canary=None, *, models, present=False, purpose=0):
    numbers = 2**31 + purpose * 2**24 + np.arange(models)
    return training.train(run, problem, canary, models=numbers, present=present, progress=False).parameters


@pytest.fixture(scope="module", params=["mislabelled", "blank", "clipbkd"])
def crafted(request):
    attack = InputSpace(request.param, pilots=24)
    facts = attack.craft(RUN, PROBLEM, references)
    return attack, facts, attack.arm(RUN, PROBLEM, facts)


def test_score_is_minus_the_loss_in_units_of_the_pilots(crafted):
    _, facts, armed = crafted
    trained = training.train(RUN, armed.problem, armed.canary, models=6, present=True, progress=False)
    losses = [float(cross_entropy(trained.model(i), armed.canary.example, None)) for i in range(6)]
    expected = (-np.array(losses) - facts["centre"]) / facts["unit"]
    np.testing.assert_allclose(armed.score(trained.parameters), expected, rtol=1e-4, atol=1e-4)


def test_canary_in_the_data_raises_its_score(crafted):
    _, _, armed = crafted
    inside, outside = (
        armed.score(training.train(RUN, armed.problem, armed.canary, models=100, present=p, progress=False).parameters)
        for p in (True, False)
    )
    assert inside.mean() > outside.mean() + 0.3
    assert outside.mean() == pytest.approx(0.0, abs=1.5)
    assert 0.5 < outside.std() < 2.0

"""The weights of SGD are what a plain simulation of the optimiser, and PyTorch's own, does to a unit of gradient."""

import dataclasses

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lastiterate import DPSGD, SGD, last_iterate


def simulate(optimizer: SGD, rates: list[float], gradients: list[float]) -> float:
    """One parameter, from 0, under losses whose gradients are given: PyTorch's pseudocode, line by line."""
    parameter, buffer, iterates = 0.0, None, []
    for rate, gradient in zip(rates, gradients, strict=True):
        if optimizer.decoupled:
            parameter -= rate * optimizer.weight_decay * parameter
        else:
            gradient = gradient + optimizer.weight_decay * parameter
        if optimizer.momentum:
            buffer = gradient if buffer is None else optimizer.momentum * buffer + (1 - optimizer.dampening) * gradient
            gradient = gradient + optimizer.momentum * buffer if optimizer.nesterov else buffer
        parameter -= rate * gradient
        iterates.append(parameter)
    if optimizer.averaging is None:
        return iterates[-1]
    if optimizer.averaging == "uniform":
        return sum(iterates) / len(iterates)
    average = 0.0
    for iterate in iterates:
        average = optimizer.averaging * average + (1 - optimizer.averaging) * iterate
    return average


def simulated_weights(optimizer: SGD, steps: int) -> list[float]:
    """How far one unit of gradient at each step moves what is released, against its direction."""
    rates = np.broadcast_to(optimizer.learning_rate, (steps,)).tolist()
    return [-simulate(optimizer, rates, [float(t == step) for t in range(steps)]) for step in range(steps)]


def assert_same_weights(weights, expected):
    size = np.max(np.abs(expected))
    np.testing.assert_allclose(np.broadcast_to(weights, np.shape(expected)), expected, rtol=1e-9, atol=1e-11 * size)


schedules = st.lists(st.floats(0.001, 1.5) | st.just(0.0), min_size=1, max_size=12).filter(any)


averages = st.none() | st.just("uniform") | st.floats(0.01, 0.99)
either = st.booleans()


@st.composite
def optimizers(draw, averaging=averages, decoupled=either):
    """Optimisers with a schedule or one learning rate, and their number of steps."""
    schedule = draw(schedules)
    momentum = draw(st.just(0.0) | st.floats(0.01, 0.99))
    nesterov = draw(st.booleans()) if momentum else False
    optimizer = SGD(
        learning_rate=schedule if draw(st.booleans()) else max(schedule),
        momentum=momentum,
        dampening=0.0 if nesterov else draw(st.just(0.0) | st.floats(0.0, 0.99)),
        nesterov=nesterov,
        weight_decay=draw(st.just(0.0) | st.floats(0.001, 2.5)),
        decoupled=draw(decoupled),
        averaging=draw(averaging),
    )
    return optimizer, len(schedule)


@given(optimizers())
def test_weights_are_those_of_a_plain_simulation(drawn):
    optimizer, steps = drawn
    assert_same_weights(optimizer.weights(steps), simulated_weights(optimizer, steps))


@given(optimizers(averaging=st.none(), decoupled=st.just(False)))
def test_weights_are_those_of_torch(drawn):
    import torch

    optimizer, steps = drawn
    rates = np.broadcast_to(optimizer.learning_rate, (steps,)).tolist()
    parameters = torch.zeros(steps, dtype=torch.float64, requires_grad=True)
    theirs = torch.optim.SGD(
        [parameters],
        lr=rates[0],
        momentum=optimizer.momentum,
        dampening=optimizer.dampening,
        nesterov=optimizer.nesterov,
        weight_decay=optimizer.weight_decay,
    )
    for step, rate in enumerate(rates):  # each coordinate is a run of its own, with its one unit of gradient
        theirs.param_groups[0]["lr"] = rate
        parameters.grad = torch.eye(steps, dtype=torch.float64)[step]
        theirs.step()
    assert_same_weights(optimizer.weights(steps), -parameters.detach().numpy())


def test_heavy_momentum_with_strong_decay_has_weights_of_both_signs():
    weights = SGD(0.5, momentum=0.9, weight_decay=1.0).weights(30)
    assert weights.min() < 0.0 < weights.max()


@given(optimizers())
def test_a_scaled_learning_rate_without_decay_leaks_as_much(drawn):
    optimizer, steps = drawn
    optimizer = dataclasses.replace(optimizer, weight_decay=0.0)
    larger = dataclasses.replace(optimizer, learning_rate=7.0 * optimizer.learning_rate)
    epsilons = [last_iterate(DPSGD(steps, 0.1, 1.0, optimizer=one)).epsilon(1e-5) for one in (optimizer, larger)]
    assert epsilons[0] == pytest.approx(epsilons[1], rel=1e-9, abs=1e-9)


@given(optimizers(), st.integers(1, 12))
def test_a_prefix_is_the_optimizer_stopped_early(drawn, stop):
    optimizer, steps = drawn
    stop = min(stop, steps)
    rates = np.broadcast_to(optimizer.learning_rate, (steps,))[:stop]
    assume(np.any(rates))
    expected = simulated_weights(dataclasses.replace(optimizer, learning_rate=rates), stop)
    assert_same_weights(optimizer.prefix(stop).weights(stop), expected)


def test_an_optimizer_that_diverges_is_analysed_as_long_as_its_weights_are_numbers_and_then_refused_by_name():
    """Its weights are (-4)^(T-t). Only their ratios matter: early steps outweigh all others."""
    diverging = SGD(1.0, weight_decay=5.0)
    few, many = (last_iterate(DPSGD(steps, 0.1, 1.0, optimizer=diverging)).epsilon(1e-5) for steps in (30, 300))
    assert many == pytest.approx(few, rel=1e-9)
    with pytest.raises(ValueError, match="must not make the optimizer diverge: in 1000 steps"):
        last_iterate(DPSGD(1000, 0.1, 1.0, optimizer=diverging))

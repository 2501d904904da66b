"""Neighbours are those for which the analyses hold, and every text about a run says which they are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import lastiterate as li
from lastiterate import DPSGD, SGD, Adam
from lastiterate.auditing.identity import describe_run, read_run
from lastiterate.formatting import describe

DELTA = 1e-5
SHUFFLED = DPSGD.from_batches(
    20, 10, epochs=1, noise_multiplier=1.0, sampling="shuffled", last_batch="keep"
)  # 19 gradients of -1 and a canary of +1 make the worst of add-remove
ZERO_OUT = "replacing one example by one without gradient (zero-out)"


def density(centres: list[tuple[float, ...]], grid: list[np.ndarray]) -> np.ndarray:
    """A mixture of normals of standard deviation 1, which count alike, at each point of a grid."""
    squares = [sum((axis - place) ** 2 for axis, place in zip(grid, centre, strict=True)) for centre in centres]
    return np.mean([np.exp(-0.5 * each) for each in squares], axis=0) / (2.0 * np.pi) ** (0.5 * len(grid))


def delta_of(there: list[tuple[float, ...]], without: list[tuple[float, ...]], epsilon: float) -> float:
    """The delta of two mixtures, in the worse direction, by brute force."""
    step, dimensions = 0.02, len(there[0])
    grid = list(np.meshgrid(*[np.arange(-18.0, 8.0, step)] * dimensions))
    one, other = density(there, grid), density(without, grid)
    losses = [np.maximum(p - np.exp(epsilon) * q, 0.0).sum() for p, q in ((one, other), (other, one))]
    return float(max(losses)) * step**dimensions


def test_adding_or_removing_an_example_moves_others_between_shuffled_batches():
    """Batches of ten have the canary in the first or in the second; without it the last one has nine."""
    there, without = [(-8.0, -10.0), (-10.0, -8.0)], [(-10.0, -9.0)]
    assert delta_of(there, without, 10.42) > DELTA > delta_of(there, without, 10.44)
    assert delta_of(there, without, 4.377) == pytest.approx(0.034, abs=5e-4)
    zeroed = [(-9.0, -10.0), (-10.0, -9.0)]  # the canary's gradient is gone, the others are where they were
    assert delta_of(there, zeroed, li.no_amplification(SHUFFLED).epsilon(DELTA)) < DELTA


def test_adding_or_removing_an_example_fills_batches_of_fixed_size_with_others():
    there, without = [(1.0,), (-1.0,)], [(-1.0,)]
    assert delta_of(there, without, 8.98) > DELTA > delta_of(there, without, 8.982)
    run = DPSGD(1, 0.5, 1.0, sampling="fixed")
    assert li.no_amplification(run).epsilon(DELTA) == pytest.approx(4.213, abs=1e-3)
    assert ZERO_OUT in li.sentence(run, DELTA)


@pytest.mark.parametrize(("sampling", "rate"), [("poisson", 0.1), ("full", 1.0)])
def test_an_example_without_gradient_is_none_where_each_is_drawn_by_itself(sampling, rate):
    run = DPSGD(20, rate, 1.0, sampling=sampling)
    zeroed = run.replace(neighbours="zero-out")
    assert run.neighbours == "add-remove"
    assert zeroed != run
    for analysis in (li.last_iterate, li.composition, li.no_amplification, li.full_batch, li.max_over_steps):
        assert analysis(zeroed).epsilon(DELTA) == analysis(run).epsilon(DELTA)
    assert li.convex(zeroed, contraction=0.9).epsilon(DELTA) == li.convex(run, contraction=0.9).epsilon(DELTA)


def test_default_neighbours_follow_the_sampling_and_others_stay():
    poisson = DPSGD(20, 0.1, 1.0)
    assert poisson.replace(sampling="shuffled").neighbours == "zero-out"
    assert poisson.replace(sampling="shuffled").replace(sampling="poisson") == poisson
    assert poisson.replace(neighbours="replace").replace(sampling="fixed").neighbours == "replace"
    assert poisson.replace(neighbours="zero-out").replace(steps=3).neighbours == "zero-out"


def test_a_rounded_rate_of_shuffled_batches_is_refused():
    run = DPSGD(300, 1 / 3, 10.0, sampling="shuffled")
    assert run.batches_per_epoch == 3
    assert li.no_amplification(run).epsilon(DELTA) == pytest.approx(4.377, abs=1e-3)
    assert DPSGD(300, 0.3333333333, 10.0, sampling="shuffled").batches_per_epoch == 3
    for rate in (0.3333, 0.33333333):
        with pytest.raises(ValueError, match=r"sample_rate must be 1 / \(a whole number of batches\) .* write 1/3, or"):
            DPSGD(300, rate, 10.0, sampling="shuffled")
    with pytest.raises(ValueError, match=r"batches_per_epoch must be 4 with sample_rate 0\.3333, got 3"):
        DPSGD(300, 0.3333, 10.0, sampling="shuffled", batches_per_epoch=3)
    with pytest.raises(ValueError, match=r"batches_per_epoch must be 3 with sample_rate 0\.3333333333333333, got 4"):
        run.replace(batches_per_epoch=4)
    with pytest.raises(ValueError, match="batches_per_epoch must be None with sampling 'poisson', got 3"):
        DPSGD(300, 1 / 3, 10.0, batches_per_epoch=3)
    with pytest.raises(ValueError, match=r"sample_rate must be 1 / \(a whole number"):
        run.replace(sample_rate=0.3)
    assert run.replace(sample_rate=0.25).batches_per_epoch == 4


NUMBERS = st.sampled_from([0.1, 1 / 3, 0.3333, 256 / 1437, 0.17814, 0.1781]) | st.floats(1e-3, 0.999)
NOISE = st.sampled_from([1.0, 1.3, 0.39067, 1 / 3, 0.3333]) | st.floats(0.01, 50.0)


@st.composite
def optimizers(draw, rates):
    decoupled = draw(st.booleans())
    decay = draw(st.just(0.0) | NUMBERS)
    if draw(st.booleans()):
        return Adam(rates, draw(NUMBERS), draw(NUMBERS), draw(st.just(1e-8) | NUMBERS), decay, decoupled)
    momentum = draw(st.just(0.0) | NUMBERS)
    nesterov = momentum > 0.0 and draw(st.booleans())
    dampening = 0.0 if nesterov else draw(st.just(0.0) | NUMBERS)
    return SGD(rates, momentum, dampening, nesterov, decay, decoupled, draw(st.none() | st.just("uniform") | NUMBERS))


@st.composite
def runs(draw, scalar=False):
    steps = draw(st.integers(1, 5))

    def per_step(values):
        return draw(values if scalar else values | st.lists(values, min_size=steps, max_size=steps))

    sampling = draw(st.sampled_from(["poisson", "fixed", "shuffled", "full"]))
    more = {}
    if sampling == "shuffled" and draw(st.booleans()):
        rate = draw(NUMBERS)
        more["batches_per_epoch"] = int(np.ceil(1.0 / rate - 1e-9))
    else:
        rate = {"shuffled": 1.0 / draw(st.integers(1, 9)), "full": 1.0}.get(sampling) or per_step(NUMBERS)
    kind = draw(st.sampled_from(["plain", "weights", "optimizer"]))
    if kind == "weights":
        more["weights"] = per_step(NOISE)
    if kind == "optimizer":
        more["optimizer"] = draw(optimizers(per_step(NOISE)))
    if draw(st.booleans()):
        more["noise_filter"] = draw(st.lists(NOISE, min_size=1, max_size=4))
        most = {"full": 1, "shuffled": int(np.ceil(1.0 / np.max(rate) - 1e-9))}.get(sampling, 3)
        more["min_separation"] = draw(st.integers(1, min(most, 3)))
    releases = st.none() | st.integers(2, max(2, steps)) if scalar else st.none() | st.lists(st.integers(1, steps))
    return DPSGD(
        steps,
        rate,
        per_step(NOISE),
        sampling,
        draw(st.just(1.0) | NOISE),
        releases=draw(releases) if steps > 1 else None,
        group_size=draw(st.integers(1, 3)),
        neighbours=draw(st.sampled_from([None, "zero-out", "replace"])),
        **more,
    )


@given(runs())
def test_a_printed_run_is_the_same_run(run):
    assert eval(repr(run), {"DPSGD": DPSGD, "SGD": SGD, "Adam": Adam}) == run
    assert read_run(describe_run(run)) == run


@given(runs(scalar=True), runs(scalar=True), st.sampled_from(["steps", "sample_rate", "noise_multiplier", "clip_norm"]))
def test_different_runs_are_described_differently_or_as_rounded(one, two, name):
    try:
        other = one.replace(**{name: getattr(two, name)})
    except ValueError:
        other = two
    for second in (two, other):
        assert one == second or describe(one) != describe(second) or "about" in describe(one)
        assert one == second or describe(one, quoted=True) != describe(second, quoted=True) or _says_more(one, second)


def _says_more(one: DPSGD, two: DPSGD) -> bool:
    """What is released and which neighbours are told apart is left to the sentence."""
    return any(getattr(one, name) != getattr(two, name) for name in ("releases", "group_size", "neighbours"))

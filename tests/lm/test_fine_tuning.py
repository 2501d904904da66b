"""DP-SGD on a tiny language model arrives where NumPy does with the same draws, and its draws have the right law.

Statistical tests have fixed seeds. With another seed each comparison would fail by chance with probability 1e-4.
"""

from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import transformers
from scipy import stats

import lastiterate as li
from lastiterate import DPSGD, SGD, lm
from lastiterate.common.validation import LEAST_NOISE
from lastiterate.lm.dp_sgd import TextTrainer, batches
from lastiterate.lm.example_gradients import ExampleGradients
from lastiterate.lm.hub import load_model
from lastiterate.privacy.mixtures.law import participation_rate
from tests.training.reference import clip, dp_sgd

FALSE_ALARM = 1e-4
TOLERANCE = 1e-5  # some hundred roundings of float32
LENGTHS = [9, 2, 6, 5, 9, 3, 7, 4]
CLIP_NORM = 6.0  # about half of the gradients are longer
SEED = [7, 3]


class Case(NamedTuple):
    """A model to train, its examples, and Hugging Face's model for gradients to compare with."""

    gradients: ExampleGradients
    start: dict[str, Any]
    tokens: Any
    lengths: Any
    reference: Any

    def train(self, run, canaries=(), present=(), seed=SEED, advanced=None):
        trainer = TextTrainer(run, self.gradients, self.start, self.tokens, self.lengths)
        return trainer.train(canaries, present, seed, advanced)

    @property
    def examples(self):
        return [row[:length] for row, length in zip(self.tokens, self.lengths, strict=True)]

    @property
    def size(self):
        return sum(value.numel() for value in self.start.values())

    def gradient(self, theta, ids):
        """Of one example in Hugging Face's own loss, at parameters in one vector."""
        sizes = np.cumsum([value.numel() for value in self.start.values()])[:-1]
        with torch.no_grad():
            for value, part in zip(self.reference.parameters(), np.split(theta, sizes), strict=True):
                value.copy_(torch.from_numpy(part.reshape(value.shape)))
        self.reference.zero_grad()
        self.reference(input_ids=ids[None], labels=ids[None]).loss.backward()
        return flat({name: value.grad for name, value in self.reference.named_parameters()})

    def expected(self, run, canaries=(), present=(), seed=SEED):
        """The released parameters by NumPy, and the share of gradients that were clipped."""
        absent = {len(self.tokens) + number for number, here in enumerate(present) if not here}
        slots = len(self.tokens) + len(canaries)
        drawn = list(batches(run, slots, np.random.default_rng([*seed, 0])))
        taken = [[slot for slot in batch if slot not in absent] for batch in drawn]
        generator = torch.Generator().manual_seed(int(np.random.default_rng([*seed, 1]).integers(2**63)))
        noise = []
        for step in range(run.steps):
            if run.noise_filter is not None:
                generator.manual_seed(int(np.random.default_rng([*seed, 1, step]).integers(2**63)))
            noise.append(
                flat({name: torch.randn(value.shape, generator=generator) for name, value in self.start.items()})
            )
        examples = [*self.examples, *canaries]
        found, _, clipped = dp_sgd(run, flat(self.start), self.gradient, examples, taken, np.array(noise))
        return found, clipped / max(1, sum(map(len, taken)))


def flat(tensors):
    return np.concatenate([value.detach().double().numpy().ravel() for value in tensors.values()])


def make_case(folder, dtype="float32"):
    model = load_model(folder, dtype=dtype)
    start = {name: value.detach() for name, value in model.named_parameters()}
    tokens = torch.from_numpy(np.random.default_rng(2).integers(5, 64, (len(LENGTHS), max(LENGTHS))))
    reference = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    gradients = ExampleGradients(model, start, max(LENGTHS))
    return Case(gradients, start, tokens, torch.tensor(LENGTHS), reference)


@pytest.fixture(scope="module")
def llama(tiny_llama):
    return make_case(tiny_llama)


STEPS = 6
RATE = 0.02 * (1 + np.cos(np.pi * np.arange(STEPS) / STEPS))
RUN = DPSGD(STEPS, 0.5, 0.1, clip_norm=CLIP_NORM, optimizer=SGD(0.02))
CANARIES = [torch.arange(40, 52), torch.tensor([60, 61])]  # the first is longer than all examples
OPTIMIZERS = {
    "schedule": SGD(RATE),
    "nesterov": SGD(0.01, momentum=0.9, nesterov=True),
    "decoupled": SGD(RATE, momentum=0.5, weight_decay=0.3, decoupled=True),
    "averaged": SGD(0.02, averaging="uniform"),
    "all": SGD(RATE, momentum=0.8, dampening=0.2, weight_decay=0.2, averaging=0.6),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_what_is_released_equals_what_numpy_makes_of_the_same_draws(llama, optimizer):
    run, present = RUN.replace(optimizer=optimizer), (True, False)
    expected, clipped = llama.expected(run, CANARIES, present)
    assert 0.2 < clipped < 0.8
    assert flat(llama.train(run, CANARIES, present)) == pytest.approx(expected, abs=TOLERANCE)


@pytest.mark.parametrize(
    "changes",
    [
        {"noise_multiplier": np.linspace(0.02, 0.2, STEPS)},
        {"noise_multiplier": np.linspace(0.02, 0.2, STEPS), "noise_filter": [1.0, -0.5, -0.3, 0.2]},
        {"noise_filter": [0.7**k for k in range(2 * STEPS)]},
        {"sample_rate": np.linspace(0.0, 1.0, STEPS)},
        {"sampling": "fixed", "sample_rate": 0.3},
        {"sampling": "shuffled", "sample_rate": 0.3, "batches_per_epoch": 4},
        {"sampling": "full", "sample_rate": 1.0},
    ],
    ids=["noise", "correlated noise", "long filter", "rate", "fixed", "shuffled", "full"],
)
def test_schedules_and_other_ways_to_draw_batches_equal_those_of_numpy(llama, changes):
    run, present = RUN.replace(**changes), (False, True)
    expected, _ = llama.expected(run, CANARIES, present)
    assert flat(llama.train(run, CANARIES, present)) == pytest.approx(expected, abs=TOLERANCE)


def test_noise_has_the_variance_of_the_run_in_each_parameter_and_is_new_at_each_step(llama):
    rate, sigma, clip_norm, steps, models = 0.5, 2.0, 3.0, 4, 20
    run = DPSGD(steps, 0.0, sigma, clip_norm=clip_norm, optimizer=SGD(rate))  # nobody is in a batch
    scale = rate * sigma * clip_norm * steps**0.5
    noise = [
        {name: (value - llama.start[name]).double().numpy() / scale for name, value in trained.items()}
        for trained in (llama.train(run, seed=[5, number]) for number in range(models))
    ]
    whole = np.array([flat({name: torch.from_numpy(value) for name, value in each.items()}) for each in noise])
    for values in (whole, *(np.array([each[name] for each in noise]) for name in llama.start)):
        squares, sure = np.sum(values**2), FALSE_ALARM / (1 + len(llama.start))
        assert min(stats.chi2.sf(squares, values.size), stats.chi2.cdf(squares, values.size)) > sure / 2
        assert stats.norm.sf(abs(values.sum()) / values.size**0.5) > sure / 2
    assert stats.kstest(whole.ravel(), "norm").pvalue > FALSE_ALARM
    assert stats.pearsonr(whole[:-1].ravel(), whole[1:].ravel()).pvalue > FALSE_ALARM
    halves = whole.reshape(2 * models, -1)  # neighbouring parameters have nothing in common either
    assert stats.pearsonr(halves[::2].ravel(), halves[1::2].ravel()).pvalue > FALSE_ALARM


def test_poisson_batches_have_every_slot_with_the_sample_rate_and_independently():
    slots, steps = 40, 5000
    for rate in (0.02, 0.3):
        taken = np.zeros((steps, slots))
        drawn = batches(DPSGD(steps, rate, 1.0), slots, np.random.default_rng(4))
        for row, batch in zip(taken, drawn, strict=True):
            row[batch] = 1
        scores = (taken.sum(0) - steps * rate) / np.sqrt(steps * rate * (1 - rate))
        squares = np.sum(scores**2)
        assert min(stats.chi2.sf(squares, slots), stats.chi2.cdf(squares, slots)) > FALSE_ALARM / 2
        sizes = np.bincount(taken.sum(1).astype(int), minlength=slots + 1)
        law = steps * stats.binom.pmf(np.arange(slots + 1), slots, rate)
        common = law > 10
        observed, expected = (np.append(values[common], values[~common].sum()) for values in (sizes, law))
        assert stats.chisquare(observed, expected * observed.sum() / expected.sum()).pvalue > FALSE_ALARM
        both = np.sum(taken[:-1] * taken[1:])  # at a step and at the next
        assert stats.binomtest(int(both), (steps - 1) * slots, rate**2).pvalue > FALSE_ALARM


def test_balls_in_bins_have_every_slot_in_one_uniform_batch_of_an_epoch():
    drawn = list(batches(DPSGD(4 * 3000, 0.25, 1.0, "balls-in-bins"), 7, np.random.default_rng(4)))
    whole = [np.concatenate(drawn[first : first + 4]) for first in range(0, len(drawn), 4)]
    assert all(sorted(epoch.tolist()) == list(range(7)) for epoch in whole)
    bins = np.array([next(place for place in range(4) if 3 in drawn[first + place]) for first in range(0, 12000, 4)])
    assert stats.chisquare(np.bincount(bins, minlength=4)).pvalue > FALSE_ALARM


def test_truncated_batches_are_poisson_batches_of_limited_size():
    run = DPSGD(6000, 0.4, 1.0, "truncated-poisson", max_batch_size=3, dataset_size=6)
    drawn = list(batches(run, 6, np.random.default_rng(4)))
    assert max(map(len, drawn)) == 3
    chances = stats.binom.pmf(np.arange(7), 6, 0.4)
    observed = np.bincount([len(batch) for batch in drawn])
    assert stats.chisquare(observed, 6000 * np.append(chances[:3], chances[3:].sum())).pvalue > FALSE_ALARM
    used = sum(4 in batch for batch in drawn)
    assert stats.binomtest(used, 6000, participation_rate(run)).pvalue > FALSE_ALARM


@pytest.mark.parametrize("canary", CANARIES, ids=["long", "short"])
def test_a_canary_that_is_present_adds_its_clipped_gradient_and_nothing_else(llama, canary):
    gradient = llama.gradient(flat(llama.start), canary)
    for clip_norm in (0.5 * np.linalg.norm(gradient), 2.0 * np.linalg.norm(gradient)):
        run = DPSGD(1, 1.0, 0.5, clip_norm=clip_norm, optimizer=SGD(0.1))
        without, with_it = (flat(llama.train(run, [canary], [present])) for present in (False, True))
        assert with_it - without == pytest.approx(-0.1 * clip(gradient, clip_norm), abs=TOLERANCE)


def test_equal_seeds_give_equal_bits_and_others_give_other_models(llama):
    first, again, number, seed = (flat(llama.train(RUN, seed=given)) for given in ([7, 3], [7, 3], [7, 4], [8, 3]))
    assert np.array_equal(first, again)
    assert not np.isclose(first, number).all()
    assert not np.isclose(first, seed).all()
    assert not np.isclose(number, seed).all()


def test_training_does_not_depend_on_the_global_generators_and_leaves_all_as_it_was(llama):
    before = {name: value.clone() for name, value in llama.start.items()}
    tokens = llama.tokens.clone()
    torch.manual_seed(1)
    first = flat(llama.train(RUN, CANARIES, [True, True]))
    torch.manual_seed(2)
    state = torch.get_rng_state()
    assert np.array_equal(first, flat(llama.train(RUN, CANARIES, [True, True])))
    assert torch.equal(state, torch.get_rng_state())
    assert torch.equal(tokens, llama.tokens)
    assert all(torch.equal(value, llama.start[name]) for name, value in before.items())


class Constant:
    """Gradients that are one everywhere; it keeps what it was asked at."""

    def __init__(self):
        self.seen = []

    def clipped_sum(self, parameters, tokens, lengths, clip_norm):
        self.seen.append({name: value.clone() for name, value in parameters.items()})
        return {name: torch.ones_like(value, dtype=torch.float32) for name, value in parameters.items()}


@pytest.mark.parametrize(("averaging", "expected"), [(None, 0.95), ("uniform", 0.97475)])
def test_updates_below_the_resolution_of_bfloat16_add_up(averaging, expected):
    """100 steps of 0.0005; next to 1 the numbers of bfloat16 are 0.0039 apart, so that each alone would be lost."""
    start = {"w": torch.ones(5, dtype=torch.bfloat16)}
    run = DPSGD(100, 1.0, LEAST_NOISE, "full", optimizer=SGD(0.0005, averaging=averaging))
    gradients = Constant()
    trainer = TextTrainer(run, gradients, start, torch.ones(1, 2, dtype=torch.int64), torch.tensor([2]))
    released = trainer.train((), (), [0])["w"]
    assert released.dtype == torch.bfloat16
    assert torch.equal(released, torch.full((5,), expected).bfloat16())
    for step, seen in enumerate(gradients.seen):
        assert seen["w"].dtype == torch.bfloat16  # the model computes with rounded ones
        assert float(seen["w"][0]) == pytest.approx(1 - 0.0005 * step, abs=0.0021)


@pytest.fixture(scope="module")
def problem(tiny_llama, tiny_texts):
    return lm.TextProblem.of(tiny_llama, tiny_texts, 0.2, longest=16)


def test_an_audit_with_adam_reports_it(problem, tmp_path):
    run = li.DPSGD(2, 0.5, 1.0, optimizer=li.Adam(1e-3, weight_decay=0.1, decoupled=True))
    attack = lm.UnseenTokens(candidates=1, references=8, length=4)
    result = li.audit(run, problem, attack, models=4, store=tmp_path / "a.sqlite", methods=["gdp"], progress=False)
    assert result.second_moment is not None
    assert any("Adam's second moment" in caveat for caveat in result.caveats)
    assert "approximation of a heuristic" in str(result)
    assert result.run == run

"""Samplers recover known distributions: exact denoisers of a joint distribution, chi-square with
fixed seeds.
"""

import pytest
import torch
from zoo.calls import seeded
from zoo.joints import PAIR_OF_FOUR
from zoo.processes import F64, FOUR_OF_EVERY_KIND, FOUR_TOKENS

import ddlib as dd
from ddlib.testing.oracle import exact_cavity, exact_posterior

N = 6000
HIERARCHICAL = list(FOUR_TOKENS)
# the prior covers every start but is not q(z_1) where the noisy end is not exact; 4 is far enough
# for these tests
WORD = torch.tensor([0.45, 0.10, 0.25, 0.20], dtype=F64)


def chi_square(tokens, probs):
    """The statistic in units of its standard deviation above its mean."""
    index = tokens[:, 0] if probs.ndim == 1 else tokens[:, 0] * probs.shape[1] + tokens[:, 1]
    expected = probs.flatten() * len(tokens)
    counts = torch.bincount(index, minlength=probs.numel()).double()
    statistic = float(((counts - expected) ** 2 / expected).sum())
    freedom = probs.numel() - 1
    return (statistic - freedom) / (2 * freedom) ** 0.5


@pytest.mark.parametrize("steps", [1, 3, 32])
@pytest.mark.parametrize("name", FOUR_OF_EVERY_KIND)
def test_ancestral_sampling_of_one_word_is_exact_for_any_number_of_steps(name, steps):
    process = FOUR_OF_EVERY_KIND[name]
    for oracle, parameterization in ((exact_cavity, "cavity"), (exact_posterior, "posterior")):
        tokens = dd.sample(
            process,
            oracle(process, WORD),
            (N, 1),
            steps=steps,
            parameterization=parameterization,
            generator=seeded(steps),
        )
        assert chi_square(tokens, WORD) < 5 + (8 if "geometric" in name else 0)


@pytest.mark.parametrize("name", [n for n in FOUR_OF_EVERY_KIND if "geometric" not in n])
def test_ancestral_sampling_recovers_a_joint_distribution(name):
    process = FOUR_OF_EVERY_KIND[name]
    # two tokens that jump in one step are drawn independently, and GIDD's rates grow like t^(-1/2)
    # at the data: on 100 even steps its chi-square is 30 deviations high, on 400 6, on 1600 none
    grid = torch.linspace(1, 0, 121, dtype=F64) ** 3
    tokens = dd.sample(
        process, exact_cavity(process, PAIR_OF_FOUR), (N, 2), steps=grid, generator=seeded(1)
    )
    assert chi_square(tokens, PAIR_OF_FOUR) < 6


@pytest.mark.parametrize("name", HIERARCHICAL)
def test_first_hitting_recovers_a_joint_distribution_exactly(name):
    process = FOUR_OF_EVERY_KIND[name]
    events = 2 * process.hierarchy.depth
    tokens = dd.sample(
        process,
        exact_cavity(process, PAIR_OF_FOUR),
        (N, 2),
        dd.samplers.FirstHitting(),
        steps=events,
        generator=seeded(2),
    )
    assert chi_square(tokens, PAIR_OF_FOUR) < 5


def test_first_hitting_reveals_tokens_one_by_one_that_jump_at_the_same_float():
    """A third of all tokens outlives every float below 1, so their jump times are 1."""
    process = dd.processes.Masked(4, dd.schedules.Polynomial(0.03))
    always_equal = torch.diag(WORD)
    tokens = dd.sample(
        process,
        exact_cavity(process, always_equal),
        (300, 2),
        dd.samplers.FirstHitting(),
        steps=2,
        generator=seeded(4),
    )
    assert (tokens[:, 0] == tokens[:, 1]).all()


def test_the_test_detects_a_wrong_distribution():
    """Independent draws with the right margins, as one step makes them, must fail where many steps
    pass.
    """
    process = FOUR_OF_EVERY_KIND["masked"]
    tokens = dd.sample(
        process, exact_cavity(process, PAIR_OF_FOUR), (N, 2), steps=1, generator=seeded(1)
    )
    assert chi_square(tokens, PAIR_OF_FOUR) > 50
    assert chi_square(tokens[:, :1], PAIR_OF_FOUR.sum(1)) < 5


@pytest.mark.parametrize("name", HIERARCHICAL)
def test_prompts_condition_the_rest(name):
    process = FOUR_OF_EVERY_KIND[name]
    for sampler in (dd.samplers.Ancestral(), dd.samplers.FirstHitting()):
        tokens = dd.sample(
            process,
            exact_cavity(process, PAIR_OF_FOUR),
            (N, 2),
            sampler,
            steps=64,
            prompt=torch.tensor([1]),
            generator=seeded(3),
        )
        assert (tokens[:, 0] == 1).all()
        assert chi_square(tokens[:, 1:], PAIR_OF_FOUR[1] / PAIR_OF_FOUR[1].sum()) < 5


def test_levels_move_with_the_probabilities_of_the_bracket():
    """Theory section 3: the level of z_s given that of z_t, against the chain's own counts."""
    process = FOUR_OF_EVERY_KIND["levels-xi"]
    t = torch.full((N,), 0.8, dtype=F64)
    s = torch.full((N,), 0.5, dtype=F64)
    generator = seeded(4)
    x = torch.multinomial(WORD, N, replacement=True, generator=generator)[:, None]
    level = process.level_of(process.sample(x, t, generator))
    arrived = process.sample_level(process.sample(x, t, generator), t, s, generator)
    counts = torch.bincount(arrived[:, 0], minlength=4) / N
    assert torch.allclose(counts.double(), process.occupancies(s)[0], atol=0.03)
    assert (process.level_posterior(level, t, s).sum(-1) - 1).abs().max() < 1e-12

"""Claims about draws: forward ones follow the marginal, backward ones the posterior, balanced ones
their weights.
"""

from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ddlib.objective.nelbo import nelbo
from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.samplers.requirements import draws_by_level
from ddlib.samplers.sampling import sample
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.inputs import (
    at,
    compare_draws,
    compare_joint_draws,
    distribution,
    draws,
    frequencies,
    in_any_batch,
    logits,
    marginals,
    remembers,
    tokens,
)
from ddlib.verification.framework.reference import exact_cavity, exact_posterior, sequences

_NUMBERS = 2_000_000
"""Limit on the numbers of a batch of pairs, for processes that return dense tensors."""


def _forward(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    t = float(point["t"])
    n = draws(process)
    generator = torch.Generator().manual_seed(7)
    z = process.sample(tokens(process).expand(n, -1).contiguous(), at(t, n), generator)
    chance = marginals(process, t)
    yield compare_draws("draws of z_t", ("x", "z"), z, chance)
    if z.shape[1] > 1:
        yield compare_joint_draws(
            "draws of two positions", ("z_0", "z_1"), z[:, [0, -1]], chance[0][:, None] * chance[-1]
        )


def _onward(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    s = float(point["s"])
    t = float(point["t"])
    n = max(50, draws(process) // 4)
    states = torch.arange(process.num_states)
    z = states.expand(n, -1).contiguous()
    later = process.sample_forward(z, at(s, n), at(t, n), torch.Generator().manual_seed(12))
    yield compare_draws(
        "draws of z_t from z_s", ("", "z_t"), later, process.transition(s, t), z_s=states
    )
    yield from in_any_batch(
        "z_t from z_s",
        lambda index, noise: process.sample_forward(
            z[index], at(s, len(index)), at(t, len(index)), noise
        ),
    )


def _prior(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    z = process.sample_prior((draws(process), 4), torch.Generator().manual_seed(8))
    yield compare_draws("draws from the prior", ("position", "z"), z, process.prior().expand(4, -1))


def _at_half_temperature(log_probs: Tensor) -> Tensor:
    return 2 * log_probs


def _backward(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    s = float(point["s"])
    t = float(point["t"])
    n = max(50, draws(process) // 4)
    scores = logits(process, point["distribution"])
    reached = (scores.exp()[0, 0] @ marginals(process, t) > 1e-12).nonzero()[:, 0]
    z = reached.expand(n, -1).contiguous()
    generator = torch.Generator().manual_seed(9)
    target = (
        process.sample_level(z, at(t, n), at(s, n), generator)
        if isinstance(process, LevelProcess)
        else None
    )
    landed = process.sample_given_level(
        scores.expand(*z.shape, -1), z, at(t, n), at(s, n), target, generator
    )
    expected = process.posterior(
        scores.exp().expand(1, len(reached), -1), reached[None], at(t), at(s)
    )[0]
    yield compare_draws("draws of z_s", ("", "z_s"), landed, expected, z_t=reached)
    if not draws_by_level(process):
        half = process.sharpen(
            scores.expand(1, len(reached), -1), reached[None], at(t), _at_half_temperature
        )
        landed = process.sample_given_level(
            scores.expand(*z.shape, -1),
            z,
            at(t, n),
            at(s, n),
            None,
            generator,
            sharpen=_at_half_temperature,
        )
        expected = process.posterior(half.softmax(-1), reached[None], at(t), at(s))[0]
        yield compare_draws(
            "draws of z_s at temperature 1/2", ("", "z_s"), landed, expected, z_t=reached
        )
    if target is not None:
        levels = process.level_of(landed)
        yield Comparison("level reached", ("draw", "position"), levels, target, 0.0)


def _generation(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Check that three reverse steps from the prior with the exact denoiser of a token reproduce
    its distribution.
    """
    n = max(50, draws(process) // 4)
    truth = distribution(process, point["distribution"])[0, 0]
    for kind, oracle in (("cavity", exact_cavity), ("posterior", exact_posterior)):
        generator = torch.Generator().manual_seed(11)
        denoiser = oracle(process, truth)
        tokens = sample(
            process, denoiser, (n, 1), steps=3, parameterization=kind, generator=generator
        )
        yield compare_draws(
            f"tokens generated from {kind} logits", ("position", "x"), tokens, truth[None]
        )


def _path(process: LevelProcess, point: Point) -> Iterator[Comparison]:
    n = draws(process)
    entries, z = process.sample_jump_times(
        (n, 1), torch.Generator().manual_seed(10), torch.device("cpu")
    )
    yield Comparison(
        "order of entry times",
        ("draw", "position", "level"),
        entries.diff(dim=-1).clamp_max(0),
        torch.zeros_like(entries[..., 1:]),
        0.0,
    )
    states = torch.arange(process.num_states)[None]
    level = process.level_of(states)[0]
    count = entries.shape[-1] + 1
    for t in (0.1, 0.5, 0.9):
        occupancy = torch.zeros(count, dtype=torch.float64).index_add_(
            0, level, marginals(process, t).mean(0)
        )
        counts = torch.bincount((entries[:, 0] <= t).sum(-1), minlength=count)
        yield frequencies(f"levels at t = {t}", ("level",), counts, occupancy, n)
    yield frequencies(
        "states at the end of the path",
        ("z",),
        torch.bincount(z[:, 0], minlength=process.num_states),
        process.prior(),
        n,
    )


def _no_path(process: ForwardProcess) -> str:
    return (
        ""
        if isinstance(process, LevelProcess)
        else "levels, and so jump times, depend on the network"
    )


def _keyed_noise(
    process: ForwardProcess, point: Point, quantity: str = "z_t", **levels: str
) -> Iterator[Comparison]:
    """Check that the noise of an example does not depend on the rest of its batch."""
    t = float(point["t"])
    x = tokens(process).repeat(4, 8)[:, :8].contiguous()
    yield from in_any_batch(
        quantity, lambda index, noise: process.sample(x[index], at(t, len(index)), noise, **levels)
    )


def _no_balance(process: ForwardProcess) -> str:
    """Return the reason why ``process`` draws levels independently only.

    Empty if it can balance them.
    """
    try:
        process.check_levels("balanced")
    except TypeError as error:
        return str(error)
    return ""


def _balances(process: ForwardProcess, x: Tensor, z: Tensor, t: float) -> Tensor:
    rows = max(1, _NUMBERS // process.num_states**2)
    parts = zip(x.split(rows), z.split(rows), strict=True)
    return torch.cat(
        [process.importance_weight(clean, noisy, at(t, len(clean))) for clean, noisy in parts]
    )


def _balanced_levels(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare balanced draws of two tokens with ``importance_weight``, and the bound that they miss
    with 0.
    """
    t = float(point["t"])
    size = process.num_states
    n = max(50, draws(process) // 4)
    z = sequences(size, 2)
    pair = torch.tensor([0, process.vocab_size - 1])
    x = pair.expand_as(z).contiguous()
    chance = marginals(process, t)[pair[0]][z[:, 0]] * marginals(process, t)[pair[1]][z[:, 1]]
    balance = _balances(process, x, z, t)
    probs = torch.where(balance > 0, chance / torch.where(balance > 0, balance, 1.0), 0.0)
    yield Comparison(
        "probabilities of all draws, summed", (), probs.sum(), torch.ones_like(probs.sum()), 1e-9
    )
    missed = (balance <= 0) & (chance > 0)
    if bool(missed.any()):
        missed_x = x[missed]
        missed_z = z[missed]
        scores = logits(process, point["distribution"]).expand(*missed_x.shape, -1)
        lost = nelbo(process, scores, missed_x, missed_z, at(t, len(missed_x))).sum(-1)
        quantity = "bound of a sequence that is not drawn"
        yield Comparison(
            quantity,
            (),
            lost,
            torch.zeros_like(lost),
            1e-12,
            {"z_0": missed_z[:, 0], "z_1": missed_z[:, 1]},
        )
    pairs = process.sample(
        pair.expand(n, -1).contiguous(), at(t, n), torch.Generator().manual_seed(14), "balanced"
    )
    yield compare_joint_draws("balanced draws", ("z_0", "z_1"), pairs, probs.view(size, size))


CLAIMS = (
    # uniforms of low precision are found only at times when few tokens have jumped
    Claim(
        "draws",
        "sample",
        "z_t follows q_t(.|x), independently at each position",
        "binomial bounds, false alarm 1e-6",
        _forward,
        ({"t": 0.5}, {"t": 0.05}, {"t": 1e-5}),
        ({"t": 0.9}, {"t": 0.0}, {"t": 1.0}, {"t": 0.3}),
        rests_on=("marginals",),
    ),
    Claim(
        "draws",
        "advance",
        "z_t given z_s follows q_{t|s}",
        "binomial bounds, false alarm 1e-6",
        _onward,
        ({"s": 0.2, "t": 0.6},),
        ({"s": 0.0, "t": 1.0}, {"s": 0.5, "t": 0.501}),
        rests_on=("distributions",),
    ),
    Claim(
        "draws",
        "sample_prior",
        "z_1 follows the prior",
        "binomial bounds, false alarm 1e-6",
        _prior,
        rests_on=("prior", "sample"),
    ),
    Claim(
        "draws",
        "jump and land",
        "z_s follows p(z_s|z_t)",
        "binomial bounds, false alarm 1e-6",
        _backward,
        ({"s": 0.25, "t": 0.5, "distribution": 1}, {"s": 0.0, "t": 0.9, "distribution": 2}),
        ({"s": 0.05, "t": 0.1, "distribution": 3}, {"s": 0.5, "t": 1.0, "distribution": 0}),
        rests_on=("posterior", "sample"),
    ),
    Claim(
        "draws",
        "generation",
        "ancestral sampling with the exact model of a token draws from its distribution",
        "binomial bounds, false alarm 1e-6",
        _generation,
        ({"distribution": 1},),
        ({"distribution": 0},),
        remembers,
        rests_on=("jump and land", "sample_prior", "forgets"),
    ),
    Claim(
        "draws",
        "path",
        "jump times drawn in advance are those of the chain",
        "binomial bounds, false alarm 1e-6",
        _path,
        applies=_no_path,
        rests_on=("marginals", "prior", "inverse"),
    ),
    Claim(
        "draws",
        "keyed noise",
        "noise depends on the example, not on its batch",
        "exactly",
        _keyed_noise,
        ({"t": 0.5},),
        rests_on=("sample",),
    ),
    Claim(
        "levels",
        "balanced levels",
        "balanced draws have probability q_t / balance where the bound is not 0",
        "1e-9; binomial bounds, false alarm 1e-6",
        _balanced_levels,
        ({"t": 0.4, "distribution": 1},),
        ({"t": 0.05, "distribution": 2}, {"t": 0.95, "distribution": 3}),
        _no_balance,
        ("sample", "rates", "weights"),
    ),
    Claim(
        "levels",
        "keyed levels",
        "balanced levels depend on the example, not on its batch",
        "exactly",
        partial(_keyed_noise, quantity="balanced z_t", levels="balanced"),
        ({"t": 0.5},),
        applies=_no_balance,
        rests_on=("keyed noise",),
    ),
)

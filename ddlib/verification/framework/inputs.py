"""Inputs of the claims about processes: tokens, states, distributions and times; comparisons of
draws.
"""

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ddlib.processes import ForwardProcess
from ddlib.utils.imports import import_quietly
from ddlib.utils.random import KeyedGenerator
from ddlib.verification.framework.claim import Comparison, Point
from ddlib.verification.framework.reference import states

FALSE_ALARM = 1e-6
"""Probability that a check of draws rejects a correct object; draws are seeded, so results are
reproducible.
"""


def tokens(process: ForwardProcess) -> Tensor:
    """Return all tokens, (1, V)."""
    return torch.arange(process.vocab_size)[None]


def at(t: float, rows: int = 1) -> Tensor:
    """Return ``t`` as a float64 tensor (rows,)."""
    return torch.full((rows,), t, dtype=torch.float64)


def marginals(process: ForwardProcess, t: float) -> Tensor:
    """Return q_t(z|x) for every token and state, (V, S)."""
    return process.marginal(tokens(process), at(t))[0]


def logits(process: ForwardProcess, seed: float, rows: int = 1, scale: float = 2.0) -> Tensor:
    """Draw log-probabilities of tokens, (1, rows, V), independent rows.

    Seed 0 is the uniform distribution.
    """
    generator = torch.Generator().manual_seed(int(seed))
    size = 0.0 if seed == 0 else scale
    noise = torch.randn(1, rows, process.vocab_size, generator=generator, dtype=torch.float64)
    return (size * noise).log_softmax(-1)


def distribution(process: ForwardProcess, seed: float, rows: int = 1) -> Tensor:
    """Draw distributions of tokens, (1, rows, V)."""
    return logits(process, seed, rows).exp()


def some_tokens(process: ForwardProcess, limit: float) -> Tensor:
    """Return at most ``limit`` tokens, evenly spaced from the first to the last, (n,)."""
    count = min(int(limit), process.vocab_size)
    return torch.linspace(0, process.vocab_size - 1, count, dtype=torch.float64).long()


def product(process: ForwardProcess, limit: float) -> tuple[Tensor, Tensor]:
    """Return all pairs of ``some_tokens`` x and states z, each (1, N), in row-major order."""
    tokens_x = some_tokens(process, limit)
    return tokens_x.repeat_interleave(process.num_states)[None], states(process).repeat(
        1, len(tokens_x)
    )


def pairs(process: ForwardProcess, t: float, limit: float = 10**9) -> tuple[Tensor, Tensor, Tensor]:
    """Return pairs of ``some_tokens`` x and states z with q_t(z|x) > 0, each (1, N), and the time
    (1,).
    """
    x, z = product(process, limit)
    possible = process.likelihood(z, x, at(t))[0] > 0
    return x[:, possible], z[:, possible], at(t)


def pairs_with_logits(
    process: ForwardProcess, point: Point
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return ``pairs`` at the time of a point, and the same logits (1, N, V), from its seed
    ``distribution``.
    """
    x, z, t = pairs(process, float(point["t"]))
    return x, z, t, logits(process, point["distribution"]).expand(*x.shape, -1)


def per_pair(
    quantity: str, x: Tensor, z: Tensor, got: Tensor, expected: Tensor, allowed: Tensor | float
) -> Comparison:
    """Return a comparison of results (1, N) for the pairs."""
    allowed = allowed[0] if isinstance(allowed, Tensor) else allowed
    return Comparison(quantity, (), got[0], expected[0], allowed, {"x": x[0], "z": z[0]})


def no_closed_form(process: ForwardProcess) -> str:
    """Return the reason why there is no closed form; empty if there is one."""
    return "" if process.closed_form else "there is no closed form"


def remembers(process: ForwardProcess) -> str:
    """Return the reason why z_1 may depend on the token; empty if it must not."""
    if not process.exact_ends:
        return "the schedule does not reach 0; prior_kl is part of the bound"
    # an edge may act part of the time only
    rates = [process.rate_matrix(k / 17) for k in range(1, 17)]
    q = torch.stack([rate / rate.abs().max().clamp_min(1e-300) for rate in rates]).sum(0)
    classes = process.num_states - int(torch.linalg.matrix_rank(q))
    return (
        ""
        if classes == 1
        else f"the chain has {classes} closed classes; prior_kl is part of the bound"
    )


def frequencies(
    quantity: str, axes: tuple[str, ...], counts: Tensor, chance: Tensor, draws: int
) -> Comparison:
    """Compare counts with the distribution they are drawn from, cell by cell, by exact binomial
    quantiles.

    With the Bonferroni correction over the cells, a correct distribution is rejected with
    probability at most ``FALSE_ALARM``.
    """
    # imported here: slow to load, and training does not need it
    binom = import_quietly("scipy.stats").binom
    chance = chance.to(torch.float64).clamp(0, 1)
    tail = FALSE_ALARM / 2 / max(1, chance.numel())
    expected = chance * draws
    low = torch.as_tensor(binom.ppf(tail, draws, chance.numpy()), dtype=torch.float64)
    high = torch.as_tensor(binom.isf(tail, draws, chance.numpy()), dtype=torch.float64)
    counts = counts.to(torch.float64)
    # at least one half: chance may have a rounding error, and counts are integers
    allowed = torch.where(counts > expected, high - expected, expected - low).clamp_min(0.5)
    return Comparison(f"{quantity}, times out of {draws}", axes, counts, expected, allowed)


def tally(outcomes: Tensor, size: int) -> Tensor:
    """Count each of ``size`` outcomes in every column of ``outcomes`` (draws, columns)."""
    columns = outcomes.shape[1]
    flat = outcomes + size * torch.arange(columns)
    return torch.bincount(flat.flatten(), minlength=size * columns).view(columns, size)


def compare_draws(
    quantity: str, axes: tuple[str, ...], outcomes: Tensor, chance: Tensor, **labels: Tensor
) -> Comparison:
    """Compare draws (N, columns) with the distribution of each column, (columns, outcomes).

    See ``frequencies``.
    """
    counts = tally(outcomes, chance.shape[1])
    return frequencies(quantity, axes, counts, chance, len(outcomes))._replace(labels=labels)


def compare_joint_draws(
    quantity: str, axes: tuple[str, ...], outcomes: Tensor, joint: Tensor
) -> Comparison:
    """Compare draws (N, L) with the joint distribution of the columns, (size,) * L.

    See ``frequencies``.
    """
    places = len(joint) ** torch.arange(joint.ndim).flip(0)
    counts = torch.bincount((outcomes * places).sum(1), minlength=joint.numel()).view_as(joint)
    return frequencies(quantity, axes, counts, joint, len(outcomes))


def in_any_batch(
    quantity: str, draw: Callable[[Tensor, KeyedGenerator], Tensor], rows: int = 4, seed: int = 1
) -> Iterator[Comparison]:
    """Compare draws with keyed noise of a batch with those drawn again, and with those of each
    example by itself.

    Args:
        quantity: the name of what is drawn.
        draw: ``(index (n,), generator) -> (n, L)``, draws of the examples with these numbers.
        rows: number of examples in the batch.
        seed: seed of the noise.
    """

    def draw_keyed(index: Tensor) -> Tensor:
        return draw(index, KeyedGenerator(seed, step=seed + 1, index=index))

    every = torch.arange(rows)
    axes = ("example", "position")
    together = draw_keyed(every)
    yield Comparison(f"{quantity} drawn again", axes, draw_keyed(every), together, 0.0)
    alone = torch.cat([draw_keyed(example) for example in every.split(1)])
    yield Comparison(f"{quantity} of an example in another batch", axes, alone, together, 0.0)


def draws(process: ForwardProcess) -> int:
    """Return the number of draws per state; fewer for larger state spaces."""
    return math.ceil(min(20_000, 200_000 / process.num_states))

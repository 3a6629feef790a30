"""Kraft's test: E is a likelihood or a bound iff exp(-E(x)) sums to at most 1 over all x."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

import ddlib as dd
from ddlib.processes import ForwardProcess
from ddlib.testing import oracle
from ddlib.typing import Denoiser
from recipes.estimators.base import Claim, Estimator, Model

TOLERANCE = 1e-6
"""Error of a sum that is due to the quadrature and to rounding."""
OWN = 0.25
"""Part of the evidence of its own position that a random network uses."""
MOST = 500
"""Largest number of pairs of a sequence of tokens and one of its noisy sequences."""
SCALES = (0.0, 0.3, 1.0, 3.0)
"""Standard deviations of the random logits: from uniform to sharp networks."""


def random_networks(process: ForwardProcess, length: int, seeds: int = 4) -> Iterator[Denoiser]:
    """Yield networks of random logits for every state, and the exact networks of random sources.

    The former contradict themselves. The latter are consistent, and refute estimators that count
    only the easy positions. Some also use a part of the evidence of a position's own state, between
    the cavity distribution and the posterior one, as trained networks may.

    Args:
        process: a process whose states can be enumerated.
        length: number of positions.
        seeds: number of networks of each kind and sharpness.
    """
    place = process.num_states ** torch.arange(length)
    for scale in SCALES:
        for seed in range(seeds if scale else 1):
            generator = torch.Generator().manual_seed(seed)
            shape = (2, process.num_states**length, length, process.vocab_size)
            table, slope = scale * torch.randn(shape, generator=generator, dtype=torch.float64)

            def random(
                z: Tensor, t: Tensor, table: Tensor = table, slope: Tensor = slope
            ) -> Tensor:
                row = (z * place).sum(-1)
                time = t if t.ndim == 1 else t.mean(-1)
                return table[row] + 0.5 * time.double()[:, None, None] * slope[row]

            shape = (process.vocab_size,) * length
            source = scale * torch.randn(shape, generator=generator, dtype=torch.float64)
            exact = oracle.exact_cavity(process, source.exp() / source.exp().sum())

            def leaning(z: Tensor, t: Tensor, exact: Denoiser = exact) -> Tensor:
                evidence = process.token_evidence(z, t.double()).clamp_min(1e-9)
                return exact(z, t) + OWN * evidence.log()

            for network in (random, exact, leaning):
                network.own_times = True  # all of them take a time per position
                yield network


def small_model(model: Model) -> tuple[Model, int]:
    """Return a model over a few tokens with a copy of the process, and a length to enumerate.

    Its network does not fit the copy. Along blocks there are two blocks of two positions, or of one
    where these are too many.

    Raises:
        TypeError, ValueError: the process has no copy over a few tokens.
    """
    along_blocks = model.pace.block is not None
    spaces = ((2, 4, 2), (4, 2, 1)) if along_blocks else ((3, 3, 1), (4, 2, 1), (3, 2, 1))
    for size, length, block in spaces:
        try:
            process = model.process.small_copy(size)
        except ValueError:  # too few tokens for its levels
            continue
        tokens = torch.arange(process.vocab_size)[:, None]
        pairs = int((process.marginal(tokens, torch.full((len(tokens),), 0.5)) > 0).sum())
        if pairs**length <= MOST:
            pace = dd.paces.Blocks(block) if along_blocks else model.pace
            return Model(process, model.network, pace=pace), length
    raise ValueError(
        f"process is {model.process!r}, has no copy over 2 to 4 tokens that is small enough to "
        "enumerate"
    )


def kraft_sum(estimator: Estimator, model: Model, length: int) -> float:
    """Compute the sum of exp(-E(x)) over all sequences, E the expectation of the estimator."""
    x = oracle.sequences(model.process.vocab_size, length)
    return float((-estimator.expectation(model, x)).exp().sum())


def kraft_sums(estimator: Estimator, model: Model, length: int, seeds: int = 4) -> list[float]:
    """Compute Kraft's sum under random networks in place of the model's."""
    networks = random_networks(model.process, length, seeds)
    return [
        kraft_sum(estimator, Model(model.process, each, pace=model.pace), length)
        for each in networks
    ]


def verdict(sums: Sequence[float]) -> Claim:
    """Return the verdict of sums: all 1; all at most 1; or one above 1, a witness."""
    if max(sums) > 1 + TOLERANCE:
        return "neither"
    return "exact" if min(sums) > 1 - TOLERANCE else "bound"

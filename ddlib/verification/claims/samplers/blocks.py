"""Claims about samplers with a pace: joint distribution of positions sampled in turn, caching of
finished blocks.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ddlib.contrib import Cache
from ddlib.paces import Blocks, LeftToRight, RandomOrder
from ddlib.processes import ForwardProcess
from ddlib.samplers.sampling import sample
from ddlib.typing import Denoiser
from ddlib.utils.random import KeyedGenerator
from ddlib.verification.framework.cases import Case, at_length, needs
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.inputs import compare_joint_draws
from ddlib.verification.framework.reference import exact_cavity

_DRAWS = 2000
_ROWS = 12


class ExactDenoiser:
    """Exact denoiser of a joint distribution that accepts times (B, L)."""

    own_times = True

    def __init__(self, process: ForwardProcess, joint: Tensor) -> None:
        self._best = exact_cavity(process, joint)

    def __call__(self, z: Tensor, t: Tensor) -> Tensor:
        return self._best(z, t)


class TokenCache(NamedTuple):
    """Cache of ``CausalDenoiser``."""

    tokens: Tensor

    def rows(self, index: Tensor) -> "TokenCache":
        """Select sequences."""
        return TokenCache(self.tokens[index])


class CausalDenoiser:
    """Exact causal denoiser with a cache: each position depends on its state and the positions
    before it.

    Args:
        process: the forward process.
        joint: joint distribution of a sequence.
        block_size: of the blocks that it is used with.
    """

    own_times = True

    def __init__(self, process: ForwardProcess, joint: Tensor, block_size: int = 1) -> None:
        self.block_size = block_size
        self._best = [
            exact_cavity(
                process, joint.sum(tuple(range(n, joint.ndim))) if n < joint.ndim else joint
            )
            for n in range(1, joint.ndim + 1)
        ]

    def __call__(self, z: Tensor, t: Tensor, *, clean: Tensor | None = None) -> Tensor:
        times = t[:, None].expand(z.shape) if t.ndim == 1 else t
        return torch.stack(
            [self._best[i](z[:, : i + 1], times[:, : i + 1])[:, i] for i in range(z.shape[1])], 1
        )

    def prefill(self, x: Tensor, cache: TokenCache | None = None) -> TokenCache:
        """Append clean tokens to the cache."""
        return TokenCache(x if cache is None else torch.cat([cache.tokens, x], 1))

    def extend(self, z: Tensor, t: Tensor, cache: TokenCache) -> Tensor:
        """Compute the logits of the positions after the cached tokens."""
        times = t[:, None].expand(z.shape) if t.ndim == 1 else t
        times = torch.cat([torch.zeros_like(cache.tokens).to(times), times], 1)
        return self(torch.cat([cache.tokens, z], 1), times)[:, cache.tokens.shape[1] :]


def _draw(run: Case, denoiser: Denoiser, rows: int, steps: int, **options: Any) -> Tensor:
    return sample(run.process, denoiser, (rows, 3), run.subject, steps, **options)


def _joint(run: Case) -> Tensor:
    """Return a joint distribution of three tokens: two dependent ones, and a third that mostly
    equals the first.
    """
    size = run.process.vocab_size
    pair = run.pair
    copy = 0.7 * torch.eye(size, dtype=torch.float64) + 0.3 / size
    return pair[:, :, None] * copy[:, None, :]


def _compare_draws(run: Case, what: str, tokens: Tensor) -> Comparison:
    return compare_joint_draws(
        f"draws of three tokens, {what}", ("x_0", "x_1", "x_2"), tokens, _joint(run)
    )


def _left_to_right(run: Case, point: Point) -> Iterator[Comparison]:
    joint = _joint(run)
    steps = int(point["steps"])
    for what, denoiser in (("", ExactDenoiser), (", kept", CausalDenoiser)):
        noise = torch.Generator().manual_seed(6)
        sequences = _draw(
            run, denoiser(run.process, joint), _DRAWS, steps, pace=LeftToRight(), generator=noise
        )
        yield _compare_draws(run, f"position by position{what}", sequences)

    prompt = torch.zeros(_DRAWS, 2, dtype=torch.int64)
    for what, whole in (
        ("", ExactDenoiser(run.process, joint)),
        (", kept", CausalDenoiser(run.process, joint, block_size=3)),
    ):
        noise = torch.Generator().manual_seed(8)
        sequences = _draw(run, whole, _DRAWS, steps, pace=Blocks(3), prompt=prompt, generator=noise)
        yield compare_joint_draws(
            f"draws of a token after a prompt in its block{what}",
            ("x_2",),
            sequences[:, 2:],
            joint[0, 0] / joint[0, 0].sum(),
        )


def _in_any_order(run: Case, point: Point) -> Iterator[Comparison]:
    denoiser = ExactDenoiser(run.process, _joint(run))
    noise = torch.Generator().manual_seed(7)
    sequences = _draw(
        run, denoiser, _DRAWS, int(point["steps"]), pace=RandomOrder(), generator=noise
    )
    yield _compare_draws(run, "in random orders", sequences)


def _cached_tokens(run: Case, point: Point) -> Iterator[Comparison]:
    denoiser = CausalDenoiser(run.process, _joint(run))
    prompt = torch.zeros(_ROWS, 1, dtype=torch.int64)

    def draw(cached: bool, prefix: Tensor | None) -> Tensor:
        noise = KeyedGenerator(seed=2, step=1, index=torch.arange(_ROWS))
        return _draw(
            run,
            denoiser,
            _ROWS,
            3,
            pace=LeftToRight(),
            controls=[] if cached else [Cache("none")],
            prompt=prefix,
            generator=noise,
        )

    for what, prefix in (("", None), (" after a prompt", prompt)):
        quantity = f"tokens{what} with cached blocks"
        yield Comparison(
            quantity, ("example", "position"), draw(True, prefix), draw(False, prefix), 0.0
        )


_approximate = needs("exact_marginals", "has approximate steps")
_one_time = needs("own_times", "has one time for all positions of a sequence")


def _several(run: Case) -> str:
    return (
        ""
        if run.subject.guarantees.supports_stopping
        else f"a row of {type(run.subject).__name__} has several sequences"
    )


def _no_token(run: Case) -> str:
    return _several(run) or _approximate(run)


CLAIMS = (
    Claim(
        "sampler",
        "position by position",
        "dependent tokens follow their joint distribution after few steps each",
        "binomial bounds, false alarm 1e-6",
        _left_to_right,
        ({"steps": 2},),
        ({"steps": 1}, {"steps": 5}),
        at_length(1, _no_token),
        rests_on=("one token",),
        means=(
            "the model gets tokens before a window and given tokens in it at time 0, and positions "
            "after it as noise at time 1"
        ),
    ),
    Claim(
        "sampler",
        "tokens kept",
        "a denoiser with a cache of finished blocks draws the same tokens",
        "exactly",
        _cached_tokens,
        applies=at_length(1, _several),
        rests_on=("keyed noise",),
    ),
    Claim(
        "sampler",
        "in any order",
        "and in random orders, with a time per position",
        "binomial bounds, false alarm 1e-6",
        _in_any_order,
        ({"steps": 2},),
        ({"steps": 1}, {"steps": 5}),
        _one_time,
        rests_on=("one token",),
    ),
)

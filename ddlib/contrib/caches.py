"""Approximate caches of networks in which all positions attend to each other."""

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ddlib.samplers.control import Needs, NetworkControl, SamplingCall, check_single
from ddlib.samplers.runtime.context import BlockContexts, WindowContext
from ddlib.samplers.runtime.model import Call, FullContext, Model
from ddlib.typing import Denoiser, Times, Tokens

_NAMED = re.compile(r"(prefix|dual)(?::refresh=(\d+))?")


@dataclass(frozen=True)
class Reuse:
    """Rule for the keys and values of positions outside of the block that is drawn (Fast-dLLM,
    arXiv 2505.22618).

    They are computed in a pass over the full sequence at the first call of a block. Later calls
    evaluate the other positions alone. A changed token in the block would change them too, so that
    the result is approximate.
    """

    suffix: bool
    """True for "dual": reused before and behind the block; False for "prefix": before it alone."""
    refresh: int | None = None
    """Number of calls in a block after which they are computed again; None: once in each block."""


class ReusingContext(WindowContext):
    """Model input with a window for a ``WindowDenoiser``: keys and values around it from earlier
    calls.

    Each sequence counts its own calls, so that its result does not depend on the other sequences of
    the batch.

    Args:
        denoiser: a denoiser with ``prefill_around`` and ``extend``.
        before: (B, n) tokens before the window.
        given: (B, w) as in ``WindowContext``.
        after: (B, m) as in ``WindowContext``.
        behind: (B, m) as in ``WindowContext``.
        times: (B, m) as in ``WindowContext``.
        reuse: which keys and values are reused, and for how many calls.
    """

    def __init__(
        self,
        denoiser: Denoiser,
        before: Tokens,
        given: Bool[Tensor, "B w"],
        after: Int64[Tensor, "B m"],
        behind: Tensor,
        times: Tensor,
        reuse: Reuse,
    ) -> None:
        super().__init__(before, given, after, behind, times)
        self.denoiser: Any = denoiser
        self.reuse = reuse
        self._cache: Any = None
        # row of the cache of each sequence
        self._slot = torch.full_like(before.new_empty(len(before)), -1)
        self._calls = torch.zeros_like(self._slot)  # with the present row
        self._some: tuple[Tensor, Any] | None = None

    def output(
        self,
        call: Call,
        z: Tokens,
        t: Times,
        rows: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Tensor:
        inside, times, cache = self._evaluated(z, t, rows)
        output = call(inside, times, positions, cache=cache)
        return output if positions is not None else output[:, : z.shape[1]]

    def _evaluated(self, z: Tokens, t: Times, rows: Tensor | None) -> tuple[Tensor, Tensor, Any]:
        """Return states and times that are evaluated, and the cache of the others, computed again
        where it is due.
        """
        rows = torch.ones_like(self._slot, dtype=torch.bool) if rows is None else rows
        sequence, times = self._whole(z, t, rows)
        end = self.first + z.shape[1] if self.reuse.suffix else sequence.shape[1]
        due = self._slot < 0
        if self.reuse.refresh is not None:
            due = due | (self._calls >= self.reuse.refresh)
        if bool((due := due & rows).any()):
            fresh = self.denoiser.prefill_around(
                sequence[due[rows]], times[due[rows]], self.first, end
            )
            self._put(due, fresh)
        self._calls += rows
        return sequence[:, self.first : end], times[:, self.first : end], self._of(rows)

    def _put(self, due: Tensor, fresh: Any) -> None:
        """Store the cache of some sequences."""
        stays = (self._slot >= 0) & ~due
        count = int(stays.sum())
        self._cache = self._cache.rows(self._slot[stays]).join(fresh) if count else fresh
        # the cache has the sequences that stay first, then the new ones
        self._slot[stays] = torch.arange(count, device=due.device)
        self._slot[due] = torch.arange(count, count + int(due.sum()), device=due.device)
        self._calls[due] = 0
        self._some = None

    def _of(self, rows: Tensor) -> Any:
        """Return the cache of selected sequences, in their order; the last selection is kept."""
        slot = self._slot[rows]
        if torch.equal(slot, torch.arange(int((self._slot >= 0).sum()), device=slot.device)):
            return self._cache
        if self._some is None or not torch.equal(self._some[0], slot):
            self._some = slot, self._cache.rows(slot)
        return self._some[1]


class UncachedBlocks(BlockContexts):
    """Contexts that evaluate every position at every call."""

    def __init__(self, network: Model, size: int) -> None:
        super().__init__(network, size)
        self.caches = False


class ReusingBlocks(BlockContexts):
    """Contexts with reused keys and values; a ``BlockDenoiser`` uses its exact cache instead.

    Args:
        network: as in ``BlockContexts``.
        size: as in ``BlockContexts``.
        reuse: which keys and values are reused, and for how many calls.
    """

    def __init__(self, network: Model, size: int, reuse: Reuse) -> None:
        super().__init__(network, size)
        self.reuse = reuse

    def window(
        self, before: Tokens, given: Tensor, after: Tensor, behind: Tensor, times: Tensor
    ) -> FullContext:
        if before.shape[1] or (self.reuse.suffix and behind.shape[1]):
            return ReusingContext(self.denoiser, before, given, after, behind, times, self.reuse)
        return super().window(before, given, after, behind, times)


class Cache(NetworkControl):
    """Cache of keys and values of positions outside of the block that is drawn.

    Without this control a ``ddlib.typing.BlockDenoiser`` caches its computations for earlier
    blocks, which saves time, takes memory and leaves the tokens as they are.

    Args:
        rule: "none", or the name of an approximate cache of a ``WindowDenoiser`` with ``Blocks``:
            "prefix" reuses keys and values of the positions before a block, "dual" also those
            behind it, from the first call of the block, or with "dual:refresh=4" from every fourth
            call of a sequence in it.

    Raises:
        TypeError, ValueError: another rule, or a number of calls below 1.
    """

    def __init__(self, rule: str) -> None:
        must = (
            "must be 'none', 'prefix' or 'dual', or one of the last two with a number of calls, "
            "such as 'dual:refresh=4'"
        )
        if not isinstance(rule, str):
            raise TypeError(f"cache is {rule!r}, {must}")
        named = _NAMED.fullmatch(rule)
        if rule != "none" and (named is None or (named[2] is not None and int(named[2]) < 1)):
            raise ValueError(f"cache is {rule!r}, {must}")
        self.rule = rule
        self._contexts: Callable[[Model, int], BlockContexts] = UncachedBlocks
        if named is not None:
            reuse = Reuse(named[1] == "dual", None if named[2] is None else int(named[2]))
            self._contexts = partial(ReusingBlocks, reuse=reuse)

    @property
    def is_approximate(self) -> bool:
        """True if reused keys and values depend on earlier calls."""
        return self.rule != "none"

    @property
    def breaks(self) -> Needs:  # type: ignore[override]
        """With an approximate cache the network is another function in every call."""
        return Needs.INDEPENDENT_DRAWS if self.is_approximate else Needs.NOTHING

    @property
    def needs(self) -> Needs:
        return Needs.BLOCKS | Needs.WINDOWS if self.is_approximate else Needs.NOTHING

    def check(self, call: SamplingCall) -> None:
        check_single(call, Cache)

    def prepare(self, run: SamplingCall) -> SamplingCall:
        return replace(run, block_contexts=self._contexts)

    def __repr__(self) -> str:
        return f"Cache({self.rule!r})"

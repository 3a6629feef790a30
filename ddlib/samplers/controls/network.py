"""Controls of how the network is evaluated: memory, caches, batches."""

import re
from dataclasses import replace

from ddlib.samplers.control import Control, Needs, NetworkControl, SamplingCall
from ddlib.samplers.runtime.context import MemoryContext
from ddlib.samplers.runtime.reuse import Reuse

_NAMED = re.compile(r"(prefix|dual)(?::refresh=(\d+))?")


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
        self._reuse: Reuse | None = None
        if named is not None:
            self._reuse = Reuse(named[1] == "dual", None if named[2] is None else int(named[2]))

    @property
    def needs(self) -> Needs:
        return Needs.NOTHING if self._reuse is None else Needs.BLOCKS | Needs.WINDOWS

    def prepare(self, run: SamplingCall) -> SamplingCall:
        return replace(run, caches_blocks=self._reuse is not None, reuse=self._reuse)

    def __repr__(self) -> str:
        return f"Cache({self.rule!r})"


class Memory(Control):
    """Memory between calls: each call of the network takes the features of the sequence's previous
    call, for a ``ddlib.typing.TakesMemory`` such as ``DiT(memory=True)``.

    Without it the network is called as ``bound`` and ``likelihood`` call it, without memory.
    """

    @property
    def needs(self) -> Needs:
        return (
            Needs.MEMORY
            | Needs.ONE_SEQUENCE
            | Needs.NO_BLOCKS
            | Needs.FIXED_LENGTH
            | Needs.PART_BATCHES
        )

    def prepare(self, run: SamplingCall) -> SamplingCall:
        network = run.network
        return replace(run, network=network.within(MemoryContext(network.denoiser)))


class WholeBatch(NetworkControl):
    """Batches of all rows: sequences without a jump in a step are not left out.

    For a denoiser that depends on the number of the row, or that is compiled for one batch size.
    """

    breaks = Needs.PART_BATCHES

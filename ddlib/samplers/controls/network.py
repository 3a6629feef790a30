"""Controls of how the network is evaluated: memory, batches."""

from dataclasses import replace

from ddlib.samplers.control import Control, Needs, NetworkControl, SamplingCall
from ddlib.samplers.runtime.context import MemoryContext


class Memory(Control):
    """Memory between calls: each call of the network takes the features of the sequence's previous
    call, for a ``ddlib.typing.TakesMemory`` such as ``DiT(memory=True)``.

    Without it the network is called as ``bound`` and ``likelihood`` call it, without memory.
    """

    breaks = Needs.INDEPENDENT_DRAWS

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
        return replace(run, network=run.network.within(MemoryContext()))


class WholeBatch(NetworkControl):
    """Batches of all rows: sequences without a jump in a step are not left out.

    For a denoiser that depends on the number of the row, or that is compiled for one batch size.
    """

    breaks = Needs.PART_BATCHES

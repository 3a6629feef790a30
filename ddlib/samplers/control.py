"""Abstract interface of a control: what changes a call of ``sample`` beside its sampler."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Flag, auto
from typing import Any, ClassVar

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ddlib.config.part import Part
from ddlib.paces import Pace, Together
from ddlib.processes import ForwardProcess, identity
from ddlib.samplers.base import Sampler, SamplingContext, State
from ddlib.samplers.runtime.context import BlockContexts
from ddlib.samplers.runtime.model import Model
from ddlib.typing import Sharpen, Tokens
from ddlib.utils.repr import format_part


class Needs(Flag):
    """Properties of a call of ``sample`` that its parts may need; each is a row of
    ``ddlib.samplers.requirements.TABLE``.
    """

    NOTHING = 0
    ONE_ALPHABET = auto()
    """All positions have the same tokens and states."""
    MASK = auto()
    """The process has a mask."""
    FINAL_TOKENS = auto()
    """Tokens do not change once they are drawn."""
    MASKED_TREE = auto()
    """Every state is the set of the tokens that it may become, and only masks are at t = 1."""
    TOKEN_DISTRIBUTIONS = auto()
    """The network predicts tokens, and does not guide the distribution of z_s."""
    TOKEN_DRAWS = auto()
    """As ``TOKEN_DISTRIBUTIONS``, needed by the sampler: the message names others."""
    MEMORY = auto()
    """The network takes the features of its previous call."""
    NETWORK_TIMES = auto()
    """The network takes a time per position."""
    WINDOWS = auto()
    """The network evaluates a window with cached keys and values around it."""
    ALIGNED_ROWS = auto()
    """The rows of the network begin at the same column."""
    ONE_SEQUENCE = auto()
    """A row of the sampler is one sequence."""
    JOINT_DRAWS = auto()
    """The sampler draws tokens from masks alone, and by ``SamplingContext.draws`` alone."""
    INDEPENDENT_DRAWS = auto()
    """Each draw of the sampler has a known distribution, given the states before the step."""
    UNCHANGED_DRAWS = auto()
    """In a process without levels nothing changes the distributions that are drawn from."""
    NOISE_FREE_END = auto()
    """Sequences at t = 0 are tokens."""
    TIMES = auto()
    """The times of the steps matter."""
    NO_TIMES = auto()
    """The sampler does not use the times of the steps."""
    STEP_TIMES = auto()
    """A step of the sampler takes a time per position."""
    BLOCKS = auto()
    """The sequence is drawn block by block."""
    NO_BLOCKS = auto()
    """The sequence is not drawn block by block."""
    ONE_TIME = auto()
    """All positions of a sequence have one time."""
    MOVABLE_POSITIONS = auto()
    """The sampler holds no values of positions, which may be inserted and deleted."""
    FIXED_LENGTH = auto()
    """All sequences have the length L from the first step to the last."""
    PART_BATCHES = auto()
    """Sequences without a jump are left out of the network's batch."""
    FIXED_SIZES = auto()
    """The number of uniforms that a step draws depends on no state."""


Processor = Callable[
    [Float[Tensor, "N V"], Int64[Tensor, "N L"], Int64[Tensor, "N"]], Float[Tensor, "N V"]
]
"""Map from the logits of N positions, the sequences that contain them, and their places in these,
to new logits.
"""


def flat(t: float) -> Sharpen:
    """Return the function of log-probabilities that changes nothing, at every time."""
    return identity


@dataclass(frozen=True, kw_only=True, repr=False)
class SamplingCall(SamplingContext):
    """All parts of a call of ``sample``; samplers, correctors and controls take it as context."""

    sampler: Sampler
    fixed: Tokens
    """(B, L) the tokens at the positions that are not free, as states."""
    controls: tuple["Control", ...] = ()
    """In the order in which they act."""
    sharpening: Callable[[float], Sharpen] = flat
    """Temperature and truncation at every time; ``sharpen`` is the function of the present step."""
    pace: Pace = field(default_factory=Together)
    """Order of the positions."""
    block_contexts: Callable[[Model, int], BlockContexts] = BlockContexts
    """Factory of the network's inputs block by block, from the model wrapper and the positions of a
    block.
    """
    on_step: Callable[[int, Tensor, Tensor], None] | None = None
    """Function that is called after each step; None for none."""


class Control(Part):
    """Base class of controls: they change logits, states between two steps, or the final tokens.

    Controls act in the order of their list. All methods do nothing by default, and a subclass
    overrides those that it is about.
    """

    offers: ClassVar[Needs] = Needs.NOTHING
    """Properties that a call has because of the control."""
    breaks: ClassVar[Needs] = Needs.NOTHING
    """Properties that a call lacks because of the control."""

    @property
    def needs(self) -> Needs:
        """Properties that the call must have."""
        return Needs.NOTHING

    def check(self, call: SamplingCall) -> None:
        """Raise before anything is drawn if the values of the control do not fit the call."""

    def logits(self, process: ForwardProcess, length: int) -> Sequence[Processor]:
        """Return functions of the cavity logits; none if they stay as they are.

        Args:
            process: the forward process.
            length: number of positions of a sequence.
        """
        return ()

    def sharpen(self, t: float) -> Sharpen:
        """Return the function of the log-probabilities that are drawn from, in a step that starts
        at time ``t``.
        """
        return identity

    def prepare(self, run: SamplingCall) -> SamplingCall:
        """Return the context of the whole call."""
        return run

    def begin(self, run: SamplingCall, state: State) -> tuple[SamplingCall, State, Any]:
        """Return context and state before the first step, and a memo for ``after_step``.

        A sequence that is drawn block by block begins with every block.
        """
        return run, state, None

    def after_step(
        self, run: SamplingCall, state: State, memo: Any, k: int
    ) -> tuple[SamplingCall, State, Any]:
        """Return context, state and memo after step ``k``; k = -1 is the state before the first.

        Positions where ``run.free`` is False keep their states from then on.
        """
        return run, state, memo

    def after_block(
        self, run: SamplingCall, tokens: Tokens, free: Bool[Tensor, "B L"], end: int
    ) -> tuple[Tokens, Bool[Tensor, "B L"]]:
        """Return the tokens and the positions that are left to draw, after the blocks that end
        before position ``end`` are drawn.
        """
        return tokens, free

    def finish(self, run: SamplingCall, tokens: Tokens) -> Tokens:
        """Return the final tokens; ``run.free`` is True at those that were drawn."""
        return tokens

    def __repr__(self) -> str:
        return format_part(self, Control)


def check_single(call: SamplingCall, kind: type[Control]) -> None:
    """Raise TypeError if the call holds several controls of a kind whose effects exclude each
    other.
    """
    several = [control for control in call.controls if isinstance(control, kind)]
    if len(several) > 1:
        raise TypeError(f"controls holds {several}, must hold at most one {kind.__name__}")


class NetworkControl(Control):
    """Base class of controls of how the network is evaluated, which change no distribution of the
    model; ``likelihood`` takes them too.
    """

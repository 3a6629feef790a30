"""Names for the shapes that every room of the library speaks in; ``AXES`` says what each axis counts.

States are integers: words ``0..V-1``, then each level's clusters in order, the mask last.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ddlib.utils.renamed import module_getattr

AXES = {
    "B": "sequences of a batch",
    "L": "positions of a sequence",
    "V": "words",
    "S": "states: words, clusters, mask",
    "N": "rows, one draw each",
    "K": "choices of a draw; channels of an attention head; columns of an output layer",
    "levels": "levels of a hierarchy",
    "children": "finer side of a map between levels",
    "parents": "coarser side of a map between levels",
    "num_parents": "the same, beside an argument called parents",
    "kept": "children that a smaller map keeps",
    "kept_parents": "parents that a smaller map keeps",
    "m": "states of a small chain",
    "k": "terms of a series",
    "n": "a number the function tells: of draws, of levels, of rows of a matrix",
    "P": "words before a text",
    "*n": "any axes in front",
    "*batch": "any axes in front, in ddlib_models",
    "D": "width of the backbone",
    "C": "width of its conditioning",
    "H": "attention heads",
    "half": "planes that rotary angles turn, half as many as channels",
}
"""Every axis that an annotation of ddlib or ddlib_models names. Within one call an axis has one size."""

Tokens = Int64[Tensor, "B L"]
"""Words or states, int64."""

Times = Float[Tensor, "B"] | Float[Tensor, "B L"]
"""One time per sequence in [0, 1], or one per position: 0 is data, 1 is noise."""

Logits = Float[Tensor, "B L V"]
"""Unnormalised log-probabilities over words only."""

TokenProbs = Float[Tensor, "B L V"]
"""A distribution over words at every position; rows sum to 1."""

StateProbs = Float[Tensor, "B L S"]
"""A distribution (or rates) over states at every position."""

StateMatrix = Float[Tensor, "S S"]
"""Rates or probabilities between states, row = from, column = to."""

PerToken = Float[Tensor, "B L"]
"""One number per position, in nats per token unless said otherwise."""

PaddingMask = Bool[Tensor, "B L"]
"""True where a position is real text, False where it is padding."""

Sharpen = Callable[[Tensor], Tensor]
"""What temperature and top-p do: rows of unnormalised log-probabilities to such rows."""

Denoiser = Callable[[Tensor, Tensor], Tensor]
"""The backbone: ``(z, t) -> logits`` with z (B, L) int64, t (B,) and logits (B, L, V)."""


@runtime_checkable
class HasLevelWeights(Protocol):
    """A process whose levels each have a probability and a loss weight that time alone decides.

    Pictures show these. Of any other process they show means over words and states.
    """

    @property
    def levels(self) -> tuple[int, ...]:
        """Number of states of each level, words first, the mask last."""
        ...

    def occupancies(self, t: Tensor) -> Tensor:
        """The probability of each level at times ``t`` of any shape, (..., levels)."""
        ...

    def weights(self, t: Tensor) -> Tensor:
        """The loss weight of each level, (..., levels), in nats per nat of divergence; 0 for words."""
        ...


@runtime_checkable
class Interpolating(Protocol):
    """A process with GIDD's mixing schedule, :math:`c_t = B t^{g/2} (1-t)^{g/2}` of uniform noise over V words."""

    scale: float
    """B / V."""
    gamma: float
    """The exponent g."""

    def mixture(self, t: Tensor) -> Any:
        """What a token is at times ``t`` of any shape; ``keep`` is the probability that it was never redrawn."""
        ...


@runtime_checkable
class SplitDenoiser(Protocol):
    """A backbone that also offers its output layer by itself, so that samplers compute only the logits they need.

    ``logits = features(z, t) @ weight.T + bias``. Such an object is asked for ``features``: whatever its call does
    besides, forward hooks and ``torch.compile(model)`` for two, has no effect. Compile ``model.features`` instead, or
    hide the halves behind a function.
    """

    def __call__(self, z: Tensor, t: Tensor) -> Tensor:
        """The logits, (B, L, V)."""
        ...

    def features(self, z: Tensor, t: Tensor) -> Tensor:
        """What the output layer reads, (B, L, D)."""
        ...

    def words(self) -> tuple[Tensor, Tensor | None]:
        """The output layer's matrix (V, D) and bias (V,), words in the tokenizer's order."""
        ...


@runtime_checkable
class ChildDenoiser(SplitDenoiser, Protocol):
    """A split denoiser whose output layer has a row for every state of a tree but its root.

    See ``ddlib.parameterization.tree_softmax``.

    Its logits are (B, L, S - 1), and ``words`` gives the rows, both in the order of the states.
    """

    tree: Sequence[Tensor] | None
    """The parents of every word, then of each level's clusters, as ``Tree`` takes them; empty for words under the root
    alone, None if this network predicts words after all."""

    def siblings(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """Matrix and bias as they lie in memory, siblings next to each other, and the row of each state, (S - 1,)."""
        ...


@runtime_checkable
class OwnTimes(Protocol):
    """A backbone that may be told a time per position: ``t`` (B, L) in the place of (B,)."""

    own_times: bool
    """True; a network that takes one time per sequence leaves it out, or says False."""


@runtime_checkable
class BlockDenoiser(Protocol):
    """A backbone whose positions see their own block of so many positions and all blocks before it, none behind.

    It must hold, for words x in front of states z, a whole number of blocks of them:

        extend(z, t, prefill(x)) = call([x z], [0 t])   at the positions of z
        call(z, t, clean=x)      = call([x z], [0 t])   at block b, x its words before b, z and t from b on

    and what is behind a block changes nothing in it. Times are one per sequence or one per position (``OwnTimes``).
    One that is a ``SplitDenoiser`` too takes ``clean=`` and ``cache=`` in its ``features``; a ``SparseDenoiser`` takes
    ``cache=`` in ``features_at``.

    A cache is what the backbone makes of it. It has ``words``, the int64 words (B, length) that it stands for, and
    ``rows(index)``, the cache of some of the sequences. It never changes: a longer text has another one. Asked with one
    of other weights, or for another number of sequences, the backbone raises a ValueError that says so.
    """

    block_size: int
    """Positions of a block, counted from the beginning of a text; 0 for none, and then nothing else here is asked."""

    def __call__(self, z: Tensor, t: Tensor, *, clean: Tensor) -> Tensor:
        """The logits (B, L, V) of all blocks of z, each after the words ``clean`` (B, L) before it."""
        ...

    def prefill(self, x: Tensor, cache: Any = None) -> Any:
        """The cache of words x (B, n), whole blocks, that follow those of ``cache``; n may be 0."""
        ...

    def extend(self, z: Tensor, t: Tensor, cache: Any) -> Tensor:
        """The logits (B, n, V) of states z (B, n) that follow the words of the cache; the last block may be shorter."""
        ...


@runtime_checkable
class GuidedDenoiser(Protocol):
    """A denoiser that may tell the law of the next state itself, where no law of words does, see ``ddlib.guidance``."""

    def __call__(self, z: Tensor, t: Tensor) -> Tensor:
        """The logits, (B, L, V)."""
        ...

    @property
    def step_distribution(self) -> Callable[[Tensor, Tensor, Tensor], Tensor] | None:
        """``(z, t, s)`` to the log-law of z_s, (B, L, S), not normalised; None where the logits tell it."""
        ...


@runtime_checkable
class SparseDenoiser(SplitDenoiser, Protocol):
    """A split denoiser that can do without the features that nobody asks for.

    On a CPU it is asked for ``features_at`` in place of ``features``. Elsewhere it is not: shapes that change from call
    to call, and waiting to learn them, cost an accelerator more than what they save.
    """

    def features_at(self, z: Tensor, t: Tensor, positions: Tensor) -> Tensor:
        """``features(z, t)`` at ``positions`` (B, n) of each sequence, in their order: (B, n, D)."""
        ...


__getattr__ = module_getattr(
    __name__, {"Levelled": "HasLevelWeights", "StateLaw": "StateProbs", "WordLaw": "TokenProbs"}
)

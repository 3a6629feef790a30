"""Type aliases of tensors by shape, their axes, and protocols of denoisers and processes.

States are integers: tokens ``0..V-1``, then each level's clusters in order, the mask last.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any, Protocol, TypeVar, runtime_checkable

from jaxtyping import Bool, Float, Int64
from torch import Tensor
from typing_extensions import TypeIs, get_protocol_members

AXES = {
    "B": "sequences of a batch",
    "L": "positions of a sequence",
    "V": "tokens of the vocabulary",
    "S": "states: tokens, clusters, mask",
    "N": "rows, one draw each",
    "K": "choices of a draw; channels of an attention head; columns of an output layer",
    "levels": "levels of a hierarchy",
    "children": "finer side of a map between levels",
    "parents": "coarser side of a map between levels",
    "num_parents": "the same, beside an argument called parents",
    "kept": "children that a smaller map keeps",
    "kept_parents": "parents that a smaller map keeps",
    "l": "positions of a sequence, or 1 for all of them",
    "below": "level below the children of a map",
    "edges": "edges between levels",
    "m": "states of a small chain",
    "k": "terms of a series",
    "n": "a number that the function documents: of draws, of levels, of rows of a matrix",
    "w": "positions of a window",
    "P": "tokens before a sequence; pairs of nodes of a graph",
    "M": "nodes of a graph; states of a level in the order of another head",
    "*n": "any axes in front",
    "*batch": "any axes in front, in ddlib_models",
    "D": "width of the backbone",
    "C": "width of its conditioning",
    "E": "width of a pair of nodes",
    "H": "attention heads",
    "W": "length of the rows that packed sequences are laid out in",
    "half": "planes that rotary angles turn, half as many as channels",
}
"""All axes in annotations of ddlib and ddlib_models. Within one call an axis has one size."""

Tokens = Int64[Tensor, "B L"]
"""Tokens or states, int64."""

Times = Float[Tensor, "B"] | Float[Tensor, "B L"]
"""One time per sequence in [0, 1], or one per position: 0 is data, 1 is noise."""

Logits = Float[Tensor, "B L V"]
"""Unnormalised log-probabilities over tokens only."""

TokenProbs = Float[Tensor, "B L V"]
"""Distribution over tokens at every position; rows sum to 1."""

StateProbs = Float[Tensor, "B L S"]
"""Distribution (or rates) over states at every position."""

StateMatrix = Float[Tensor, "S S"]
"""Rates or probabilities between states, row = from, column = to."""

PerToken = Float[Tensor, "B L"]
"""One number per position, in nats per token unless stated otherwise."""

PaddingMask = Bool[Tensor, "B L"]
"""True at real tokens, False at padding."""

GivenTokens = Bool[Tensor, "B L"]
"""True at tokens of the context, which are never noised."""

Sharpen = Callable[[Tensor], Tensor]
"""Function of rows of unnormalised log-probabilities to such rows, such as temperature and
top-p.
"""

Denoiser = Callable[[Tensor, Tensor], Tensor]
"""The backbone: ``(z, t) -> logits`` with z (B, L) int64, t (B,) and logits (B, L, V)."""


Capability = TypeVar("Capability")


def implements(subject: object, protocol: type[Capability]) -> TypeIs[Capability]:
    """Return whether an object has all members of a protocol.

    From Python 3.12 on ``isinstance`` ignores attributes that ``__getattr__`` returns. Submodules
    and parameters of an ``nn.Module`` are such attributes, and so are all attributes of the module
    that ``torch.compile`` returns.
    """
    members = get_protocol_members(protocol)
    return all(
        hasattr(subject, name)
        and (getattr(subject, name) is not None or not callable(getattr(protocol, name, None)))
        for name in members
    )


@runtime_checkable
class HasLevelWeights(Protocol):
    """A process whose levels each have a probability and a loss weight that depend on time alone.

    Plots show these; for other processes they show means over tokens and states.
    """

    @property
    def levels(self) -> tuple[int, ...]:
        """Number of states of each level, tokens first, the mask last."""
        ...

    def occupancies(self, t: Tensor) -> Tensor:
        """Return the probability of each level at times ``t`` of any shape, (..., levels)."""
        ...

    def weights(self, t: Tensor) -> Tensor:
        """Return the loss weight of each level, (..., levels), in nats per nat of divergence.

        0 for tokens.
        """
        ...


@runtime_checkable
class Interpolating(Protocol):
    """A process with GIDD's mixing schedule, :math:`c_t = B t^{g/2} (1-t)^{g/2}` of uniform noise
    over V tokens.
    """

    scale: float
    """B / V."""
    gamma: float
    """The exponent g."""

    def mixture(self, t: Tensor) -> Any:
        """Return the mixture at times ``t`` of any shape.

        ``keep`` is the probability of no resampling.
        """
        ...


@runtime_checkable
class SplitDenoiser(Protocol):
    """A backbone with a separate output layer, so that samplers compute only the logits they need.

    ``logits = features(z, t) @ weight.T + bias``. Samplers call ``features`` of such an object and
    not the object, so forward hooks and ``torch.compile(model)`` have no effect. Compile
    ``model.features`` instead, or wrap the object in a function.
    """

    def __call__(self, z: Tensor, t: Tensor) -> Tensor:
        """Return the logits, (B, L, V)."""
        ...

    def features(self, z: Tensor, t: Tensor) -> Tensor:
        """Return the input of the output layer, (B, L, D)."""
        ...

    def output_weights(self) -> tuple[Tensor, Tensor | None]:
        """Return the output layer's matrix (V, D) and bias (V,), tokens in the tokenizer's order.

        For a product also (N, D) and (N,), with the tokens of each field in the order of the
        fields.
        """
        ...


@runtime_checkable
class ChildDenoiser(SplitDenoiser, Protocol):
    """A split denoiser whose output layer has a row for every state of a tree except its root.

    See ``ddlib.parameterization.tree_softmax``. The logits are (B, L, S - 1), and
    ``output_weights`` returns the rows, both in the order of the states.
    """

    tree: Sequence[Tensor] | None
    """Parents of every token, then of each level's clusters, as ``Tree`` takes them; empty if all
    tokens are children of the root, None if this network predicts tokens."""

    def siblings(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """Return matrix and bias in memory order, siblings contiguous, and the row of each state,
        (S - 1,).
        """
        ...


@runtime_checkable
class OwnTimes(Protocol):
    """A backbone that takes a time per position: ``t`` (B, L) in place of (B,)."""

    own_times: bool
    """True; missing or False in a network that takes one time per sequence."""


@runtime_checkable
class TakesMemory(SplitDenoiser, Protocol):
    """A split denoiser whose ``features`` take their own result of the previous call
    (self-conditioning).

    It must be a denoiser without a previous call too: ``memory=None``, for which rows of zeros may
    stand.
    """

    takes_memory: bool
    """True; missing or False in a network without memory."""

    def features(self, z: Tensor, t: Tensor, *, memory: Tensor | None = None) -> Tensor:
        """Return the input of the output layer, (B, L, D), given that of the previous call, of the
        same shape.
        """
        ...


@runtime_checkable
class TakesPadding(Protocol):
    """A backbone whose call, and ``features`` if it has them, take ``present`` (B, L) bool.

    False at padding, to which no position attends.
    """

    takes_padding: bool
    """True; missing or False in a network without this argument."""


@runtime_checkable
class Steps(Protocol):
    """Network whose training depends on the step."""

    def at_step(self, step: int) -> None:
        """Set the step 0, 1, ... that comes next."""
        ...


@runtime_checkable
class BlockDenoiser(Protocol):
    """A backbone with block-causal attention: positions attend to their block and to all earlier
    blocks, to none later.

    For tokens x before states z, a whole number of blocks of them, it must satisfy:

        extend(z, t, prefill(x)) = call([x z], [0 t])   at the positions of z
        call(z, t, clean=x)  = call([x z], [0 t])  at block b;
        x the tokens before b, z and t from b on

    and blocks after a block have no effect on it. Times are one per sequence or one per position
    (``OwnTimes``). A ``BlockDenoiser`` that is also a ``SplitDenoiser`` takes ``clean=`` and
    ``cache=`` in its ``features``, and a ``SparseDenoiser`` takes ``cache=`` in ``features_at``.

    The type of a cache is up to the backbone. It has ``tokens``, the int64 tokens (B, length) that
    it represents, and ``rows(index)``, the cache of some of the sequences. It is immutable: a
    longer sequence has another cache. The backbone raises ValueError for a cache of other weights,
    or of another number of sequences.
    """

    block_size: int
    """Number of positions of a block, from the beginning of a sequence; 0 if the backbone has no
    blocks.
    """

    def __call__(self, z: Tensor, t: Tensor, *, clean: Tensor) -> Tensor:
        """Return the logits (B, L, V) of all blocks of z, each given the tokens ``clean`` (B, L)
        before it.
        """
        ...

    def prefill(self, x: Tensor, cache: Any = None) -> Any:
        """Return the cache of tokens x (B, n), whole blocks, that follow those of ``cache``.

        n may be 0.
        """
        ...

    def extend(self, z: Tensor, t: Tensor, cache: Any) -> Tensor:
        """Return logits (B, n, V) of states z (B, n) after the tokens of the cache.

        The last block may be shorter.
        """
        ...


@runtime_checkable
class WindowDenoiser(Protocol):
    """A backbone that evaluates a window of positions, with cached keys and values of the positions
    around it.

        extend(z[:, a:b], t[:, a:b], prefill_around(z, t, a, b)) = call(z, t)   at positions a..b-1

    For other states in the window the result is approximate: the cached keys and values are those
    that the earlier states gave. With attention to all positions they would depend on the window
    too, and on its time. Times are one per position (``OwnTimes``). A ``SplitDenoiser`` takes
    ``cache=`` in its ``features``, a ``SparseDenoiser`` in ``features_at``, whose positions count
    from the beginning of the window.

    The type of a cache is up to the backbone. It is immutable and has ``rows(index)``, the cache of
    some of the sequences, and ``join(other)``, that of its sequences followed by those of another
    one. The backbone raises ValueError for a cache of other weights, of another window, or of
    another number of sequences.
    """

    def prefill_around(self, z: Tensor, t: Tensor, start: int, stop: int) -> Any:
        """Return the cache of the positions of z (B, L) outside of start..stop-1, at times t (B,
        L).
        """
        ...

    def extend(self, z: Tensor, t: Tensor, cache: Any) -> Tensor:
        """Return logits (B, n, V) of states z (B, n) at the positions of the window."""
        ...


@runtime_checkable
class JoinsCaches(Protocol):
    """A ``BlockDenoiser`` or ``WindowDenoiser`` that takes caches of unlike lengths in one call."""

    def cache_shape(self, cache: Any, width: int) -> tuple[Hashable, int] | None:
        """Return what joint caches have in common, and the number of cached positions of a
        sequence; None for a cache that is not joined with others at ``width`` states.
        """
        ...

    def join_caches(self, caches: Sequence[Any], size: int) -> Any:
        """Return the cache of the sequences of all caches, padded to ``size`` cached positions."""
        ...


@runtime_checkable
class GuidedDenoiser(Protocol):
    """A denoiser that defines the distribution of the next state directly, see ``ddlib.guidance``.

    An object that does so for some of its arguments alone has the attribute
    ``has_step_distribution``, False where its logits suffice.
    """

    def __call__(self, z: Tensor, t: Tensor) -> Tensor:
        """Return the logits, (B, L, V)."""
        ...

    def step_distribution(self, z: Tensor, t: Tensor, s: Tensor) -> Tensor:
        """Return log-probabilities of z_s given the states at t, (B, L, S), not normalised."""
        ...


@runtime_checkable
class SparseDenoiser(SplitDenoiser, Protocol):
    """A split denoiser that can compute its features at some positions alone.

    On a CPU samplers call ``features_at`` in place of ``features``. Accelerators use ``features``:
    changing shapes, and the synchronisation to determine them, cost more than they save.
    """

    def features_at(self, z: Tensor, t: Tensor, positions: Tensor) -> Tensor:
        """Return ``features(z, t)`` at ``positions`` (B, n) of each sequence, in their order: (B,
        n, D).
        """
        ...

"""Adapter of pretrained networks to ddlib: float32 logits at their own positions, -inf at ids that
are not tokens.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

import ddlib as dd
from ddlib.typing import BlockDenoiser, SplitDenoiser, WindowDenoiser, implements
from ddlib_models.hub.family import Family
from ddlib_models.hub.special_tokens import Special
from ddlib_models.io.constants import Constants


class Adapted(Constants):
    """A denoiser ``(z, t) -> logits`` of a pretrained network.

        logits_i = network(z)_{i - shift},   -inf at ids that are not tokens

    Args:
        network: ``(z, t) -> logits`` (B, L, V) over ids.
        special: the tokenizer's special ids.
        shift: positions to the left at which the network has a token's logits; the first ``shift``
            positions stay.
        parameterization: meaning of the logits.
        timed: whether the network uses the time; else times per position are accepted too.

    Attributes:
        parameterization: to be passed to ``dd.sample`` and ``dd.bound``.

    Raises:
        ValueError: a shift in a blockwise network, whose first logits would be in the block before.
    """

    def __init__(
        self,
        network: nn.Module,
        special: Special,
        shift: int = 0,
        parameterization: str = "cavity",
        timed: bool = False,
    ) -> None:
        super().__init__()
        if shift and getattr(network, "block_size", 0):
            raise ValueError(
                f"shift={shift}: must be 0 with block_size={network.block_size}, as the first "
                "token of a block would "
                "be predicted by the block before, which does not attend to it"
            )
        self.network = network
        self.special = special
        self.shift = shift
        self.parameterization = parameterization
        self.timed = timed
        if not timed or getattr(network, "own_times", False):
            self.own_times = True  # ddlib.typing.OwnTimes
        self.takes_padding = getattr(network, "takes_padding", False)  # ddlib.typing.TakesPadding
        self.barred = torch.zeros(special.vocab_size)
        self.barred[list(special.undrawn)] = -torch.inf
        self.undrawn = special.undrawn

    def forward(
        self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"], **options: Any
    ) -> Float[Tensor, "B L V"]:
        """Compute logits over tokens at every position, in float32, or float64 for a network in
        float64.

        Args:
            z: states.
            t: times; not passed to a network that ignores them.
            options: ``clean`` of a blockwise network; ``present`` (B, L) bool of one that supports
                padding.

        Raises:
            ValueError: a state that is neither a token nor the mask; and the errors of the network.
        """
        self.special.check(z)
        return self._final_logits(self._shift_output(self.network(z, self._times(z, t), **options)))

    def after(
        self, tokens: Int[Tensor, "*batch P"], left: Int[Tensor, " B"] | None = None
    ) -> "Adapted":
        """Return the denoiser of sequences that continue these tokens, if the network has a
        separate prompt input.

        Args:
            tokens: prompts.
            left: number of padding tokens of each, where lengths differ.

        Raises:
            TypeError: it has none: pass such tokens as the ``prompt`` of ``dd.sample``.
        """
        if not hasattr(self.network, "after"):
            raise TypeError(
                f"{type(self.network).__name__} cannot encode tokens before a sequence: pass them "
                "to dd.sample as its "
                "prompt"
            )
        moved = self.network.after(tokens, left)
        continued = type(self)(moved, self.special, self.shift, self.parameterization, self.timed)
        return continued.to(self.barred.device).train(self.training)

    def with_padding(self, left: Int[Tensor, " B"]) -> "Padded":
        """Return the denoiser of rows of which the first ``left`` positions are padding, see
        ``Padded``.
        """
        return Padded(self, left)

    def _final_logits(self, logits: Float[Tensor, "B L V"]) -> Float[Tensor, "B L V"]:
        return logits.to(torch.promote_types(logits.dtype, torch.float32)) + self.barred

    def _times(self, z: Tensor, t: Tensor) -> Tensor:
        return t if self.timed else torch.zeros(len(z), device=z.device)

    def _shift_output(self, output: Float[Tensor, "B L n"]) -> Float[Tensor, "B L n"]:
        """Shift the network's output to the positions that it predicts."""
        return (
            torch.cat([output[:, : self.shift], output[:, : output.shape[1] - self.shift]], 1)
            if self.shift
            else output
        )


class Halves(Adapted):
    """Adapter of a ``ddlib.typing.SplitDenoiser``, so that samplers compute only the logits that
    they need.
    """

    def features(
        self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"], **options: Any
    ) -> Float[Tensor, "B L D"]:
        """Compute the output layer's input, at the positions that it predicts."""
        self.special.check(z)
        return self._shift_output(self.network.features(z, self._times(z, t), **options))

    def output_weights(self) -> tuple[Float[Tensor, "V D"], Float[Tensor, " V"]]:
        """Return the tokens' rows of the output layer, with a bias of -inf at ids that are not
        tokens.
        """
        weight, bias = self.network.output_weights()
        barred = self.barred.to(weight.dtype)
        return weight, barred if bias is None else bias + barred


class JoiningCaches(Adapted):
    """Adapter of a network with caches, a ``ddlib.typing.JoinsCaches`` if the network is one."""

    def cache_shape(self, cache: Any, width: int) -> tuple[Hashable, int] | None:
        """Return what joint caches have in common; None if the network joins none."""
        shape = getattr(self.network, "cache_shape", None)
        return None if shape is None else shape(cache, width)

    def join_caches(self, caches: Sequence[Any], size: int) -> Any:
        """Return the cache of the sequences of all caches."""
        return self.network.join_caches(caches, size)


class Windowed(JoiningCaches, Halves):
    """Adapter of a split network with a cache around a window, a
    ``ddlib.typing.WindowDenoiser``.
    """

    def prefill_around(
        self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"], start: int, stop: int
    ) -> Any:
        """Compute the cache of the positions around a window."""
        self.special.check(z)
        return self.network.prefill_around(z, self._times(z, t), start, stop)

    def extend(
        self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"], cache: Any
    ) -> Float[Tensor, "B L V"]:
        """Compute logits of the states in the window."""
        return self(z, t, cache=cache)


class Blockwise(JoiningCaches):
    """Adapter of a blockwise network, a ``ddlib.typing.BlockDenoiser``."""

    @property
    def block_size(self) -> int:
        """Positions of a block."""
        return self.network.block_size

    def prefill(self, x: Int[Tensor, "B L"], cache: Any = None) -> Any:
        """Compute the cache of tokens that follow those of ``cache``, whole blocks."""
        self.special.check(x)
        return self.network.prefill(x, cache)

    def extend(
        self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"], cache: Any
    ) -> Float[Tensor, "B L V"]:
        """Compute logits of states that follow the cached tokens."""
        self.special.check(z)
        return self._final_logits(
            self._shift_output(self.network.extend(z, self._times(z, t), cache))
        )


class Padded(nn.Module):
    """Denoiser of sequences that begin at different columns, with the outputs of each sequence
    alone.

    Each row is moved to the left end, its padding masked behind it, so that no architecture has to
    count positions from elsewhere. ``left`` is indexed by row: sample with
    ``controls=[dd.controls.WholeBatch()]`` and a generator, not with seeds. Tokens in the padding
    are arbitrary, and so are the outputs there.

    Args:
        denoiser: denoiser of a network that supports padding, by ``present``.
        left: (B,) number of padding positions at the left of each row.

    Raises:
        ValueError: negative numbers, or a blockwise network, whose blocks count from the left end.
    """

    own_times = True
    shifts_rows = True
    """The noise of a position is that of its column, not of its place in the row."""

    def __init__(self, denoiser: Adapted, left: Int[Tensor, " B"]) -> None:
        super().__init__()
        if left.ndim != 1 or bool((left < 0).any()):
            raise ValueError(
                f"left is {left.tolist()}, must have shape (B,) and be at least 0, the padding of "
                "each row"
            )
        if getattr(denoiser, "block_size", 0):
            raise ValueError(
                f"left is {left.tolist()}, but blocks start at the left end: sample rows of one "
                "length at a time"
            )
        self.denoiser = denoiser
        self.left = left
        self.parameterization = denoiser.parameterization

    def forward(self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"]) -> Float[Tensor, "B L V"]:
        """Compute logits over tokens; arbitrary at padding.

        Raises:
            ValueError: another number of rows, or a row of padding alone.
        """
        if len(z) != len(self.left):
            raise ValueError(
                f"z has {len(z)} rows, but left has {len(self.left)}: sample with "
                "controls=[dd.controls.WholeBatch()], which keeps all rows in a batch"
            )
        place = torch.arange(z.shape[1], device=z.device)
        length = z.shape[1]
        left = self.left.to(z.device)[:, None]
        if bool((left >= length).any()):
            raise ValueError(
                f"left is {self.left.tolist()}, must be less than the {length} positions of a row"
            )
        moved = z.gather(1, (place + left) % length)
        times = t if t.ndim == 1 else t.gather(1, (place + left) % length)
        logits = self.denoiser(moved, times, present=place < length - left)
        back = (place - left) % length
        return logits.gather(1, back[..., None].expand(-1, -1, logits.shape[-1]))


def adapt(network: nn.Module, special: Special, family: Family) -> nn.Module:
    """Wrap a network by the adapter of its type, in evaluation mode."""
    if family.timed and not special.undrawn and not family.shift:  # no adapter is necessary
        network.parameterization = dd.Children.meaning(network, family.parameterization)
        return network.eval()
    blocks = bool(getattr(network, "block_size", 0)) and implements(network, BlockDenoiser)
    # the part that the network does not apply itself
    shift = family.shift - getattr(network, "shift", 0)
    kind = Blockwise if blocks else Halves if implements(network, SplitDenoiser) else Adapted
    if kind is Halves and not shift and implements(network, WindowDenoiser):
        kind = Windowed
    return kind(network, special, shift, family.parameterization, family.timed).eval()

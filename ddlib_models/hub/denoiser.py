"""A pretrained network as ddlib asks it: float32 logits at their own positions, none at ids that are no words."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ddlib.parameterization.logits import meaning
from ddlib.typing import BlockDenoiser, SplitDenoiser
from ddlib_models.hub.family import Family
from ddlib_models.hub.special_tokens import Special
from ddlib_models.io.constants import Constants


class Adapted(Constants):
    """A denoiser ``(z, t) -> logits`` of a pretrained network.

        logits_i = network(z)_{i - shift},   -inf at ids that are no words

    Args:
        network: ``(z, t) -> logits`` (B, L, V) over ids.
        special: which of these are words.
        shift: how far to the left of its position the network says what a word is; the first ``shift`` stay.
        parameterization: what the logits mean.
        timed: whether the network looks at the time; else it may be told one per position, like any other.

    Attributes:
        parameterization: to be handed to ``dd.sample`` and ``dd.bound``.

    Raises:
        ValueError: a shift in a network by blocks, whose first logits would stand in the block before.
    """

    def __init__(
        self, network: nn.Module, special: Special, shift: int = 0, parameterization: str = "cavity",
        timed: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        if shift and getattr(network, "block_size", 0):
            raise ValueError(
                f"shift={shift}: must be 0 with block_size={network.block_size}, the first word of a block would be "
                "told by the block before, which does not see it"
            )
        self.network, self.special, self.shift, self.parameterization = network, special, shift, parameterization
        self.timed = timed
        if not timed or getattr(network, "own_times", False):
            self.own_times = True  # ddlib.typing.OwnTimes
        self.barred = torch.zeros(special.vocab_size)
        self.barred[list(special.undrawn)] = -torch.inf

    def forward(self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"], **told: Any) -> Float[Tensor, "B L V"]:
        """Logits over words at every position, float32 or, of a network in float64, that.

        Args:
            z: states.
            t: times; a network that does not look at them is told none.
            told: ``clean`` of a network by blocks; ``present`` (B, L) bool of one that can leave positions out.

        Raises:
            ValueError: a state that is no word and not the mask; and what the network refuses.
        """
        self.special.check(z)
        return self._wide(self._moved(self.network(z, self._times(z, t), **told)))

    def after(self, words: Int[Tensor, "*batch P"], left: Int[Tensor, " B"] | None = None) -> "Adapted":
        """The same for texts that go on from these words, where the network keeps words before the text apart.

        Args:
            words: prompts.
            left: how many words of each are padding, where they are not of one length.

        Raises:
            TypeError: it does not: such words are the ``prompt`` of ``dd.sample``.
        """
        if not hasattr(self.network, "after"):
            raise TypeError(
                f"{type(self.network).__name__} keeps no words before the text: hand them to dd.sample as its prompt"
            )
        moved = self.network.after(words, left)
        other = type(self)(moved, self.special, self.shift, self.parameterization, self.timed)
        return other.to(self.barred.device).train(self.training)

    def padded(self, left: Int[Tensor, " B"]) -> "Padded":
        """The same for rows of which the first ``left`` positions are padding, see ``Padded``."""
        return Padded(self, left)

    def _wide(self, logits: Float[Tensor, "B L V"]) -> Float[Tensor, "B L V"]:
        return logits.to(torch.promote_types(logits.dtype, torch.float32)) + self.barred

    def _times(self, z: Tensor, t: Tensor) -> Tensor:
        return t if self.timed else torch.zeros(len(z), device=z.device)

    def _moved(self, said: Float[Tensor, "B L n"]) -> Float[Tensor, "B L n"]:
        """What the network says at the positions that it speaks of."""
        return torch.cat([said[:, : self.shift], said[:, : said.shape[1] - self.shift]], 1) if self.shift else said


class Halves(Adapted):
    """The same of a network in halves, a ``ddlib.typing.SplitDenoiser``: samplers compute the logits that they need."""

    def features(self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"], **told: Any) -> Float[Tensor, "B L D"]:
        """What the output layer reads, at the positions that it speaks of."""
        self.special.check(z)
        return self._moved(self.network.features(z, self._times(z, t), **told))

    def words(self) -> tuple[Float[Tensor, "V D"], Float[Tensor, " V"]]:
        """The words' rows of the output layer, with a bias of -inf at ids that are no words."""
        weight, bias = self.network.words()
        barred = self.barred.to(weight.dtype)
        return weight, barred if bias is None else bias + barred


class Blockwise(Adapted):
    """The same of a network by blocks, a ``ddlib.typing.BlockDenoiser``."""

    @property
    def block_size(self) -> int:
        """Positions of a block."""
        return self.network.block_size

    def prefill(self, x: Int[Tensor, "B L"], cache: Any = None) -> Any:
        """The cache of words that follow those of ``cache``, whole blocks."""
        self.special.check(x)
        return self.network.prefill(x, cache)

    def extend(self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"], cache: Any) -> Float[Tensor, "B L V"]:
        """The logits of states that follow the words of the cache."""
        self.special.check(z)
        return self._wide(self._moved(self.network.extend(z, self._times(z, t), cache)))


class Padded(nn.Module):
    """A denoiser of texts that begin at different columns, each told what it would be told alone.

    Each row is moved to the left end, its padding behind it out of sight, so that no architecture has to count
    positions from elsewhere. It goes by the number of the row: ``dd.sample(..., compact=False)``. What stands in the
    padding is no matter, any words do; nor is what it says there.

    Args:
        denoiser: of a network that can leave positions out, by ``present``.
        left: (B,) how many positions at the left of each row are padding.

    Raises:
        ValueError: negative numbers, or a network by blocks, which count from the left end.
    """

    own_times = True

    def __init__(self, denoiser: Adapted, left: Int[Tensor, " B"]) -> None:
        super().__init__()
        if left.ndim != 1 or bool((left < 0).any()):
            raise ValueError(f"left is {left.tolist()}, must be (B,) numbers of padding at least 0")
        if getattr(denoiser, "block_size", 0):
            raise ValueError(
                f"left is {left.tolist()}, and blocks count from the left end: sample rows of one length at a time"
            )
        self.denoiser, self.left, self.parameterization = denoiser, left, denoiser.parameterization

    def forward(self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"]) -> Float[Tensor, "B L V"]:
        """Logits over words; of no matter where the padding is.

        Raises:
            ValueError: another number of rows, or a row of padding alone.
        """
        if len(z) != len(self.left):
            raise ValueError(
                f"z has {len(z)} rows, padding is known of {len(self.left)}: sample with compact=False, which leaves "
                "no row out"
            )
        place, length = torch.arange(z.shape[1], device=z.device), z.shape[1]
        left = self.left.to(z.device)[:, None]
        if bool((left >= length).any()):
            raise ValueError(f"left is {self.left.tolist()}, must be less than the {length} positions of a row")
        moved = z.gather(1, (place + left) % length)
        times = t if t.ndim == 1 else t.gather(1, (place + left) % length)
        said = self.denoiser(moved, times, present=place < length - left)
        back = (place - left) % length
        return said.gather(1, back[..., None].expand(-1, -1, said.shape[-1]))


def adapted(network: nn.Module, special: Special, family: Family) -> nn.Module:
    """A network as ddlib asks it, with the abilities that it has, in evaluation mode."""
    if family.timed and not special.undrawn and not family.shift:  # it is one already
        network.parameterization = meaning(network, family.parameterization)
        return network.eval()
    blocks = bool(getattr(network, "block_size", 0)) and isinstance(network, BlockDenoiser)
    kind = Blockwise if blocks else Halves if isinstance(network, SplitDenoiser) else Adapted
    shift = family.shift - getattr(network, "shift", 0)  # what the network does not see to itself
    return kind(network, special, shift, family.parameterization, family.timed).eval()

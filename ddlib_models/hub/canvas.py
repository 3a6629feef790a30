"""DiffusionGemma as a blockwise denoiser: an encoder caches previous tokens, a canvas of noisy ones
is decoded.
"""

import copy
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ddlib_models.hub.family import WeightSource
from ddlib_models.hub.files import load_pretrained, transformers
from ddlib_models.io.constants import Constants


class CanvasDenoiser(Constants):
    """``DiffusionGemmaForBlockDiffusion`` of transformers as a blockwise network: (z, t) -> logits
    over tokens.

    Each block is a canvas, whose positions attend to each other and to all tokens before them,
    which the encoder has read from left to right. ``lead`` precedes the sequence. The canvas is
    also conditioned on the network's last output for it (self-conditioning), if called with the
    cache that ``prefill`` returned for this block: the cache stores that output, per row. Without a
    cache there is no previous output. The object is a ``BlockDenoiser`` of ddlib: sample with
    ``pace=dd.paces.Blocks(block_size)``.

    Outputs are stored unscaled. The model's own loop divides them by the temperature first.

    Args:
        network: the model of transformers.
        block_size: positions of a canvas; the last may be shorter.
        lead: (P,) or (B, P) tokens before the sequence, at least one: the beginning of a sequence,
            or a prompt, see ``after``.
        left: (B,) number of these that are padding in each row, which is not attended to; None for
            none.
        remembers: whether to use self-conditioning.
    """

    own_times = True  # ddlib.typing.OwnTimes: the time is ignored

    def __init__(
        self,
        network: nn.Module,
        block_size: int,
        lead: Int[Tensor, "*batch P"],
        left: Int[Tensor, " B"] | None = None,
        remembers: bool = True,
    ) -> None:
        super().__init__()
        if block_size < 1:
            raise ValueError(f"block_size={block_size}: must be at least 1")
        if lead.shape[-1] < 1:
            raise ValueError(
                f"lead has shape {tuple(lead.shape)}: must contain at least one token, to which "
                "the canvas attends"
            )
        if left is not None and (lead.ndim != 2 or left.shape != lead.shape[:1]):
            raise ValueError(
                f"left has shape {tuple(left.shape)}: must be (B,), lead has shape "
                f"{tuple(lead.shape)}"
            )
        if left is not None and bool(((left < 0) | (left >= lead.shape[-1])).any()):
            raise ValueError(
                f"left is {left.tolist()}: must be at least 0 and less than {lead.shape[-1]}, the "
                "tokens of a row of "
                "lead"
            )
        self.network = network
        self.block_size = block_size
        self.remembers = remembers
        self.lead = lead
        self.left = left

    def forward(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        *,
        clean: Int[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L V"]:
        """Compute logits over tokens, float32.

        Args:
            z: states, all of them tokens.
            t: times, which are ignored.
            clean: tokens of the same positions: each block attends to those of the blocks before
                it, not to z.
        """
        size = self.block_size
        before = z if clean is None else clean
        read = self._begin(len(z))
        logits = []
        for start in range(0, z.shape[1], size):
            logits.append(self._decode(z[:, start : start + size], read))
            if start + size < z.shape[1]:
                self._encode(before[:, start : start + size], read)
        return torch.cat(logits, 1)

    def after(
        self, tokens: Int[Tensor, "*batch P"], left: Int[Tensor, " B"] | None = None
    ) -> "CanvasDenoiser":
        """Return the denoiser of sequences that continue these tokens, which precede the first
        canvas.

        Args:
            tokens: prompts, with the token that begins a sequence if they have it.
            left: number of padding tokens of each, where lengths differ; their values are
                arbitrary.

        Raises:
            ValueError: no token, or another number of rows.
        """
        place = self.lead.device
        return CanvasDenoiser(
            self.network,
            self.block_size,
            tokens.to(place),
            None if left is None else left.to(place),
            self.remembers,
        )

    @torch.no_grad()
    def prefill(self, x: Int[Tensor, "B n"], cache: "EncoderCache | None" = None) -> "EncoderCache":
        """Encode the tokens of whole blocks, after those of ``cache``.

        Raises:
            ValueError: an incomplete block, or another number of sequences.
        """
        if x.ndim != 2 or x.shape[1] % self.block_size:
            raise ValueError(
                f"x has shape {tuple(x.shape)}: must consist of whole blocks, "
                f"block_size={self.block_size}"
            )
        if cache is not None and len(cache.tokens) != len(x):
            raise ValueError(
                f"cache: contains {len(cache.tokens)} sequences, but {len(x)} are given"
            )
        read = self._begin(len(x)) if cache is None else cache.read.copy()
        if x.shape[1]:
            self._encode(x, read)
        tokens = x if cache is None else torch.cat([cache.tokens, x], 1)
        return EncoderCache(
            tokens, read, LastOutput(len(x), x.device), torch.arange(len(x), device=x.device)
        )

    def extend(
        self, z: Int[Tensor, "B n"], t: Float[Tensor, "*batch"], cache: "EncoderCache"
    ) -> Float[Tensor, "B n V"]:
        """Compute logits of states that follow the cached tokens: a block, or several.

        Raises:
            ValueError: the cache is of another number of sequences.
        """
        if len(cache.tokens) != len(z):
            raise ValueError(
                f"cache: contains {len(cache.tokens)} sequences, but {len(z)} are given; "
                "cache.rows(index) selects "
                "some of them"
            )
        size = self.block_size
        if z.shape[1] > size:
            first = self.extend(z[:, :size], t, cache)
            return torch.cat(
                [first, self.extend(z[:, size:], t, self.prefill(z[:, :size], cache))], 1
            )
        logits = self._decode(z, cache.read, cache.last(z.shape[1]) if self.remembers else None)
        if self.remembers:
            cache.remember(logits.detach().to(self.network.dtype))
        return logits

    def _begin(self, rows: int) -> "EncoderState":
        """Encode the tokens that precede the sequence."""
        lead = self.lead.expand(rows, -1) if self.lead.ndim == 1 else self.lead
        if len(lead) != rows:
            raise ValueError(
                f"lead contains {len(lead)} sequences, but {rows} are requested: sample with "
                "controls=[dd.controls.WholeBatch()]"
            )
        config = self.network.config.get_text_config(decoder=True)
        present = (
            None
            if self.left is None
            else torch.arange(lead.shape[1], device=lead.device) >= self.left[:, None]
        )
        read = EncoderState(
            transformers().DynamicCache(config=config), None if present is None else present[:, :0]
        )
        self._encode(lead, read, present)
        return read

    def _encode(self, x: Tensor, read: "EncoderState", present: Tensor | None = None) -> None:
        read.present = read.beside(x, present)
        self.network.get_encoder()(
            input_ids=x, past_key_values=read.kept, attention_mask=read.present
        )

    def _decode(
        self, z: Tensor, read: "EncoderState", last: tuple[Tensor, Tensor] | None = None
    ) -> Tensor:
        logits, has_logits = (None, None) if last is None else last
        output = self.network(
            decoder_input_ids=z,
            past_key_values=read.kept,
            self_conditioning_logits=logits,
            self_conditioning_mask=has_logits,
            decoder_attention_mask=read.beside(z),
        )
        return output.logits.float()


@dataclass
class EncoderState:
    """State of the encoder: transformers' cache, and a mask of positions that are not padding.

    None without padding.
    """

    kept: Any
    present: Bool[Tensor, "B n"] | None

    def beside(
        self, x: Tensor, present: Bool[Tensor, "B m"] | None = None
    ) -> Bool[Tensor, "B n"] | None:
        """Return the mask of positions that are not padding, of these and further tokens, present
        by default.
        """
        if self.present is None:
            return None
        return torch.cat(
            [self.present, torch.ones_like(x, dtype=torch.bool) if present is None else present], 1
        )

    def copy(self) -> "EncoderState":
        """Return a copy that can be extended."""
        return EncoderState(copy.deepcopy(self.kept), self.present)

    def rows(self, index: Int[Tensor, " m"]) -> "EncoderState":
        """Select some of the sequences."""
        selected = self.copy()
        selected.kept.batch_select_indices(index)
        return EncoderState(selected.kept, None if self.present is None else self.present[index])


class LastOutput:
    """Last output of the network for a block, row by row."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.logits: Tensor | None = None
        self.known = torch.zeros(rows, dtype=torch.bool, device=device)

    def note(self, logits: Float[Tensor, "n m V"], index: Int[Tensor, " n"]) -> None:
        """Store the output of some rows."""
        if self.logits is None or self.logits.shape[1:] != logits.shape[1:]:
            self.logits = logits.new_zeros(len(self.known), *logits.shape[1:])
            self.known[:] = False
        self.logits[index] = logits
        self.known[index] = True


class EncoderCache:
    """Encoder cache of clean tokens, with the network's last output for the block behind them.

    Attributes:
        tokens: the cached tokens, (B, L), without those that precede the sequence.
        read: the encoder's state for them and for the tokens that precede the sequence.
    """

    def __init__(
        self,
        tokens: Int[Tensor, "B L"],
        read: EncoderState,
        outputs: LastOutput,
        index: Int[Tensor, " B"],
    ) -> None:
        self.tokens = tokens
        self.read = read
        self._outputs = outputs
        self._index = index

    def rows(self, index: Tensor) -> "EncoderCache":
        """Select some of the sequences; outputs stored for these are shared with the original."""
        index = index.nonzero()[:, 0] if index.dtype == torch.bool else index
        return EncoderCache(
            self.tokens[index], self.read.rows(index), self._outputs, self._index[index]
        )

    def last(self, length: int) -> tuple[Float[Tensor, "B n V"], Bool[Tensor, " B"]] | None:
        """Return the last output for ``length`` states, and which rows have one.

        None if there is none.
        """
        outputs = self._outputs
        if outputs.logits is None or outputs.logits.shape[1] != length:
            return None
        return outputs.logits[self._index], outputs.known[self._index]

    def remember(self, logits: Float[Tensor, "B n V"]) -> None:
        """Store the last output."""
        self._outputs.note(logits, self._index)


def canvas(source: WeightSource) -> CanvasDenoiser:
    """Load DiffusionGemma by its class in transformers, after the beginning of a sequence.

    Raises:
        ValueError: a transformers without it; a tokenizer without a token for the beginning of a
            sequence; missing weights.
    """
    kind = getattr(transformers(), "DiffusionGemmaForBlockDiffusion", None)
    if kind is None:
        raise ValueError(
            f"{source.name}: needs transformers 5.11 or newer, this is {transformers().__version__}"
        )
    if source.bos is None:
        raise ValueError(
            f"{source.name}: its tokenizer has no token for the beginning of text, which must "
            "precede the first canvas"
        )
    return CanvasDenoiser(
        load_pretrained(kind, source), source.block_size, torch.tensor([source.bos])
    )

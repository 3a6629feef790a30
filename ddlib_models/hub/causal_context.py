"""Causal language models that decode blocks bidirectionally behind a causal context
(Nemotron-Labs-Diffusion).
"""

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ddlib_models.attention.sight import additive_mask
from ddlib_models.hf.causal_lm import CausalLM
from ddlib_models.hf.kv_cache import Recall
from ddlib_models.hub.family import WeightSource
from ddlib_models.hub.networks import causal_lm
from ddlib_models.kv_cache import check_cache


class CausalContext(CausalLM):
    """A causal language model with noisy blocks: positions of a block attend to each other and to
    all tokens before.

    Clean tokens attend to themselves and to those before them, as in the causal model. In a call
    without ``clean`` the states of the blocks before a block are its context.

        logits_i = head(noisy_i),   at the first position of a later block head(clean_(i - 1))

    The second is the causal model's prediction, by which the published loop decodes that position.
    """

    takes_padding = False

    def cache_shape(self, cache: Recall, width: int) -> None:  # type: ignore[override]
        """Return None: caches are not joined."""

    def features(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        *,
        clean: Int[Tensor, "B L"] | None = None,
        present: Bool[Tensor, "B L"] | None = None,
        cache: Recall | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Compute the output layer's input.

        Raises:
            ValueError: as in ``CausalLM``; padding.
        """
        if present is not None or (clean is not None and cache is not None):
            raise ValueError(
                "present: not with a causal context; clean, cache: at most one of them may be given"
            )
        if clean is not None and clean.shape != z.shape:
            raise ValueError(
                f"clean has shape {tuple(clean.shape)}: must have that of z, {tuple(z.shape)}"
            )
        self._check(
            z, t, [z.shape[:1], z.shape], "(B,) or (B, L)", 0 if cache is None else cache.length
        )
        if cache is not None:
            check_cache(cache, Recall)
            cache.check(self, z, self.dtype)
        length = z.shape[1]
        output, _ = self._row(z, z if clean is None else clean, cache=cache)
        noisy = output[:, :length]
        causal = output[:, length:]
        last = noisy[:, :1] if cache is None or not cache.length else cache.last
        if not causal.shape[1]:
            return torch.cat([last, noisy[:, 1:]], 1)
        begins = torch.arange(length, device=z.device) % self.block_size == 0
        return torch.where(begins[:, None], torch.cat([last, causal[:, :-1]], 1), noisy)

    def _row(
        self,
        z: Tensor,
        clean: Tensor | None = None,
        present: Tensor | None = None,
        cache: Recall | None = None,
    ) -> tuple[Float[Tensor, "B n D"], Any]:
        """Run the network on clean tokens alone, or on noisy states and, behind the first block,
        the clean tokens.
        """
        length = z.shape[1]
        first = 0 if cache is None else cache.length
        # nothing attends to the clean tokens of the last block
        last_block = clean is not None and length <= self.block_size
        x = self.embed(z if clean is None or last_block else torch.cat([z, clean], 1))
        mask = self._mask(length, clean is not None, x.shape[1], z.device)
        mask = torch.cat([mask.new_ones(len(mask), first), mask], 1)
        places = torch.arange(first, first + length, device=z.device).repeat(
            x.shape[1] // max(length, 1)
        )[None]
        options: dict[str, Any] = {
            "position_ids": places,
            "attention_mask": additive_mask(mask[None, None], x.dtype),
        }
        new_cache = None if cache is None else self.to_transformers(cache)
        if new_cache is not None:
            options["past_key_values"] = new_cache
        return self._read(x, **options), new_cache

    def _mask(
        self, length: int, noisy: bool, row: int, device: torch.device
    ) -> Bool[Tensor, "n m"]:
        index = torch.arange(length, device=device)
        block = index // self.block_size
        causal = index[:, None] >= index
        if not noisy:
            return causal
        same = block[:, None] == block
        before = block[:, None] > block
        return torch.cat([torch.cat([same, before], 1), torch.cat([same & False, causal], 1)])[
            :row, :row
        ]


def causal_context(source: WeightSource) -> CausalLM:
    """Load a causal language model of transformers whose blocks are decoded behind a causal
    context.
    """
    return causal_lm(source, CausalContext)

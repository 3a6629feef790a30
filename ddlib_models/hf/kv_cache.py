"""Key/value cache for causal language models of Hugging Face."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ddlib_models.dit.checks import check_blocks
from ddlib_models.dit.layers import dtype_of
from ddlib_models.hf.base import HFBackbone, transformers_of
from ddlib_models.kv_cache import KVCacheBase

Pair = tuple[Float[Tensor, "B H n K"], Float[Tensor, "B H n K"]]


class Recall(KVCacheBase):
    """Keys and values of tokens, from ``CausalLM.prefill``; immutable, a longer sequence has a new cache.

    Attributes:
        pairs: keys and values of each layer in transformers' format; empty without tokens.
        last: the output layer's input at the last token, (B, 1, D); (B, 0, D) without tokens.
    """

    def __init__(
        self, words: Int[Tensor, "B L"], model: nn.Module, pairs: tuple[Pair, ...], last: Tensor, dtype: torch.dtype
    ) -> None:
        super().__init__(words, model)
        self.pairs, self.last, self._dtype = pairs, last, dtype

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def rows(self, index: Tensor) -> "Recall":
        """Select sequences by indices, repeated or not, or by a boolean mask; a copy."""
        with torch.inference_mode(False), torch.no_grad():
            pairs = tuple((keys[index], values[index]) for keys, values in self.pairs)
            return self._like(self.words[index], pairs, self.last[index])

    def grown(self, words: Int[Tensor, "B L"], pairs: tuple[Pair, ...], last: Float[Tensor, "B 1 D"]) -> "Recall":
        """Return the cache extended by these tokens, given keys and values of all tokens."""
        return self._like(torch.cat([self.words, words], 1), pairs, last)

    def _like(self, words: Tensor, pairs: tuple[Pair, ...], last: Tensor) -> "Recall":
        other = self._with(words)
        other.pairs, other.last = pairs, last
        return other


class CachedHFBackbone(HFBackbone):
    """A blockwise network with a cache of keys and values of finished blocks, a ``ddlib.typing.BlockDenoiser``."""

    block_size: int

    def prefill(self, x: Int[Tensor, "B n"], cache: Recall | None = None) -> Recall:
        """Compute keys and values of tokens, for the tokens that follow them.

        Args:
            x: tokens, a whole number of blocks.
            cache: the cache of the tokens in front of them; None at the beginning of the sequence.

        Returns:
            The cache of all these tokens. It holds no gradients; the given cache is not changed.

        Raises:
            ValueError: no blocks, or an incomplete one; no tokens; a cache of other weights, sequences or dtype; a
                network that does not cache keys and values of all its layers.
        """
        check_blocks(x, self.block_size, self.vocab_size)
        with torch.inference_mode(False), torch.no_grad():  # later use may be outside of that mode
            if cache is None:
                start = self.decoder.weight.new_empty(len(x), 0, self.decoder.in_features)
                cache = Recall(x[:, :0], self, (), start, self.dtype)
            else:
                cache.check(self, x, self.dtype)
            if not x.shape[1]:
                return cache
            features, kept = self._row(x, cache=cache)
            if any(layer.get_seq_length() != cache.length + x.shape[1] for layer in kept.layers):
                raise ValueError(
                    f"{self._name} does not keep keys and values of every word: dd.sample(keep=False) reads them again"
                )
            pairs = tuple((layer.keys, layer.values) for layer in kept.layers)
            return cache.grown(x, pairs, features[:, -1:])

    def extend(self, z: Int[Tensor, "B n"], t: Float[Tensor, "*batch"], cache: Recall) -> Float[Tensor, "B n V"]:
        """Compute logits of states z that follow the cached tokens: one or more blocks, the last may be shorter.

        Raises:
            ValueError: as in a call; the cache is of other weights, sequences or dtype.
        """
        logits: Tensor = self(z, t, cache=cache)
        return logits

    @property
    def dtype(self) -> torch.dtype:
        """Dtype that the network computes in at present, which an enclosing autocast may set."""
        return dtype_of(self.decoder)

    def opened(self, cache: Recall) -> Any:
        """Return a transformers cache with these keys and values; writing to it does not change this one."""
        return transformers_of(self).DynamicCache(cache.pairs or None)

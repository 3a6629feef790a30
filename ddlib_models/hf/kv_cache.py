"""What a causal language model has worked out about words, for those that follow: transformers' keys and values."""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ddlib_models.dit.inputs import check_blocks
from ddlib_models.dit.layers import dtype_of
from ddlib_models.hf.base import HFBackbone, transformers_of
from ddlib_models.kv_cache import KVCacheBase

Pair = tuple[Float[Tensor, "B H n K"], Float[Tensor, "B H n K"]]


class Recall(KVCacheBase):
    """Keys and values of words, from ``CausalLM.prefill``; it never changes, a longer text has another one.

    Attributes:
        pairs: keys and values of each layer, as transformers keeps them; none where there are no words.
        last: what the output layer would read at the last word, (B, 1, D); (B, 0, D) where there are no words.
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
        """Some of its sequences, by their numbers, any of them several times, or by a boolean for each; a copy."""
        with torch.inference_mode(False), torch.no_grad():
            pairs = tuple((keys[index], values[index]) for keys, values in self.pairs)
            return self._like(self.words[index], pairs, self.last[index])

    def grown(self, words: Int[Tensor, "B L"], pairs: tuple[Pair, ...], last: Float[Tensor, "B 1 D"]) -> "Recall":
        """The cache of these words too, given what has been worked out about all of them."""
        return self._like(torch.cat([self.words, words], 1), pairs, last)

    def _like(self, words: Tensor, pairs: tuple[Pair, ...], last: Tensor) -> "Recall":
        other = self._with(words)
        other.pairs, other.last = pairs, last
        return other


class CachedHFBackbone(HFBackbone):
    """A network by blocks that keeps keys and values of finished ones, a ``ddlib.typing.BlockDenoiser``."""

    block_size: int

    def prefill(self, x: Int[Tensor, "B n"], cache: Recall | None = None) -> Recall:
        """Keys and values of words, for what follows them.

        Args:
            x: words, a whole number of blocks.
            cache: the words in front of them; None where the text begins.

        Returns:
            The cache of all these words. It holds no gradients; the given one stays what it was.

        Raises:
            ValueError: no blocks, or a broken one; no words; a cache of other weights, sequences or digits; a network
                that keeps no keys and values of all its layers.
        """
        check_blocks(x, self.block_size, self.vocab_size)
        with torch.inference_mode(False), torch.no_grad():  # it may be gone on from outside of that mode
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
        """The logits of states z that follow the words of the cache: one block or several, the last may be shorter.

        Raises:
            ValueError: as a call; the cache is of other weights, sequences or digits.
        """
        logits: Tensor = self(z, t, cache=cache)
        return logits

    @property
    def dtype(self) -> torch.dtype:
        """What the network computes in here and now, which an enclosing autocast may decide."""
        return dtype_of(self.decoder)

    def opened(self, cache: Recall) -> Any:
        """transformers' cache of what this one keeps; what is written to it does not change this one."""
        return transformers_of(self).DynamicCache(cache.pairs or None)

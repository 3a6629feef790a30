"""Key/value caches for causal language models of Hugging Face."""

from abc import abstractmethod
from collections.abc import Hashable, Sequence
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn.functional import pad

from ddlib_models.dit.inputs import check_blocks
from ddlib_models.dit.layers import dtype_of
from ddlib_models.hf.base import HFBackbone, transformers_of
from ddlib_models.kv_cache import KVCacheBase
from ddlib_models.window_cache import Pair, WindowCache, check_window, places


class Recall(KVCacheBase):
    """Keys and values of tokens, from ``CausalLM.prefill``.

    Immutable, a longer sequence has a new cache.

    Attributes:
        pairs: keys and values of each layer in transformers' format; empty without tokens.
        last: the output layer's input at the last token, (B, 1, D); (B, 0, D) without tokens.
    """

    def __init__(
        self,
        tokens: Int[Tensor, "B L"],
        model: nn.Module,
        pairs: tuple[Pair, ...],
        last: Tensor,
        dtype: torch.dtype,
    ) -> None:
        super().__init__(tokens, model)
        self.pairs = pairs
        self.last = last
        self._dtype = dtype

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def rows(self, index: Tensor) -> "Recall":
        """Select sequences by indices, repeated or not, or by a boolean mask; a copy."""
        with torch.inference_mode(False), torch.no_grad():
            pairs = tuple((keys[index], values[index]) for keys, values in self.pairs)
            return self._like(self.tokens[index], pairs, self.last[index])

    def append(
        self, tokens: Int[Tensor, "B L"], pairs: tuple[Pair, ...], last: Float[Tensor, "B 1 D"]
    ) -> "Recall":
        """Return the cache extended by these tokens, given keys and values of all tokens."""
        return self._like(torch.cat([self.tokens, tokens], 1), pairs, last)

    def _like(self, tokens: Tensor, pairs: tuple[Pair, ...], last: Tensor) -> "Recall":
        result = self._with(tokens)
        result.pairs = pairs
        result.last = last
        return result


AnyCache = Recall | WindowCache
"""A cache of the tokens in front of a row, or of the positions around it."""


class JoinedCaches(KVCacheBase):
    """Caches of sequences with unlike numbers of cached positions, padded, for one call of all.

    Attributes:
        first: position of each sequence's first state that is not cached, (B,).
        counts: number of cached positions of each, (B,); padding follows them.
        pairs: keys and values of each layer in transformers' format.
        last: as in ``Recall``.

    Args:
        caches: at least one, alike in what ``CausalLM.cache_shape`` returns.
        size: cached positions, those of padding included.

    Raises:
        ValueError: caches of other weights than the first.
    """

    def __init__(self, caches: Sequence[AnyCache], size: int) -> None:
        one = caches[0]
        if any(other._weights != one._weights for other in caches):
            raise ValueError("cache: the caches are of unlike weights; prefill again")
        self._one = one
        self._model = one._model
        self._weights = one._weights
        counts = [sum(places(cache)) for cache in caches]
        starts = [places(cache)[0] for cache in caches]
        rows = torch.tensor([len(cache.tokens) for cache in caches])
        device = one.tokens.device
        self.first = torch.tensor(starts).repeat_interleave(rows).to(device)
        self.counts = torch.tensor(counts).repeat_interleave(rows).to(device)
        self.tokens = one.tokens.new_zeros(len(self.first), max(starts))
        self.last = torch.cat([cache.last for cache in caches])
        with torch.inference_mode(False), torch.no_grad():
            self.pairs = tuple(
                tuple(
                    torch.cat(
                        [
                            pad(cache.pairs[layer][part], (0, 0, 0, size - count))
                            for cache, count in zip(caches, counts, strict=True)
                        ]
                    )
                    for part in range(2)
                )
                for layer in range(len(one.pairs))
            )

    @property
    def dtype(self) -> torch.dtype:
        return self._one.dtype

    def _state(self, model: nn.Module) -> Any:
        return self._one._state(model)

    def rows(self, index: Int[Tensor, " n"]) -> "JoinedCaches":
        """Select sequences by indices, repeated or not; a copy."""
        result = self._with(self.tokens[index])
        result.first = self.first[index]
        result.counts = self.counts[index]
        result.last = self.last[index]
        result.pairs = tuple((keys[index], values[index]) for keys, values in self.pairs)
        return result

    def positions(self, length: int) -> Int[Tensor, "B n"]:
        return self.first[:, None] + torch.arange(length, device=self.first.device)

    def mask(self, length: int, block_size: int, sight: float) -> Bool[Tensor, "B 1 n m"]:
        """Return the mask of ``length`` states of one block, which attend to each other and to
        cached positions that are not padding.
        """
        size = self.pairs[0][0].shape[2] if self.pairs else 0
        key = torch.arange(size + length, device=self.counts.device)
        seen = (key < self.counts[:, None]) | (key >= size)
        return seen[:, None, None].expand(-1, -1, length, -1)


class CachedHFBackbone(HFBackbone):
    """A network with caches of keys and values, a ``ddlib.typing.BlockDenoiser`` and a
    ``WindowDenoiser``.
    """

    attention: str
    block_size: int
    shift: int

    def prefill(self, x: Int[Tensor, "B n"], cache: Recall | None = None) -> Recall:
        """Compute keys and values of tokens, for the tokens that follow them.

        Args:
            x: tokens, a whole number of blocks.
            cache: the cache of the tokens in front of them; None at the beginning of the sequence.

        Returns:
            The cache of all these tokens. It holds no gradients; the given cache is not changed.

        Raises:
            ValueError: no blocks, or an incomplete one; no tokens; a cache of other weights,
                sequences or dtype; a network that does not cache keys and values of all its layers.
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
            pairs, features = self._keys(x, cache)
            return cache.append(x, pairs, features[:, -1:])

    def prefill_around(
        self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"], start: int, stop: int
    ) -> WindowCache:
        """Compute keys and values of the positions around a window, for other states in it.

            extend(z[:, start:stop], t, prefill_around(z, t, start, stop))
                = model(z, t)  in the window

        For other states of the window ``extend`` is approximate: with attention to all positions
        the keys and values around it would change too, and with ``shift=1`` the features in front
        of it.

        Args:
            z: states of the full sequence, (B, L).
            t: times, which are ignored.
            start: first position of the window.
            stop: first position behind it.

        Raises:
            ValueError: no window of z; ``attention="causal"``; a network that does not cache keys
                and values of all its layers.
        """
        check_window(z, start, stop)
        if self.attention == "causal":
            raise ValueError(
                "attention='causal': positions after a window have no effect on it, so a window "
                "has no cache"
            )
        self._check(z, t, [z.shape[:1], z.shape], "(B,) or (B, L)")
        with torch.inference_mode(False), torch.no_grad():
            layers, features = self._keys(
                z, WindowCache(z, self, 0, z.shape[1], (), dtype=self.dtype)
            )
            pairs = tuple(
                (around(keys, start, stop), around(values, start, stop)) for keys, values in layers
            )
            last = features[:, max(start - 1, 0) : start] if self.shift else features[:, :0]
            return WindowCache(z, self, start, stop, pairs, last, dtype=self.dtype)

    def _keys(self, x: Tensor, cache: AnyCache) -> tuple[tuple[Pair, ...], Float[Tensor, "B n D"]]:
        """Return keys and values of each layer behind the cached tokens, and the features."""
        features, new_cache = self._row(x, cache=cache)
        if any(
            layer.get_seq_length() != sum(places(cache)) + x.shape[1] for layer in new_cache.layers
        ):
            raise ValueError(
                f"{self._name} does not keep keys and values of every token: use "
                "dd.sample(controls=[dd.contrib.Cache('none')]), which "
                "computes them at every step"
            )
        return tuple((layer.keys, layer.values) for layer in new_cache.layers), features

    @abstractmethod
    def _row(
        self,
        z: Tensor,
        clean: Tensor | None = None,
        present: Tensor | None = None,
        cache: AnyCache | None = None,
    ) -> tuple[Float[Tensor, "B n D"], Any]:
        """Run the network on a row; return its output and transformers' new cache."""

    def extend(
        self, z: Int[Tensor, "B n"], t: Float[Tensor, "*batch"], cache: AnyCache
    ) -> Float[Tensor, "B n V"]:
        """Compute logits of states z that follow the cached tokens: one or more blocks, the last
        may be shorter.

        Or those at the window of the cache, see ``prefill_around``.

        Raises:
            ValueError: as in a call; the cache is of other weights, sequences, window or dtype.
        """
        logits: Tensor = self(z, t, cache=cache)
        return logits

    def cache_shape(self, cache: AnyCache, width: int) -> tuple[Hashable, int] | None:
        """Return what joint caches have in common, and the number of cached positions; see
        ``ddlib.typing.JoinsCaches``.

        None where states do not attend to each other and to all cached positions: several blocks.
        """
        if self.block_size and (width > self.block_size or isinstance(cache, WindowCache)):
            return None
        count = sum(places(cache))
        return (type(cache), cache.dtype, cache.last.shape[1:], count > 0), count

    def join_caches(self, caches: Sequence[AnyCache], size: int) -> JoinedCaches:
        """Return the cache of all sequences, padded to ``size`` cached positions."""
        return JoinedCaches(caches, size)

    @property
    def dtype(self) -> torch.dtype:
        """Dtype that the network computes in at present, which an enclosing autocast may set."""
        return dtype_of(self.decoder)

    def to_transformers(self, cache: AnyCache) -> Any:
        """Return a transformers cache with these keys and values.

        Writing to it does not change this one.
        """
        return transformers_of(self).DynamicCache(cache.pairs or None)


def around(x: Float[Tensor, "B H L K"], start: int, stop: int) -> Float[Tensor, "B H n K"]:
    """Return the keys or values of the positions before a window, followed by those behind it.

    A copy.
    """
    return torch.cat([x[:, :, :start], x[:, :, stop:]], 2)

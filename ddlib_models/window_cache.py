"""Key/value caches of the positions around a window, for other states in it."""

from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ddlib_models.kv_cache import KVCacheBase

Pair = tuple[Float[Tensor, "B ... K"], Float[Tensor, "B ... K"]]


class WindowSlot(NamedTuple):
    """Keys and values of one layer at all positions, of which those from ``start`` on are replaced
    by new ones.
    """

    keys: Float[Tensor, "B L H K"]
    values: Float[Tensor, "B L H K"]
    start: int

    def join(
        self, keys: Float[Tensor, "B n H K"], values: Float[Tensor, "B n H K"]
    ) -> tuple[Float[Tensor, "B L H K"], Float[Tensor, "B L H K"]]:
        """Return keys and values of all positions, with the given ones in the window.

        No copy without gradients.
        """
        stop = self.start + keys.shape[1]
        if torch.is_grad_enabled():  # in-place writes would invalidate the backward pass
            pairs = (self.keys, keys), (self.values, values)
            pair = [torch.cat([old[:, : self.start], new, old[:, stop:]], 1) for old, new in pairs]
            return pair[0], pair[1]
        self.keys[:, self.start : stop] = keys
        self.values[:, self.start : stop] = values
        return self.keys, self.values


class WindowCache(KVCacheBase):
    """Keys and values of the positions around a window, from ``prefill_around``; immutable.

    Attributes:
        tokens: the states that they were computed from, (B, L), of the window too.
        start: first position of the window.
        stop: first position behind it.
        pairs: keys and values of each layer, the batch in front, in the format of the network.
        last: features of the position in front of the window for a network that shifts them, else
            (B, 0, D).
        labels: the class of each sequence, (B,); None for a network without classes.
    """

    def __init__(
        self,
        tokens: Int[Tensor, "B L"],
        model: nn.Module,
        start: int,
        stop: int,
        pairs: tuple[Pair, ...],
        last: Tensor | None = None,
        labels: Int[Tensor, "B"] | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(tokens, model)
        self.start = start
        self.stop = stop
        self.pairs = pairs
        self.labels = labels
        self.last = tokens.new_empty(len(tokens), 0) if last is None else last
        self._dtype = pairs[0][0].dtype if dtype is None else dtype

    def _state(self, model: nn.Module) -> Any:
        """Return memory and version of each parameter: a checksum of all takes a third of the time
        of a short window.

        Changes through ``.data`` are not detected.
        """
        return [
            (p.data_ptr(), None if p.is_inference() else p._version) for p in model.parameters()
        ]

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    @property
    def around(self) -> tuple[int, int]:
        return self.start, self.length - self.stop

    def rows(self, index: Tensor) -> "WindowCache":
        """Select sequences by indices, repeated or not, or by a boolean mask; a copy."""
        with torch.inference_mode(False), torch.no_grad():
            pairs = tuple((keys[index], values[index]) for keys, values in self.pairs)
            labels = None if self.labels is None else self.labels[index]
            return self._like(self.tokens[index], pairs, self.last[index], labels)

    def join(self, other: "WindowCache") -> "WindowCache":
        """Return the cache of these sequences, followed by those of another cache of the same
        window.
        """
        with torch.inference_mode(False), torch.no_grad():
            layers = zip(self.pairs, other.pairs, strict=True)
            pairs = tuple((torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])) for a, b in layers)
            labels = None
            if self.labels is not None and other.labels is not None:
                labels = torch.cat([self.labels, other.labels])
            return self._like(
                torch.cat([self.tokens, other.tokens]),
                pairs,
                torch.cat([self.last, other.last]),
                labels,
            )

    def check(self, model: nn.Module, z: Int[Tensor, "B n"], dtype: torch.dtype) -> None:
        """Raise as for other caches, and for another number of positions than the window has."""
        super().check(model, z, dtype)
        if z.shape[1] != self.stop - self.start:
            raise ValueError(
                f"cache: is that of the window {self.start}..{self.stop - 1} of "
                f"{self.stop - self.start} positions, "
                f"but z has {z.shape[1]}"
            )

    def slots(self) -> list[WindowSlot]:
        """Return the buffers of each layer, whose pairs have all positions."""
        return [WindowSlot(keys, values, self.start) for keys, values in self.pairs]

    def _like(
        self, tokens: Tensor, pairs: tuple[Pair, ...], last: Tensor, labels: Tensor | None
    ) -> "WindowCache":
        result = self._with(tokens)
        result.pairs = pairs
        result.last = last
        result.labels = labels
        return result


def check_window(z: Tensor, start: int, stop: int) -> None:
    """Raise ValueError unless start..stop-1 are positions of z (B, L)."""
    if z.ndim != 2 or not 0 <= start < stop <= z.shape[1]:
        raise ValueError(
            f"start={start}, stop={stop}: must be a window of z, 0 <= start < stop <= L, which has "
            "shape "
            f"{tuple(z.shape)}"
        )


def places(cache: KVCacheBase | None) -> tuple[int, int]:
    """Return the number of cached positions in front of a row, and behind it."""
    return (0, 0) if cache is None else cache.around

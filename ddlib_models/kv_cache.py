"""Key/value caches of clean tokens, for the tokens that follow them."""

from abc import ABC, abstractmethod
from copy import copy
from typing import NamedTuple, Self
from weakref import ref

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class Slot(NamedTuple):
    """Keys and values of one layer in a preallocated buffer, of which ``filled`` positions are used."""

    keys: Float[Tensor, "B L H K"]
    values: Float[Tensor, "B L H K"]
    filled: int

    def join(
        self, keys: Float[Tensor, "B n H K"], values: Float[Tensor, "B n H K"]
    ) -> tuple[Float[Tensor, "B L H K"], Float[Tensor, "B L H K"]]:
        """Return all keys and values so far, followed by the given ones.

        Without gradients the new ones are written into the free part of the buffer, and nothing is copied.
        """
        end = self.filled + keys.shape[1]
        if torch.is_grad_enabled():  # in-place writes would invalidate the backward pass
            kept = self.keys[:, : self.filled], self.values[:, : self.filled]
            return torch.cat([kept[0], keys], 1), torch.cat([kept[1], values], 1)
        self.keys[:, self.filled : end] = keys
        self.values[:, self.filled : end] = values
        return self.keys[:, :end], self.values[:, :end]


class WindowSlot(NamedTuple):
    """Keys and values of one layer at all positions, of which those from ``start`` on are replaced by new ones."""

    keys: Float[Tensor, "B L H K"]
    values: Float[Tensor, "B L H K"]
    start: int

    def join(
        self, keys: Float[Tensor, "B n H K"], values: Float[Tensor, "B n H K"]
    ) -> tuple[Float[Tensor, "B L H K"], Float[Tensor, "B L H K"]]:
        """Return keys and values of all positions, with the given ones in the window; no copy without gradients."""
        stop = self.start + keys.shape[1]
        if torch.is_grad_enabled():  # in-place writes would invalidate the backward pass
            pairs = (self.keys, keys), (self.values, values)
            joined = [torch.cat([old[:, : self.start], new, old[:, stop:]], 1) for old, new in pairs]
            return joined[0], joined[1]
        self.keys[:, self.start : stop] = keys
        self.values[:, self.start : stop] = values
        return self.keys, self.values


class Store:
    """One tensor for all layers, (layers, 2, B, capacity, H, K), shared by the caches of a sequence as it grows."""

    def __init__(self, tensor: Tensor, filled: int) -> None:
        self.tensor, self.filled = tensor, filled

    def moved(self, length: int, room: int) -> "Store":
        """Copy the first ``length`` positions into a tensor with capacity ``room``."""
        depth, two, batch, _, heads, channels = self.tensor.shape
        with torch.inference_mode(False), torch.no_grad():  # later writes may happen outside of that mode
            tensor = self.tensor.new_empty(depth, two, batch, room, heads, channels)
            tensor[:, :, :, :length] = self.tensor[:, :, :, :length]
        return Store(tensor, length)


class KVCacheBase(ABC):
    """Base of the caches: activations of clean tokens, valid for one network only.

    Attributes:
        words: the cached tokens, (B, L), from the beginning of the sequence.
        labels: the class of each sequence, (B,); None for a network without classes.
    """

    labels: Int[Tensor, "B"] | None = None

    def __init__(self, words: Int[Tensor, "B L"], model: nn.Module) -> None:
        self.words, self._model, self._numbers = words, ref(model), numbers(model)

    @property
    def length(self) -> int:
        """Number of cached tokens per sequence."""
        return self.words.shape[1]

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Dtype of the cached tensors."""

    def check(self, model: nn.Module, z: Int[Tensor, "B L"], dtype: torch.dtype) -> None:
        """Raise unless the cache belongs to this network, this batch and this dtype.

        On a CPU a checksum of all parameters detects a change of the weights (``numbers``). On an accelerator that
        would synchronise at every step and is not done: after a training step there, prefill again.

        Raises:
            ValueError: naming what differs.
        """
        if self._model() is not model:
            raise ValueError(f"cache: holds keys and values of another {type(model).__name__}; prefill with this one")
        if self.words.device != z.device:
            raise ValueError(f"cache: lies on {self.words.device}, what follows on {z.device}; prefill there")
        if len(self.words) != len(z):
            raise ValueError(
                f"cache: holds {len(self.words)} sequences, asked for {len(z)}; cache.rows(index) takes some of them"
            )
        if self.dtype != dtype:
            raise ValueError(f"cache: holds {self.dtype}, the network computes in {dtype} now; prefill again")
        if not torch.compiler.is_compiling() and self._numbers != numbers(model):
            raise ValueError("cache: the weights have changed since it was made; prefill again")

    def check_labels(self, labels: Int[Tensor, "B"] | None) -> None:
        """Raise ValueError for other labels than those of the cached tokens; on a CPU only, as in ``check``."""
        if labels is None or self.labels is None or labels.device.type != "cpu" or torch.compiler.is_compiling():
            return
        other = (labels != self.labels).nonzero()
        if len(other):
            row = int(other[0])
            raise ValueError(
                f"cache: holds label {int(self.labels[row])} in row {row}, asked for {int(labels[row])}; prefill with "
                "the same labels (the last class is the null class)"
            )

    def _with(self, words: Int[Tensor, "B L"]) -> Self:
        """Return a copy with other tokens."""
        if self._model() is None:
            raise ValueError("cache: the network it belongs to is gone")
        other = copy(self)
        other.words = words
        return other


class Cache(KVCacheBase):
    """Keys and values of clean tokens at time 0, from ``DiT.prefill``; immutable, a longer sequence has a new cache.

    Caches of one growing sequence share memory, whose capacity doubles as needed. If two caches continue the same
    tokens in different ways, the second copies them first.

    Attributes:
        words: the cached tokens, (B, L), from the beginning of the sequence.
        labels: the class of each sequence, (B,); None for a network without classes.
    """

    def __init__(
        self, words: Int[Tensor, "B L"], store: Store, model: nn.Module, labels: Int[Tensor, "B"] | None = None
    ) -> None:
        super().__init__(words, model)
        self._store, self.labels = store, labels

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of keys and values."""
        return self._store.tensor.dtype

    def rows(self, index: Tensor) -> "Cache":
        """Select sequences by indices, repeated or not, or by a boolean mask; a copy."""
        with torch.inference_mode(False), torch.no_grad():
            words, whole = self.words[index], self._store.tensor
            taken = index.nonzero().flatten() if index.dtype == torch.bool else index
            some = whole.new_empty(*whole.shape[:2], len(words), *whole.shape[3:])
            # unused capacity is not copied
            for i, row in enumerate(taken.tolist()):
                some[:, :, i, : self.length] = whole[:, :, row, : self.length]
            other = self._like(words, Store(some, self.length))
            other.labels = None if self.labels is None else self.labels[index]
            return other

    def slots(self, number: int) -> list[Slot]:
        """Return the buffer of each layer, with capacity for ``number`` more positions."""
        need, store = self.length + number, self._store
        if store.filled > self.length or store.tensor.shape[3] < need:
            self._store = store = store.moved(self.length, max(need, 2 * self.length))
        return [Slot(keys, values, self.length) for keys, values in store.tensor]

    def grown(self, words: Int[Tensor, "B L"]) -> "Cache":
        """Return the cache extended by these tokens, whose keys and values are in the slots already."""
        self._store.filled += words.shape[1]
        return self._like(torch.cat([self.words, words], 1), self._store)

    def _like(self, words: Tensor, store: Store) -> "Cache":
        other = self._with(words)
        other._store = store
        return other


Pair = tuple[Float[Tensor, "B ... K"], Float[Tensor, "B ... K"]]


class WindowCache(KVCacheBase):
    """Keys and values of the positions around a window, from ``prefill_around``; immutable.

    Attributes:
        words: the states that they were computed from, (B, L), of the window too.
        start: first position of the window.
        stop: first position behind it.
        pairs: keys and values of each layer, the batch in front, in the format of the network.
        last: features of the position in front of the window for a network that shifts them, else (B, 0, D).
        labels: the class of each sequence, (B,); None for a network without classes.
    """

    def __init__(
        self, words: Int[Tensor, "B L"], model: nn.Module, start: int, stop: int, pairs: tuple[Pair, ...],
        last: Tensor | None = None, labels: Int[Tensor, "B"] | None = None, dtype: torch.dtype | None = None,
    ) -> None:  # fmt: skip
        super().__init__(words, model)
        self.start, self.stop, self.pairs, self.labels = start, stop, pairs, labels
        self.last = words.new_empty(len(words), 0) if last is None else last
        self._dtype = pairs[0][0].dtype if dtype is None else dtype

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def rows(self, index: Tensor) -> "WindowCache":
        """Select sequences by indices, repeated or not, or by a boolean mask; a copy."""
        with torch.inference_mode(False), torch.no_grad():
            pairs = tuple((keys[index], values[index]) for keys, values in self.pairs)
            labels = None if self.labels is None else self.labels[index]
            return self._like(self.words[index], pairs, self.last[index], labels)

    def joined(self, other: "WindowCache") -> "WindowCache":
        """Return the cache of these sequences, followed by those of another cache of the same window."""
        with torch.inference_mode(False), torch.no_grad():
            both = zip(self.pairs, other.pairs, strict=True)
            pairs = tuple((torch.cat([a[0], b[0]]), torch.cat([a[1], b[1]])) for a, b in both)
            labels = None
            if self.labels is not None and other.labels is not None:
                labels = torch.cat([self.labels, other.labels])
            return self._like(torch.cat([self.words, other.words]), pairs, torch.cat([self.last, other.last]), labels)

    def check(self, model: nn.Module, z: Int[Tensor, "B n"], dtype: torch.dtype) -> None:
        """Raise as for other caches, and for another number of positions than the window has."""
        super().check(model, z, dtype)
        if z.shape[1] != self.stop - self.start:
            raise ValueError(
                f"cache: is around positions {self.start}..{self.stop - 1}, {self.stop - self.start} of them, and z "
                f"has {z.shape[1]}"
            )

    def slots(self) -> list[WindowSlot]:
        """Return the buffers of each layer, whose pairs have all positions."""
        return [WindowSlot(keys, values, self.start) for keys, values in self.pairs]

    def _like(self, words: Tensor, pairs: tuple[Pair, ...], last: Tensor, labels: Tensor | None) -> "WindowCache":
        other = self._with(words)
        other.pairs, other.last, other.labels = pairs, last, labels
        return other


def check_window(z: Tensor, start: int, stop: int) -> None:
    """Raise ValueError unless start..stop-1 are positions of z (B, L)."""
    if z.ndim != 2 or not 0 <= start < stop <= z.shape[1]:
        raise ValueError(
            f"start={start}, stop={stop}: must be a window of z, 0 <= start < stop <= L, which has shape "
            f"{tuple(z.shape)}"
        )


def places(cache: KVCacheBase | None) -> tuple[int, int]:
    """Return the number of cached positions in front of a row, and behind it."""
    if isinstance(cache, WindowCache):
        return cache.start, cache.length - cache.stop
    return (0 if cache is None else cache.length), 0


def check_cache(cache: object, *kinds: type[KVCacheBase]) -> None:
    """Raise TypeError unless the cache is from ``prefill`` of this kind of network."""
    if not isinstance(cache, kinds):
        kind = kinds[0]
        raise TypeError(f"cache is {cache!r}, must be a {kind.__name__} from prefill, or None")


def numbers(model: nn.Module) -> list[int] | None:
    """Return a checksum of each parameter, which any change alters; None where reading it would synchronise.

    It reads all weights, as a call does: 3 % of the time of a call over 32 tokens of one sequence. It does not detect
    changes that cancel in the sum, such as exchanging two rows, nor changes of buffers.
    """
    parameters = list(model.parameters())
    if any(parameter.device.type != "cpu" for parameter in parameters):
        return None
    return [_bits(parameter.detach()) for parameter in parameters]


def _bits(values: Tensor) -> int:
    """Return the sum of a tensor's memory read as 64-bit integers; exact in any order."""
    raw = values.contiguous().view(-1).view(torch.uint8)
    raw = raw.clone() if raw.storage_offset() % 8 else raw  # a view may begin at an unaligned offset
    whole = len(raw) // 8 * 8
    return int(raw[:whole].view(torch.int64).sum()) + int(raw[whole:].sum())

"""Keys and values that are kept: what a network has worked out about clean words, for those that follow them."""

from abc import ABC, abstractmethod
from copy import copy
from typing import NamedTuple, Self
from weakref import ref

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn


class Slot(NamedTuple):
    """Where one layer keeps keys and values; ``filled`` of the positions are taken."""

    keys: Float[Tensor, "B L H K"]
    values: Float[Tensor, "B L H K"]
    filled: int

    def join(
        self, keys: Float[Tensor, "B n H K"], values: Float[Tensor, "B n H K"]
    ) -> tuple[Float[Tensor, "B L H K"], Float[Tensor, "B L H K"]]:
        """Those of all positions so far, and these behind them.

        Without gradients the new ones are written into the room that is left, so that nothing else moves.
        """
        end = self.filled + keys.shape[1]
        if torch.is_grad_enabled():  # a backward pass would miss what is written over
            kept = self.keys[:, : self.filled], self.values[:, : self.filled]
            return torch.cat([kept[0], keys], 1), torch.cat([kept[1], values], 1)
        self.keys[:, self.filled : end] = keys
        self.values[:, self.filled : end] = values
        return self.keys[:, :end], self.values[:, :end]


class Store:
    """One tensor for all layers, shared by the caches of a text as it grows: (layers, 2, B, room, H, K)."""

    def __init__(self, tensor: Tensor, filled: int) -> None:
        self.tensor, self.filled = tensor, filled

    def moved(self, length: int, room: int) -> "Store":
        """Its first positions, in a tensor of more."""
        depth, two, batch, _, heads, channels = self.tensor.shape
        with torch.inference_mode(False), torch.no_grad():  # it may be written to outside of that mode
            tensor = self.tensor.new_empty(depth, two, batch, room, heads, channels)
            tensor[:, :, :, :length] = self.tensor[:, :, :, :length]
        return Store(tensor, length)


class KVCacheBase(ABC):
    """What a network has worked out about clean words, which serves that network alone.

    Attributes:
        words: the words it stands for, (B, L), from the beginning of the text.
    """

    def __init__(self, words: Int[Tensor, "B L"], model: nn.Module) -> None:
        self.words, self._model, self._numbers = words, ref(model), numbers(model)

    @property
    def length(self) -> int:
        """How many words it holds of each sequence."""
        return self.words.shape[1]

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """What it was computed in."""

    def check(self, model: nn.Module, z: Int[Tensor, "B L"], dtype: torch.dtype) -> None:
        """Refuses to serve another network, other sequences or other numbers.

        On a CPU the bits of all parameters tell whether the weights have moved since (``numbers``). Elsewhere that
        would have to wait for the device at every step and is not looked at: whoever trains there prefills again.

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

    def _with(self, words: Int[Tensor, "B L"]) -> Self:
        """The same of other words."""
        if self._model() is None:
            raise ValueError("cache: the network it belongs to is gone")
        other = copy(self)
        other.words = words
        return other


class Cache(KVCacheBase):
    """Keys and values of clean words at time 0, from ``DiT.prefill``; it never changes, a longer text has another one.

    Caches of one text that grows share memory, which doubles as it has to: of two that go on from the same words in
    different ways the second copies them first.

    Attributes:
        words: the words it stands for, (B, L), from the beginning of the text.
    """

    def __init__(self, words: Int[Tensor, "B L"], store: Store, model: nn.Module) -> None:
        super().__init__(words, model)
        self._store = store

    @property
    def dtype(self) -> torch.dtype:
        """That of keys and values."""
        return self._store.tensor.dtype

    def rows(self, index: Tensor) -> "Cache":
        """Some of its sequences, by their numbers, any of them several times, or by a boolean for each; a copy."""
        with torch.inference_mode(False), torch.no_grad():
            words, whole = self.words[index], self._store.tensor
            taken = index.nonzero().flatten() if index.dtype == torch.bool else index
            some = whole.new_empty(*whole.shape[:2], len(words), *whole.shape[3:])
            # of the room behind what is filled nothing is moved
            for i, row in enumerate(taken.tolist()):
                some[:, :, i, : self.length] = whole[:, :, row, : self.length]
            return self._like(words, Store(some, self.length))

    def slots(self, number: int) -> list[Slot]:
        """Where each layer keeps its own, with room for so many positions more."""
        need, store = self.length + number, self._store
        if store.filled > self.length or store.tensor.shape[3] < need:
            self._store = store = store.moved(self.length, max(need, 2 * self.length))
        return [Slot(keys, values, self.length) for keys, values in store.tensor]

    def grown(self, words: Int[Tensor, "B L"]) -> "Cache":
        """The cache of these words too, which stand in the slots by now."""
        self._store.filled += words.shape[1]
        return self._like(torch.cat([self.words, words], 1), self._store)

    def _like(self, words: Tensor, store: Store) -> "Cache":
        other = self._with(words)
        other._store = store
        return other


def check_cache(cache: object, kind: type[KVCacheBase]) -> None:
    """Raises TypeError for what no ``prefill`` of this kind of network has made."""
    if not isinstance(cache, kind):
        raise TypeError(f"cache is {cache!r}, must be a {kind.__name__} from prefill, or None")


def numbers(model: nn.Module) -> list[int] | None:
    """A sum over the bits of each parameter, which any change moves; None where reading it would wait for a device.

    It reads all weights, as a call does: 3 % of the time of one over 32 tokens of one text. What it cannot tell are
    changes that cancel in the sum, such as two rows that are exchanged, and what is no parameter.
    """
    parameters = list(model.parameters())
    if any(parameter.device.type != "cpu" for parameter in parameters):
        return None
    return [_bits(parameter.detach()) for parameter in parameters]


def _bits(values: Tensor) -> int:
    """The sum of a tensor's bits by integers of 64, as it lies in memory: exact in whatever order."""
    raw = values.contiguous().view(-1).view(torch.uint8)
    raw = raw.clone() if raw.storage_offset() % 8 else raw  # a part of another tensor may begin in between
    whole = len(raw) // 8 * 8
    return int(raw[:whole].view(torch.int64).sum()) + int(raw[whole:].sum())

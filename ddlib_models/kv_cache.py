"""Key/value caches of clean tokens, for the tokens that follow them."""

from abc import ABC, abstractmethod
from copy import copy
from typing import Any, NamedTuple, Self
from weakref import ref

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ddlib_models.attention.sight import sight_mask


class Slot(NamedTuple):
    """Keys and values of one layer in a preallocated buffer, of which ``filled`` positions are
    used.
    """

    keys: Float[Tensor, "B L H K"]
    values: Float[Tensor, "B L H K"]
    filled: int

    def join(
        self, keys: Float[Tensor, "B n H K"], values: Float[Tensor, "B n H K"]
    ) -> tuple[Float[Tensor, "B L H K"], Float[Tensor, "B L H K"]]:
        """Return all keys and values so far, followed by the given ones.

        Without gradients the new ones are written into the free part of the buffer, and nothing is
        copied.
        """
        end = self.filled + keys.shape[1]
        if torch.is_grad_enabled():  # in-place writes would invalidate the backward pass
            used = self.keys[:, : self.filled], self.values[:, : self.filled]
            return torch.cat([used[0], keys], 1), torch.cat([used[1], values], 1)
        self.keys[:, self.filled : end] = keys
        self.values[:, self.filled : end] = values
        return self.keys[:, :end], self.values[:, :end]


class Store:
    """One tensor for all layers, (layers, 2, B, capacity, H, K), shared by the caches of a sequence
    as it grows.
    """

    def __init__(self, tensor: Tensor, filled: int) -> None:
        self.tensor = tensor
        self.filled = filled

    def with_capacity(self, length: int, capacity: int) -> "Store":
        """Copy the first ``length`` positions into a tensor with capacity ``capacity``."""
        depth, two, batch, _, heads, channels = self.tensor.shape
        # later writes may happen outside of that mode
        with (
            torch.inference_mode(False),
            torch.no_grad(),
        ):
            tensor = self.tensor.new_empty(depth, two, batch, capacity, heads, channels)
            tensor[:, :, :, :length] = self.tensor[:, :, :, :length]
        return Store(tensor, length)


class KVCacheBase(ABC):
    """Base of the caches: activations of clean tokens, valid for one network only.

    Attributes:
        tokens: the cached tokens, (B, L), from the beginning of the sequence.
        labels: the class of each sequence, (B,); None for a network without classes.
    """

    labels: Int[Tensor, "B"] | None = None

    def __init__(self, tokens: Int[Tensor, "B L"], model: nn.Module) -> None:
        self.tokens = tokens
        self._model = ref(model)
        self._weights = self._state(model)

    @property
    def length(self) -> int:
        """Number of cached tokens per sequence."""
        return self.tokens.shape[1]

    @property
    def around(self) -> tuple[int, int]:
        """Numbers of cached positions in front of a row, and behind it."""
        return self.length, 0

    def positions(self, length: int) -> Int[Tensor, "#B n"]:
        """Return the positions of a row of ``length`` states."""
        first, _ = self.around
        return torch.arange(first, first + length, device=self.tokens.device)[None]

    def mask(self, length: int, block_size: int, sight: float) -> Bool[Tensor, "#B 1 n m"]:
        """Return the attention mask of a row of ``length`` states; see ``sight_mask``."""
        first, behind = self.around
        device = self.tokens.device
        mask = sight_mask(length, length, block_size, sight, device, first, behind)
        return mask[None, None]

    @property
    @abstractmethod
    def dtype(self) -> torch.dtype:
        """Dtype of the cached tensors."""

    def _state(self, model: nn.Module) -> Any:
        """Return a value that changes with the weights."""
        return numbers(model)

    def check(self, model: nn.Module, z: Int[Tensor, "B L"], dtype: torch.dtype) -> None:
        """Raise unless the cache belongs to this network, this batch and this dtype.

        On a CPU a checksum of all parameters detects a change of the weights (``numbers``). On an
        accelerator that would synchronise at every step and is not done: after a training step
        there, prefill again.

        Raises:
            ValueError: naming what differs.
        """
        if self._model() is not model:
            raise ValueError(
                f"cache: contains keys and values of another {type(model).__name__}; prefill with "
                "this one"
            )
        if self.tokens.device != z.device:
            raise ValueError(
                f"cache: is on {self.tokens.device}, but the tokens are on {z.device}; prefill "
                "there"
            )
        if len(self.tokens) != len(z):
            raise ValueError(
                f"cache: contains {len(self.tokens)} sequences, but {len(z)} are given; "
                "cache.rows(index) selects "
                "some of them"
            )
        if self.dtype != dtype:
            raise ValueError(
                f"cache: has dtype {self.dtype}, but the network computes in {dtype}; prefill again"
            )
        if not torch.compiler.is_compiling() and self._weights != self._state(model):
            raise ValueError("cache: the weights have changed since it was made; prefill again")

    def check_labels(self, labels: Int[Tensor, "B"] | None) -> None:
        """Raise ValueError for other labels than those of the cached tokens.

        On a CPU only, as in ``check``.
        """
        if (
            labels is None
            or self.labels is None
            or labels.device.type != "cpu"
            or torch.compiler.is_compiling()
        ):
            return
        different = (labels != self.labels).nonzero()
        if len(different):
            row = int(different[0])
            raise ValueError(
                f"cache: has label {int(self.labels[row])} in row {row}, but {int(labels[row])} is "
                "given; prefill "
                "with the same labels (the last class is the null class)"
            )

    def _with(self, tokens: Int[Tensor, "B L"]) -> Self:
        """Return a copy with other tokens."""
        if self._model() is None:
            raise ValueError("cache: the network that it belongs to no longer exists")
        result = copy(self)
        result.tokens = tokens
        return result


class Cache(KVCacheBase):
    """Keys and values of clean tokens at time 0, from ``DiT.prefill``.

    Immutable, a longer sequence has a new cache.

    Caches of one growing sequence share memory, whose capacity doubles as needed. If two caches
    continue the same tokens in different ways, the second copies them first.

    Attributes:
        tokens: the cached tokens, (B, L), from the beginning of the sequence.
        labels: the class of each sequence, (B,); None for a network without classes.
    """

    def __init__(
        self,
        tokens: Int[Tensor, "B L"],
        store: Store,
        model: nn.Module,
        labels: Int[Tensor, "B"] | None = None,
    ) -> None:
        super().__init__(tokens, model)
        self._store = store
        self.labels = labels

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of keys and values."""
        return self._store.tensor.dtype

    def rows(self, index: Tensor) -> "Cache":
        """Select sequences by indices, repeated or not, or by a boolean mask; a copy."""
        with torch.inference_mode(False), torch.no_grad():
            tokens = self.tokens[index]
            source = self._store.tensor
            row_numbers = index.nonzero().flatten() if index.dtype == torch.bool else index
            selected = source.new_empty(*source.shape[:2], len(tokens), *source.shape[3:])
            # unused capacity is not copied
            for i, row in enumerate(row_numbers.tolist()):
                selected[:, :, i, : self.length] = source[:, :, row, : self.length]
            result = self._like(tokens, Store(selected, self.length))
            result.labels = None if self.labels is None else self.labels[index]
            return result

    def slots(self, number: int) -> list[Slot]:
        """Return the buffer of each layer, with capacity for ``number`` more positions."""
        need = self.length + number
        store = self._store
        # beyond our length: another cache has continued the same tokens in this buffer
        if store.filled > self.length or store.tensor.shape[3] < need:
            self._store = store = store.with_capacity(self.length, max(need, 2 * self.length))
        return [Slot(keys, values, self.length) for keys, values in store.tensor]

    def append(self, tokens: Int[Tensor, "B L"]) -> "Cache":
        """Return the cache extended by these tokens, whose keys and values are in the slots
        already.
        """
        self._store.filled += tokens.shape[1]
        return self._like(torch.cat([self.tokens, tokens], 1), self._store)

    def _like(self, tokens: Tensor, store: Store) -> "Cache":
        result = self._with(tokens)
        result._store = store
        return result


def check_cache(cache: object, *kinds: type[KVCacheBase]) -> None:
    """Raise TypeError unless the cache is from ``prefill`` of this kind of network."""
    if not isinstance(cache, kinds):
        kind = kinds[0]
        raise TypeError(f"cache is {cache!r}, must be a {kind.__name__} from prefill, or None")


def numbers(model: nn.Module) -> list[int] | None:
    """Return a checksum of each parameter, which any change alters.

    None where reading it would synchronise.

    It reads all weights, as a call does: 3 % of the time of a call over 32 tokens of one sequence.
    It does not detect changes that cancel in the sum, such as exchanging two rows, nor changes of
    buffers.
    """
    parameters = list(model.parameters())
    if any(parameter.device.type != "cpu" for parameter in parameters):
        return None
    return [_bits(parameter.detach()) for parameter in parameters]


def _bits(values: Tensor) -> int:
    """Return the sum of a tensor's memory read as 64-bit integers; exact in any order."""
    raw = values.contiguous().view(-1).view(torch.uint8)
    # a view may begin at an unaligned offset
    raw = raw.clone() if raw.storage_offset() % 8 else raw
    aligned = len(raw) // 8 * 8
    return int(raw[:aligned].view(torch.int64).sum()) + int(raw[aligned:].sum())

"""Data in a keyed order: every example comes with its position in the order of training."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import Dataset, DistributedSampler, IterableDataset

from ddlib.utils.validation import check_count, require, warn_once

POSITION = "position"


class Positions(Dataset[dict[str, Any]]):
    """Dataset in the order of training: item p is the p-th example that is trained on, with p as
    its ``position``.

    A ``DiffusionCollator`` keys the noise by the position, so order and noise are the same for any
    number of data loader workers and processes, and after a resumption. Every pass over the data
    has another order. Read it in sequence: ``DataLoader(positions, batch_size)`` without
    ``shuffle``, with ``sampler=range(done, len(positions))`` to resume. A second epoch over it
    would repeat the first, with a warning where data are read without workers; use ``passes``, or a
    ``PositionSampler``.

    Args:
        dataset: map-style dataset of mappings with ``input_ids``, or of the ids alone.
        passes: number of passes over the data.
        seed: seed of the order.
        shuffle: False for the order of the dataset, e.g. for validation.
    """

    def __init__(
        self, dataset: Any, *, passes: int = 1, seed: int = 0, shuffle: bool = True
    ) -> None:
        self.dataset = dataset
        self.passes = check_count("passes", passes)
        self.seed = seed
        self.shuffle = shuffle
        require(len(dataset) > 0, "dataset is empty, must hold an item")
        self._ordered: tuple[int, Tensor] = -1, torch.empty(0, dtype=torch.int64)
        self._was_read = False

    @classmethod
    def of(cls, dataset: Any, **options: Any) -> Any:
        """Wrap a dataset that has a length and is not wrapped yet.

        Return others, such as a stream, as they are.
        """
        unchanged = (
            dataset is None
            or isinstance(dataset, (Positions, IterableDataset))
            or not hasattr(dataset, "__len__")
        )
        return dataset if unchanged else cls(dataset, **options)

    def __len__(self) -> int:
        return self.passes * len(self.dataset)

    def __getitem__(self, position: int) -> dict[str, Any]:
        number, place = divmod(int(position), len(self.dataset))
        # a sampler may repeat the first ones to fill the last batch
        if self.shuffle and position == len(self) // 2:
            self._check_new()
        item = self.dataset[int(self._order(number)[place]) if self.shuffle else place]
        return {
            **(item if isinstance(item, Mapping) else {"input_ids": item}),
            POSITION: int(position),
        }

    def _order(self, number: int) -> Int64[Tensor, "n"]:
        """Return the order of a pass.

        The latest one is kept with its number, as one object, since threads share it.
        """
        cached_number, order = self._ordered
        if cached_number != number:
            generator = torch.Generator().manual_seed(self.seed + number)
            order = torch.randperm(len(self.dataset), generator=generator)
            self._ordered = number, order
        return order

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (self[position] for position in range(len(self)))

    def _check_new(self) -> None:
        """Warn once if the positions were read before."""
        if self._was_read:
            warn_once(
                "positions read again",
                "the same Positions are read again, with the order and the noise of the first "
                "time: pass "
                "passes=number of epochs, or a PositionSampler, to the DataLoader, and call its "
                "set_epoch",
            )
        self._was_read = True


class PositionSampler(DistributedSampler[int]):
    """Sampler for ``Positions`` over several epochs: the positions of one epoch follow those of the
    one before.

    Call ``set_epoch`` before each epoch, as for any ``DistributedSampler``; the Trainer of
    transformers, Lightning and accelerate do so.

    Args:
        positions: the data.
        num_replicas: number of processes that share the positions, each taking every n-th. 1 under
            the Trainer of transformers and accelerate, which divide the batches of any sampler.
        rank: number of this process.
    """

    def __init__(self, positions: Positions, num_replicas: int = 1, rank: int = 0) -> None:
        super().__init__(positions, num_replicas, rank, shuffle=False)

    def __iter__(self) -> Iterator[int]:
        start = self.epoch * len(self.dataset)  # type: ignore[arg-type]
        return (start + int(place) for place in super().__iter__())

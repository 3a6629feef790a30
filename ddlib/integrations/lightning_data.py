"""``LightningDataModule`` that reads data in a keyed order, on one process or many."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader

from ddlib.integrations.batches import DiffusionCollator
from ddlib.integrations.positions import Positions, PositionSampler
from ddlib.processes import ForwardProcess

try:
    import lightning as L
except ImportError as error:
    raise ModuleNotFoundError(
        'a LightningDataModule needs lightning: pip install "ddlib[lightning]"'
    ) from error


class _Resumable(DataLoader[Any]):
    """Data loader that resumes, for which Lightning looks for these methods.

    The state is that of ``_Continued``.
    """

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        pass


class _Continued(PositionSampler):
    """Positions after those of all batches that were trained on, whose number is in every
    checkpoint of Lightning.
    """

    batch_size = 1
    batches = 1

    def __init__(self, positions: Positions, trainer: Any) -> None:
        super().__init__(positions, trainer.world_size, trainer.global_rank)
        self.trainer = trainer

    def __iter__(self) -> Iterator[int]:
        trained_batches: int = self.trainer.fit_loop.epoch_loop.batch_progress.total.ready
        self.epoch = trained_batches // self.batches
        return islice(super().__iter__(), trained_batches % self.batches * self.batch_size, None)


class DiffusionDataModule(L.LightningDataModule):
    """Data loaders of noisy batches whose order and noise do not depend on processes, workers and
    accumulation.

    ``trainer.fit(..., ckpt_path=...)`` continues with the batch after the last one, also within an
    epoch.

    Lightning shuffles any other training loader when there is more than one process, and positions
    then no longer are the order of training.

    Args:
        process: the forward process.
        train_dataset: items with ``input_ids``, or ids alone; so are those of ``val_dataset``.
        val_dataset: data for the bound.
        batch_size: sequences of a batch on one process.
        seed: seed of order, times and noise.
        collator: arguments of ``DiffusionCollator``, such as ``pad_token_id``.
        **loader: arguments of ``torch.utils.data.DataLoader``, such as ``num_workers``.
    """

    def __init__(
        self,
        process: ForwardProcess,
        train_dataset: Any,
        val_dataset: Any = None,
        *,
        batch_size: int,
        seed: int = 0,
        collator: dict[str, Any] | None = None,
        **loader: Any,
    ) -> None:
        super().__init__()
        self.process = process
        self.batch_size = batch_size
        self.seed = seed
        self.train_dataset = Positions.of(train_dataset, seed=seed)
        self.val_dataset = Positions.of(val_dataset, shuffle=False)
        self.collator = collator or {}
        self.loader = loader

    def train_dataloader(self) -> DataLoader[Any]:
        """Return the loader of this process."""
        sampler = _Continued(self.train_dataset, self.trainer)
        loader = self._loader(self.train_dataset, _Resumable, sampler=sampler)
        sampler.batch_size = self.batch_size
        sampler.batches = len(loader)
        return loader

    def val_dataloader(self) -> Any:
        """Return the loader of the validation data; Lightning divides it."""
        return [] if self.val_dataset is None else self._loader(self.val_dataset)

    def _loader(
        self, dataset: Positions, kind: type[DataLoader[Any]] = DataLoader, **options: Any
    ) -> DataLoader[Any]:
        trainer: Any = self.trainer
        step = self.batch_size * trainer.world_size * trainer.accumulate_grad_batches
        collate = DiffusionCollator(self.process, **{"seed": self.seed, **self.collator}).for_step(
            step
        )
        return kind(dataset, self.batch_size, collate_fn=collate, **options, **self.loader)


def check_loader(loader: Any, world_size: int, accumulated: int) -> None:
    """Raise ValueError for a loader of ``Positions`` that does not keep their order, or with
    another size of a step.

    Lightning shuffles a loader for several processes, unless its sampler is keyed.
    """
    sampler = getattr(loader, "sampler", None)
    dataset = getattr(loader, "dataset", None)
    keyed = isinstance(sampler, PositionSampler) and sampler.num_replicas == world_size
    if world_size > 1 and isinstance(dataset, Positions) and not keyed:
        raise ValueError(
            f"Lightning shuffles the positions for {world_size} processes: use a "
            "DiffusionDataModule"
        )
    collate = getattr(loader, "collate_fn", None)
    if isinstance(collate, DiffusionCollator) and loader.batch_size is not None:
        collate.for_step(loader.batch_size * world_size * accumulated)

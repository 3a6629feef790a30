"""Training with Lightning: a ``LightningModule`` for any process, network and sampler, and a
callback for samples.

Requires ``pip install "ddlib[lightning]"``; no other module of ddlib imports this one.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ddlib.config.building import build
from ddlib.config.plain import values
from ddlib.integrations.batches import Targets, check_process
from ddlib.integrations.lightning_data import DiffusionDataModule, check_loader
from ddlib.integrations.measures import DiffusionLoss, mean_bound, sequence_bounds
from ddlib.integrations.saved import draw_samples, is_sharded, write_samples
from ddlib.parameterization.capabilities import Capabilities
from ddlib.parameterization.logits import Parameterization
from ddlib.processes import ForwardProcess
from ddlib.samplers import Sampler
from ddlib.typing import Steps, Tokens, implements
from ddlib.utils.random import Generator
from ddlib.weightings import Weighting

try:
    import lightning as L
except ImportError as error:
    raise ModuleNotFoundError(
        'a LightningModule needs lightning: pip install "ddlib[lightning]"'
    ) from error

__all__ = ["DiffusionDataModule", "DiffusionModule", "SampleCallback"]

Plain = Mapping[str, Any] | str


class DiffusionModule(L.LightningModule):
    """Process, network, loss, bound and sampler as a ``LightningModule``, for batches of a
    ``DiffusionDataModule``.

    It logs ``train_loss``, and for validation ``val_bound`` in nats per token and its standard
    error ``val_bound_error``. For an average of the weights add Lightning's callback
    ``EMAWeightAveraging(decay=0.999)``: validation and samples then use it. A checkpoint contains
    the plain values of process, sampler and weighting as ``hyper_parameters``, and those of a
    network that was given as plain values. A network object is passed again:
    ``DiffusionModule.load_from_checkpoint(path, network=network)``. For another optimizer override
    ``configure_optimizers``.

    Args:
        network: a module ``(z, t) -> logits``, or plain values of one: ``{"kind": "dit", "dim": 64,
            ...}``.
        process: the forward process, or its plain values; so are ``sampler`` and ``weighting``.
        sampler: sampler of ``sample``.
        weighting: see ``ddlib.training_loss``, and so are the following two.
        mode: see there.
        parameterization: meaning of the network's output; by default its attribute of that name,
            which the bound and samples read, or "cavity" without one.
        lr: learning rate of AdamW.
        bound_options: options of ``ddlib.bound`` in validation, such as ``levels="balanced"``, and
            its ``seed``.
    """

    def __init__(
        self,
        network: nn.Module | Plain,
        process: ForwardProcess | Plain,
        sampler: Sampler | Plain = "ancestral",
        *,
        weighting: Weighting | Plain | None = None,
        mode: str = "standard",
        parameterization: Parameterization | None = None,
        lr: float = 3e-4,
        bound_options: dict[str, Any] | None = None,
    ) -> None:
        super().__init__()
        plain: dict[str, Any] = {} if isinstance(network, nn.Module) else {"network": network}
        self.network: nn.Module = (
            network if isinstance(network, nn.Module) else build("backbones", network)
        )
        self.sampler: Sampler = build("samplers", sampler)
        meaning = Capabilities.of(self.network).meaning(parameterization)
        self.loss = DiffusionLoss(build("processes", process), weighting, mode, meaning)
        self.lr = lr
        self.bound_options = bound_options or {}
        self._rows = list[Tensor]()
        weighted = self.loss.weighting
        plain |= {
            "process": values(self.process),
            "sampler": values(self.sampler),
            "mode": mode,
            "lr": lr,
        }
        plain |= {
            "weighting": None if weighted is None else values(weighted),
            "bound_options": bound_options,
        }
        self.save_hyperparameters(plain | {"parameterization": parameterization})

    @property
    def process(self) -> ForwardProcess:
        """The forward process, on the device of the module."""
        return self.loss.process

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Evaluate the network."""
        return self.network(*args, **kwargs)

    def on_train_start(self) -> None:
        """Raise ValueError if Lightning shuffles positions, or a collator is of another process or
        size of a step.
        """
        trainer = self.trainer
        check_loader(trainer.train_dataloader, trainer.world_size, trainer.accumulate_grad_batches)
        check_process(getattr(trainer.train_dataloader, "collate_fn", None), self.process)

    def training_step(self, batch: dict[str, Any], batch_idx: int) -> Tensor:
        """Compute the loss of a batch, at the step of a network that takes its number."""
        labels = _labels(batch)
        if implements(self.network, Steps):
            self.network.at_step(self.global_step)
        loss = self.loss(
            self(**{name: value for name, value in batch.items() if name != "labels"}), labels
        )
        self.log("train_loss", loss.detach(), prog_bar=True, batch_size=len(labels["x"]))
        return loss

    def validation_step(self, batch: dict[str, Any], batch_idx: int) -> None:
        """Compute the bound of each sequence of a batch."""
        options = {"parameterization": self.loss.parameterization, **self.bound_options}
        self._rows.append(sequence_bounds(self.process, self.network, _labels(batch), **options))

    def on_validation_epoch_end(self) -> None:
        """Log the mean over all sequences of all processes."""
        rows: Any = self.all_gather(torch.cat(self._rows))  # (N, 4), or one such for each process
        self._rows.clear()
        mean = mean_bound(rows.reshape(-1, 4))
        logged = {"val_bound": mean.value, "val_bound_error": mean.standard_error}
        self.log_dict(logged, prog_bar=True, rank_zero_only=False, sync_dist=False)

    def configure_optimizers(self) -> Any:
        """Return AdamW over the parameters of the network."""
        return torch.optim.AdamW(self.network.parameters(), lr=self.lr)

    def sample(
        self,
        shape: tuple[int, int],
        steps: int | None = None,
        *,
        generator: Generator = None,
        **options: Any,
    ) -> Tokens:
        """Generate tokens (B, L) with the network in evaluation mode.

        Options as in ``ddlib.sample``.

        Every process must call it if FSDP shards the network.
        """
        options = {"parameterization": self.loss.parameterization, **options}
        return draw_samples(
            self.process, self.network, shape, self.sampler, steps, generator=generator, **options
        )


def _labels(batch: Mapping[str, Any]) -> Targets:
    """Return what the loss needs of a batch.

    Raises:
        ValueError: a batch that no ``DiffusionCollator`` made.
    """
    if "labels" not in batch:
        raise ValueError(
            f"a batch has {', '.join(map(str, batch))}, must have labels: use a "
            "DiffusionDataModule, or loaders of "
            "Positions with collate_fn=DiffusionCollator(process, ...)"
        )
    labels: Targets = batch["labels"]
    return labels


class SampleCallback(L.Callback):
    """Callback that writes samples at each validation, to ``LOG_DIR/samples/step_00000100.txt``.

    The sanity check before training writes those of the untrained network.

    Args:
        shape: (B, L) of the samples.
        steps: number of steps of the module's sampler.
        seed: seed of the samples, the same at each validation.
        decode: function from ids to text, such as ``tokenizer.decode``; by default the ids are
            written.
        **options: those of ``ddlib.sample``.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        steps: int = 64,
        *,
        seed: int = 0,
        decode: Callable[[list[int]], str] | None = None,
        **options: Any,
    ) -> None:
        self.shape = shape
        self.steps = steps
        self.seed = seed
        self.decode = decode
        self.options = options

    def on_validation_batch_start(
        self,
        trainer: L.Trainer,
        pl_module: L.LightningModule,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Draw the samples before the first batch, with averaged weights if any.

        The first process writes them.
        """
        if batch_idx or dataloader_idx:
            return
        module: Any = pl_module
        # log_dir: all processes must read it
        folder = Path(trainer.log_dir or trainer.default_root_dir) / "samples"
        if not (trainer.is_global_zero or is_sharded(module)):
            return
        generator = torch.Generator(module.device).manual_seed(self.seed)
        tokens = module.sample(self.shape, self.steps, generator=generator, **self.options)
        if trainer.is_global_zero:
            write_samples(folder / f"step_{trainer.global_step:08d}.txt", tokens, self.decode)

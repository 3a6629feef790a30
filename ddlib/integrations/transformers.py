"""Training with the ``Trainer`` of ``transformers``: loss, evaluation by the bound, samples, saved
process.

Requires ``pip install "ddlib[trainer]"``; no other module of ddlib imports this one.
"""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Sampler

from ddlib.config import difference
from ddlib.config.plain import describe
from ddlib.integrations.batches import READ, DiffusionCollator, check_process
from ddlib.integrations.measures import DiffusionLoss, mean_bound, sequence_bounds
from ddlib.integrations.positions import Positions, PositionSampler
from ddlib.integrations.saved import (
    PROCESS,
    draw_samples,
    is_sharded,
    load_process,
    process_values,
    save_process,
    write_samples,
)
from ddlib.parameterization.capabilities import Capabilities
from ddlib.processes import ForwardProcess
from ddlib.typing import Steps, implements
from ddlib.utils.validation import require

try:
    from transformers import Trainer, TrainerCallback, TrainingArguments
except ImportError as error:
    raise ModuleNotFoundError(
        'a Trainer needs transformers: pip install "ddlib[trainer]"'
    ) from error

__all__ = ["DiffusionCollator", "DiffusionLoss", "DiffusionTrainer", "SampleCallback"]


class DiffusionTrainer(Trainer):
    """``Trainer`` for any process and any network that is a module ``(z, t) -> logits``.

    Datasets are wrapped in ``Positions``, so order and noise depend on the seeds and on the size of
    a step, not on the numbers of workers, processes and accumulated batches. Evaluation reports
    ``eval_bound`` in nats per token, its standard error ``eval_bound_error``, and the bound again
    as ``eval_loss``, by which Trainer finds the best model. ``process.json`` is saved beside the
    weights; ``ddlib.integrations.load_process`` reads it. Training resumes only from a checkpoint
    of the same process.

    Args:
        model: the network.
        args: ``seed`` is the seed of the noise, ``data_seed`` that of the order.
        process: the forward process.
        data_collator: by default a ``DiffusionCollator`` with the seed from ``args``. One without
            ``batch_size`` takes the size of a step from ``args``; one with another size is a
            ValueError.
        train_dataset: items with ``input_ids``, or ids alone; so are those of ``eval_dataset``.
        eval_dataset: a dataset, or several by name.
        compute_loss_func: by default ``DiffusionLoss(process)`` in the network's
            ``parameterization``, the attribute of that name, which the bound and samples read;
            "cavity" without one. Another meaning in the loss is a ValueError.
        bound_options: options of ``ddlib.bound`` in evaluation, such as ``levels="balanced"``, and
            its ``seed``.
        **kwargs: those of ``Trainer``: ``processing_class``, ``callbacks``, ``optimizers``.

    Raises:
        TypeError: a process that cannot be saved, unless ``args`` save nothing.
        ValueError: a collator or a loss of another process; a loss of another parameterization.
    """

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        *,
        process: ForwardProcess,
        data_collator: Callable[[Any], dict[str, Any]] | None = None,
        train_dataset: Any = None,
        eval_dataset: Any = None,
        compute_loss_func: Callable[..., Tensor] | None = None,
        bound_options: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        args = TrainingArguments("tmp_trainer") if args is None else args
        if args.save_strategy != "no":
            process_values(process)  # raises before any work is lost
        step = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        collate = (
            DiffusionCollator(process, seed=args.seed) if data_collator is None else data_collator
        )
        for holder in (collate, compute_loss_func):
            check_process(holder, process)
        several = eval_dataset if isinstance(eval_dataset, dict) else {"": eval_dataset}
        several = {name: Positions.of(data, shuffle=False) for name, data in several.items()}
        super().__init__(
            model,
            args,
            collate.for_step(step) if isinstance(collate, DiffusionCollator) else collate,
            Positions.of(
                train_dataset, seed=args.seed if args.data_seed is None else args.data_seed
            ),
            several if isinstance(eval_dataset, dict) else several[""],
            compute_loss_func=compute_loss_func,
            **{"compute_metrics": _metrics, **kwargs},
        )
        # else a network with **kwargs is passed num_items_in_batch, which is for the loss
        self.model_accepts_loss_kwargs = False
        # now, as Trainer may have made the network
        self.parameterization = Capabilities.of(self.model).parameterization
        if compute_loss_func is None:
            self.compute_loss_func = DiffusionLoss(process, parameterization=self.parameterization)
        meaning = getattr(self.compute_loss_func, "parameterization", self.parameterization)
        require(
            meaning == self.parameterization,
            f"parameterization of compute_loss_func is {meaning!r}, must be "
            f"{self.parameterization!r}, that of the network, by which evaluation and samples are "
            "computed: change the loss, or the network's attribute parameterization",
        )
        self.process = deepcopy(process).to(args.device)
        self.bound_options = bound_options or {}

    def training_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        num_items_in_batch: Tensor | int | None = None,
    ) -> Tensor:
        """Compute the gradients of a batch, at the step of a network that takes its number."""
        if implements(self.model, Steps):
            self.model.at_step(self.state.global_step)
        return super().training_step(model, inputs, num_items_in_batch)

    def prediction_step(
        self,
        model: nn.Module,
        inputs: dict[str, Any],
        prediction_loss_only: bool,
        ignore_keys: list[str] | None = None,
    ) -> tuple[Tensor | None, Tensor, Tensor]:
        """Compute the bound of each sequence of a batch, the rows of
        ``ddlib.integrations.mean_bound``.
        """
        labels: Any = self._prepare_inputs(inputs)["labels"]
        options = {"parameterization": self.parameterization, **self.bound_options}
        with self.compute_loss_context_manager():
            rows = sequence_bounds(self.process, model, labels, **options)
        return None, rows, rows[:, 2]

    def _get_train_sampler(self, train_dataset: Any = None) -> Sampler[int] | None:
        data = self.train_dataset if train_dataset is None else train_dataset
        return (
            PositionSampler(data)
            if isinstance(data, Positions)
            else super()._get_train_sampler(train_dataset)
        )

    def _set_signature_columns_if_needed(self) -> None:
        super()._set_signature_columns_if_needed()
        columns: Any = list(dict.fromkeys([*(self._signature_columns or ()), *READ]))
        self._signature_columns = columns

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the weights and ``process.json``."""
        # first, as the weights may be sent to the hub with all that is in the folder
        if self.args.should_save:
            save_process(self.process, output_dir or str(self.args.output_dir))
        super().save_model(output_dir, _internal_call)

    def _load_from_checkpoint(
        self, resume_from_checkpoint: str, model: nn.Module | None = None
    ) -> None:
        if (Path(resume_from_checkpoint) / PROCESS).exists():
            saved = describe(load_process(resume_from_checkpoint))
            if change := difference(saved, describe(self.process)):
                raise ValueError(f"{resume_from_checkpoint} is of another process: {change}")
        super()._load_from_checkpoint(resume_from_checkpoint, model)


def _metrics(prediction: Any) -> dict[str, float]:
    mean = mean_bound(torch.as_tensor(prediction.predictions))
    return {"loss": mean.value, "bound": mean.value, "bound_error": mean.standard_error}


class SampleCallback(TrainerCallback):
    """Callback that writes samples after each evaluation, to
    ``OUTPUT_DIR/samples/step_00000100.txt``.

    With ``TrainingArguments(eval_on_start=True)`` the first ones are those of the untrained
    network.

    Args:
        process: the forward process.
        shape: (B, L) of the samples.
        steps: number of steps of the sampler.
        seed: seed of the samples, the same after each evaluation.
        decode: function from ids to text; by default ``processing_class.decode``, or the ids
            themselves.
        **options: those of ``ddlib.sample``, such as ``sampler``.
    """

    def __init__(
        self,
        process: ForwardProcess,
        shape: tuple[int, int],
        steps: int = 64,
        *,
        seed: int = 0,
        decode: Callable[[list[int]], str] | None = None,
        **options: Any,
    ) -> None:
        self.process = deepcopy(process)
        self.shape = shape
        self.seed = seed
        self.decode = decode
        self.options = {"steps": steps, **options}

    def on_evaluate(self, args: TrainingArguments, state: Any, control: Any, **kwargs: Any) -> None:
        """Draw the samples; the first process writes them."""
        network = kwargs["model"]
        generator = torch.Generator(args.device).manual_seed(self.seed)
        if not (state.is_world_process_zero or is_sharded(network)):
            return
        tokens = draw_samples(
            self.process.to(args.device), network, self.shape, generator=generator, **self.options
        )
        if state.is_world_process_zero:
            decode = self.decode or getattr(kwargs.get("processing_class"), "decode", None)
            write_samples(
                Path(str(args.output_dir)) / "samples" / f"step_{state.global_step:08d}.txt",
                tokens,
                decode,
            )

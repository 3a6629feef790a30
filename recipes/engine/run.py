"""Objects of a training run, and one training step."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.profiler import record_function

import ddlib as dd
from ddlib.plot import level_names
from ddlib.typing import Steps, implements
from recipes.config import IN_STRATA, ModelContext, Recipe, time_density
from recipes.data import Batch, Prepared, examples, open_prepared, wrap
from recipes.data.lengths import check_lengths
from recipes.engine.ahead import read_ahead, worker_for
from recipes.engine.checkpoint import CHECKPOINTS, Facts, TrainingState, check_folder, newest
from recipes.engine.distribution import accumulating, gather_again, spread
from recipes.engine.graph import CapturedPasses, Numbers, Passes, check_graph
from recipes.engine.launched import HostCopy, Launched
from recipes.engine.network import Network
from recipes.engine.objectives.base import Setting
from recipes.engine.objectives.noising import NoisyBatch, level_sums, loss_weights
from recipes.engine.optimizer import Average, optimizers, rate, update
from recipes.engine.parallel import World
from recipes.engine.setup import (
    FromText,
    fingerprint,
    fitting_pace,
    make_model,
    make_process,
    micro_batch,
    process_hash,
    write_out,
)
from recipes.engine.starting import check_pretrained, check_start, start
from recipes.engine.validation import NOISE, check_sequences, references, validate
from recipes.logging import Step
from recipes.metrics import References, Terms
from recipes.metrics.conditioned import takes_labels


class NonFiniteError(RuntimeError):
    """Error for a loss or gradient that is NaN or infinite, after its cause was saved."""


@dataclass
class Run:
    """Objects of a run; ``facts`` follows its progress."""

    recipe: Recipe
    world: World
    data: Prepared
    known: FromText
    process: dd.processes.ForwardProcess
    network: Network
    called: nn.Module
    state: TrainingState
    facts: Facts
    pace: dd.paces.Pace = field(default_factory=dd.paces.Together)
    padded: bool = True
    """Whether the vocabulary has padding, which the loss may count."""
    broken: Tensor = field(default_factory=lambda: torch.zeros(()))
    """1 on the device once a loss or gradient was not finite, else 0."""
    last: NoisyBatch | None = None
    """Last noisy input of the network."""
    earlier: tuple[Path, Facts] | None = None
    """Newest intact checkpoint in the run's folder, from which ``resume`` continues."""
    skipped: list[str] = field(default_factory=list)
    """Messages about damaged checkpoints."""

    @classmethod
    def prepare(
        cls,
        recipe: Recipe,
        world: World,
        data: Prepared | None = None,
        context: type[FromText] = FromText,
        writes: bool = True,
    ) -> "Run":
        """Build all objects; the recipe gets the corpus of the prepared text.

        The initial weights are those of ``recipe.start``, unless there is a checkpoint, which
        replaces them.

        Args:
            recipe: the run.
            world: this process among others.
            data: the prepared text; by default that of ``recipe.data.folder``.
            context: class of the run context.
            writes: whether the run writes into its folder, and so continues from a checkpoint
                there.

        Raises:
            ValueError, OSError: anything that would fail later: batches, data, clusters,
                vocabulary, disk.
        """
        micro_batch(recipe, world)
        pace = fitting_pace(recipe)
        recipe = replace(recipe, loss=write_out(recipe))
        if data is None:
            recipe = replace(recipe, data=recipe.data.whole())
            data = open_prepared(recipe.data.folder, recipe.data.corpus)
        # clusters and frequencies are those of the documents, whatever rows are cut from them
        rows = wrap(data, recipe.data.length) if recipe.data.wrap else data
        check_lengths(rows, recipe.data.length, recipe.data.packed)
        skipped: list[str] = []
        checkpoints = (
            newest(recipe.output.folder / CHECKPOINTS, skipped.append) if writes else iter(())
        )
        if (earlier := next(checkpoints, None)) is None:
            check_start(recipe, data)
        check_pretrained(recipe, data)
        check_sequences(
            "output.validate_sequences", recipe.output.validate_sequences, rows, world.size
        )
        filled = context(recipe, data, world)
        process = make_process(recipe, filled, data, world)
        model = make_model(recipe, ModelContext(filled, process))
        check_graph(recipe, world, model)
        if writes:
            check_folder(recipe.output, model, recipe.optimizer.ema > 0)
        if earlier is None:
            start(recipe, model, process, data, filled.clusters)
        objective = recipe.objective()
        network = Network(model, objective.parameterization, recipe.hardware.bf16)
        network.train()  # a pretrained network is in evaluation mode
        called = spread(network, recipe.hardware, world)
        average = Average(network, recipe.optimizer.ema) if recipe.optimizer.ema else None
        labels = (
            recipe.data.packed and takes_labels(model) and len(rows.train.labels)
        )  # the rest of a row has none
        padded = data.pad_id is not None and not recipe.data.wrap and not labels
        state = TrainingState(network, optimizers(model, recipe.optimizer), average, objective)
        vocabulary = dd.fingerprint(data.vocabulary.ids)
        facts = Facts(
            step=0,
            recipe=fingerprint(recipe),
            vocabulary=vocabulary,
            content=data.content,
            process=process_hash(process, filled.clusters),
            world=world.size,
        )
        run = cls(
            recipe,
            world,
            rows,
            filled,
            process,
            network,
            called,
            state,
            facts,
            pace,
            padded=padded,
            broken=torch.zeros((), device=world.device),
            earlier=earlier,
            skipped=skipped,
        )
        objective.begin(run.setting)
        return run

    @cached_property
    def compute(self) -> Passes:
        """Work of a step on the device; one graph with ``hardware.graph: step``."""
        if self.recipe.hardware.graph != "step":
            return self.passes
        state = self.state
        return CapturedPasses(self.passes, state.objective, state.optimizers, self.world.device)

    @property
    def setting(self) -> Setting:
        """Objects that the training objective takes."""
        rows = micro_batch(self.recipe, self.world)
        about = self.process, self.network, self.pace, rows, self.padded
        return Setting(self.recipe, self.world, self.data, *about)

    def batches(self) -> Iterator[list[Batch]]:
        """Return, from the next step on, the micro-batches of this process, from one order for all
        processes.
        """
        recipe = self.recipe
        world = self.world
        micro = micro_batch(recipe, world)
        stream = examples(
            self.data.train,
            length=recipe.data.length,
            pad_id=self.data.fill_id,
            batch_size=micro,
            seed=recipe.seed,
            start=self.facts.step * recipe.batch,
            rank=world.rank,
            world=world.size,
            packed=recipe.data.packed,
            threads=recipe.hardware.threads,
        )
        count = recipe.batch // world.size // micro
        steps = iter(lambda: list(islice(stream, count)), [])
        return self.state.objective.batches(steps)

    def inputs(self, last: int) -> Iterator[list[Any]]:
        """Return what ``launch`` takes in each step from the next one up to step ``last``, computed
        one step ahead unless ``hardware.ahead`` is False.

        Close the iterator before the end of the run.
        """
        first = self.facts.step
        _ = self.network.parameterization  # found before another thread reads it
        batches = islice(self.batches(), last - first)
        if not self.recipe.hardware.ahead:
            return (self.ready(batch, number) for number, batch in enumerate(batches, first))
        return read_ahead(batches, self.ready, first, worker_for(self.world.device))

    def ready(self, batches: list[Batch], number: int) -> list[Any]:
        """Return the micro-batches of a step on the device, with what the network does not change.

        Args:
            batches: micro-batches of this process.
            number: of the step.
        """
        with record_function("noise"):
            on_device = [batch.to(self.world.device) for batch in batches]
            return self.state.objective.ahead(on_device, number)

    def step(self, batches: list[Batch], stop: bool) -> Step:
        """Take one optimizer step, nothing of it ahead, and wait for it.

        Raises:
            NonFiniteError: as ``finish``.
        """
        return self.finish(self.launch(self.ready(batches, self.facts.step), stop))

    def launch(self, parts: list[Any], stop: bool) -> Launched:
        """Launch one optimizer step without waiting for the device.

        A loss or gradient that is not finite leaves weights, optimizers and averages as they are,
        in this step and in all further ones: ``finish`` raises the error.

        Args:
            parts: micro-batches, the result of ``ready``.
            stop: whether this process received a signal to stop.
        """
        recipe = self.recipe
        world = self.world
        number = self.facts.step
        objective = self.state.objective
        # seed of dropout: derived from the step, so there is no state to save
        world.seed(((recipe.seed * 1_000_003 + number) * 1_000_003 + world.rank) % 2**63)
        if implements(self.network.model, Steps):
            self.network.model.at_step(number)
        noisy = objective.prepare(parts, number)
        average = self.state.average
        value = rate(recipe.optimizer, number, recipe.steps)
        decay = 1.0 if average is None else average.decay_at(number)
        values, per_token = self.compute(noisy, Numbers(value, decay, float(stop)))
        self.last = noisy[-1]
        numbers = objective.numbers_to_log()
        objective.after()
        self.facts = replace(self.facts, step=number + 1)
        copy = HostCopy(values)
        if recipe.hardware.wait:
            copy.read()
        return Launched(number, copy, value, noisy, per_token, numbers)

    def passes(
        self, noisy: Sequence[NoisyBatch], numbers: Numbers
    ) -> tuple[Float[Tensor, " n"], list[Float[Tensor, "B L"]]]:
        """Compute loss and gradients of the micro-batches of a step, and update the weights.

        Returns:
            the numbers of ``Launched.values``, and the loss of each token, of each micro-batch.
        """
        recipe = self.recipe
        world = self.world
        objective = self.state.objective
        total = world.sum(torch.stack([part.mask.sum() for part in noisy]).sum())
        sums = 0.0
        loss = torch.zeros((), dtype=torch.float64, device=world.device)
        per_token: list[Tensor] = []
        for index, part in enumerate(noisy):
            with accumulating(self.called, self.network, index + 1 == len(noisy)):
                # gradients are averaged over the processes
                with record_function("forward"):
                    part = objective.before(part, self.use_averages)
                    part_loss, losses = self.called(objective.loss, part, world.size / total)
                with record_function("backward"):
                    part_loss.backward()
            loss += losses.sum(dtype=torch.float64)
            per_token.append(losses)
            sums = sums + level_sums(self.process, losses, part)
        gradients = [p.grad for p in self.network.parameters() if p.grad is not None]
        norm = _full(nn.utils.get_total_norm(gradients))
        finite = loss.isfinite() & norm.isfinite()
        stopping = torch.zeros_like(loss) + numbers.stop
        summed = world.sum(
            torch.cat([torch.stack([loss, (~finite).double(), stopping]), sums.flatten()])
        )
        torch.maximum(self.broken, (summed[1] > 0).float(), out=self.broken)
        with record_function("update"):
            excess = (norm / recipe.optimizer.max_grad_norm).clamp(min=1)
            update(self.state.optimizers, numbers.rate, self.broken, excess)
            if self.state.average is not None:
                self.state.average.update(numbers.decay, self.broken)
        local = torch.stack([norm.double(), total.double(), (~finite).double()])
        return torch.cat([local, summed]), per_token

    def finish(self, launched: Launched) -> Step:
        """Wait for a step and return its results.

        Raises:
            NonFiniteError: on every process, after the processes concerned saved the batch.
        """
        norm, tokens, bad, loss, any_bad, stopping, *by_level = launched.values.read()
        if any_bad:
            noisy = [*launched.noisy]
            objective = self.state.objective
            self._refuse(launched, objective.cause(noisy, [*launched.losses]) if bad else "")
        return Step(
            loss / tokens,
            norm,
            launched.rate,
            torch.tensor(by_level, dtype=torch.float64).view(-1, 2),
            self.level_names,
            bool(stopping),
            launched.numbers,
        )

    def validate(self) -> Terms:
        """Measure the bound of the first validation sequences, by the averaged weights if there are
        any.
        """
        recipe = self.recipe
        with self.use_averages():
            return validate(
                self.process,
                self.network.denoiser,
                self.data,
                recipe.data.length,
                self.world,
                sequences=recipe.output.validate_sequences,
                batch=micro_batch(recipe, self.world),
                seed=NOISE,
                replicate=0,
                density=time_density(
                    recipe.output.validate_times,
                    self.process,
                    recipe.data.length,
                    IN_STRATA,
                    self.pace,
                ),
                parameterization=self.network.parameterization,
                pace=self.pace,
                packed=recipe.data.packed,
            )

    @cached_property
    def level_names(self) -> list[str]:
        """Names of the levels of the noise."""
        return level_names(self.process)

    @cached_property
    def references(self) -> References:
        """Models that the bound of ``validate`` is compared with."""
        recipe = self.recipe
        return references(
            self.data,
            recipe.data.length,
            self.world,
            sequences=recipe.output.validate_sequences,
            batch=micro_batch(recipe, self.world),
        )

    def weights(self) -> Float[Tensor, " n"]:
        """Return the loss weights, not clipped, of the last noisy tokens."""
        return torch.zeros(0) if self.last is None else loss_weights(self.process, self.last)

    def remarks(self) -> list[str]:
        """Return messages of the objective about the last noisy tokens."""
        return [] if self.last is None else self.state.objective.remarks(self.last)

    @contextmanager
    def use_averages(self) -> Iterator[None]:
        """Return a context with the averaged weights in place of the last ones, and no dropout."""
        self.network.eval()
        self._swap()
        try:
            yield
        finally:
            self._swap()
            self.network.train()

    def _swap(self) -> None:
        if self.state.average is not None:
            self.state.average.swap()
            gather_again(self.network)

    def _refuse(self, launched: Launched, why: str) -> None:
        """Save the batch if ``why`` states what is not finite in it, and raise the error on every
        process.
        """
        path = (
            self.recipe.output.folder
            / f"non_finite_step{launched.step}_rank{self.world.rank}.safetensors"
        )
        if why:
            parts = {
                name: torch.cat([getattr(part, name) for part in launched.noisy]).cpu()
                for name in ("x", "z", "t", "mask")
            }
            save_file(parts, path)
        stated = [
            str(one)
            for one in self.world.gather(f"{path}: {why}" if why else None)
            if one is not None
        ]
        raise NonFiniteError(
            f"step {launched.step}: the loss or its gradient is not finite; its batch (x, z, t, "
            "mask) is in "
            f"{'; '.join(stated)}. Nothing was updated; the last checkpoint is from before"
        )


def _full(norm: Tensor) -> Tensor:
    """Gather a number that is sharded over the processes."""
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm

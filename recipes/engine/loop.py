"""Training loop for one process and for many.

A run that is killed at any moment resumes with identical results.
"""

import signal
from contextlib import ExitStack, closing
from dataclasses import replace
from itertools import takewhile
from types import FrameType, TracebackType
from typing import Self

import numpy as np
import torch
from jaxtyping import Int
from rich.text import Text
from torch import Tensor

import ddlib as dd
from recipes.config import Recipe, differences, plugins, read_recipe, recipe_yaml
from recipes.console import render_states
from recipes.data.names import names_of
from recipes.embeddings.naming import cluster_names
from recipes.engine import checkpoint
from recipes.engine.checkpoint import CHECKPOINTS
from recipes.engine.distribution import check_sharding
from recipes.engine.divergence import DivergenceGuard
from recipes.engine.export import publish
from recipes.engine.folder import hold
from recipes.engine.graph import say_without_graph
from recipes.engine.launched import Launched
from recipes.engine.optimizer import check_decay
from recipes.engine.parallel import join
from recipes.engine.profiling import profile_steps
from recipes.engine.provenance import record
from recipes.engine.run import Run
from recipes.engine.utilisation import fastest
from recipes.logging import Watch
from recipes.metrics.conditioned import takes_labels, with_label
from recipes.model_io import RECIPE, WEIGHTS
from recipes.visualization.saving import picture_of, write_samples


class Signals:
    """Context in which SIGTERM and SIGINT are recorded instead of killing.

    A second SIGINT kills as usual.
    """

    requested = False
    """Whether a signal arrived."""

    def __enter__(self) -> Self:
        self._before = {
            number: signal.signal(number, self._note) for number in (signal.SIGTERM, signal.SIGINT)
        }
        return self

    def __exit__(
        self, kind: type | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, self._before[signal.SIGINT])


def train(recipe: Recipe, accept_changes: bool = False) -> bool:
    """Train, from the newest intact checkpoint in the run's folder if there is one.

    Under ``torchrun`` all its processes train together. SIGTERM and SIGINT save and return.

    Args:
        recipe: the run's configuration.
        accept_changes: whether to resume although recipe, vocabulary, data, noise or number of
            processes changed.

    Returns:
        Whether all steps are made; False if a signal stopped it before.

    Raises:
        ValueError, OSError: before the first step, for anything that would fail later.
        NonFiniteError: after the batch that caused it was saved.
        DivergedError: the loss has been far above that of the uniform model for a while.
    """
    with ExitStack() as stack:
        world = stack.enter_context(join())
        signals = stack.enter_context(Signals())
        stack.enter_context(hold(recipe.output.folder, world))
        run = Run.prepare(recipe, world)
        recipe = run.recipe
        messages = resume(run, accept_changes)
        messages += [
            *check_decay(recipe.optimizer, recipe.steps),
            *check_sharding(recipe.hardware, world),
            *say_without_graph(recipe.hardware, world),
        ]
        if world.first:
            (recipe.output.folder / RECIPE).write_text(recipe_yaml(recipe), encoding="utf-8")
            messages += record(recipe.output.folder, run.facts.step, plugins(recipe))
        begin = run.facts.step
        watch = stack.enter_context(Watch(recipe, world.first, begin, fastest(run), run.padded))
        for message in [header(run), *messages]:
            watch.say(message)
        if run.facts.step >= recipe.steps:
            watch.say(f"{recipe.steps} steps are done already: nothing to do")
            return True
        if recipe.output.untrained and run.facts.step == 0:
            measure(run, watch)
            draw_samples(run, watch)
        trace = stack.enter_context(profile_steps(recipe, world, watch.aside))
        report = Report(run, watch)
        inputs = stack.enter_context(closing(run.inputs(recipe.steps)))
        for parts in inputs:
            report.add(run.launch(parts, signals.requested))
            trace()
            if report.stop or due(run):
                report.finish()
                attend(run, watch, report.stop)
            if report.stop:
                watch.say(
                    f"stopping at a signal: saved after step {run.facts.step}; the same command "
                    "resumes from there"
                )
            if report.stop or run.facts.step == recipe.steps:
                break
        return run.facts.step >= recipe.steps


class Report:
    """Reads the results of steps, each after the next one was launched, and shows them.

    Args:
        run: the run.
        watch: its display and records.
    """

    stop = False
    """Whether any process received a signal to stop."""

    def __init__(self, run: Run, watch: Watch) -> None:
        self.run = run
        self.watch = watch
        self._first = run.facts.step
        self._waiting: Launched | None = None
        self._guard = DivergenceGuard(run.process.vocab_size, run.recipe.optimizer.lr)

    def add(self, launched: Launched) -> None:
        """Take a step that was just launched, and show the one before.

        Raises:
            NonFiniteError: the loss or gradient of the step before is not finite.
        """
        self.finish()
        self._waiting = launched
        if launched.step == self._first:  # the remarks are about its batch
            self.finish()
            for message in self.run.remarks():
                self.watch.say(message)

    def finish(self) -> None:
        """Show the step that was not shown yet, if there is one.

        Raises:
            NonFiniteError: its loss or gradient is not finite.
            DivergedError: the loss has been too large for a while.
        """
        launched = self._waiting
        self._waiting = None
        if launched is None:
            return
        result = self.run.finish(launched)
        number = launched.step + 1
        self.stop = self.stop or result.stop
        self.watch.step(number, result)
        message = self._guard.add(number, result.loss)
        if message is not None:
            self.watch.say(message)


def header(run: Run) -> str:
    """Return what is trained, on what, and where it is written, in one line."""
    recipe = run.recipe
    world = run.world
    sizes = [value.numel() for value in run.network.parameters()]
    trained = sum(value.numel() for value in run.network.parameters() if value.requires_grad)
    frozen = f" of {sum(sizes):,}" if trained < sum(sizes) else ""
    device = (
        torch.cuda.get_device_name(world.device)
        if world.device.type == "cuda"
        else world.device.type
    )
    processes = f"{world.size} processes on {device}" if world.size > 1 else device
    return (
        f"{trained:,}{frozen} parameters on {processes}; {recipe.batch} rows of "
        f"{recipe.data.length} = "
        f"{recipe.batch * recipe.data.length:,} tokens a step, {run.data.vocab_size:,} tokens in "
        "the vocabulary; "
        f"{recipe.output.folder}"
    )


def due(run: Run) -> bool:
    """Return whether the bound, samples or a checkpoint are due after the last step."""
    output = run.recipe.output
    periods = (output.validate_every, output.sample_every, output.save_every)
    number = run.facts.step
    return number == run.recipe.steps or any(number % period == 0 for period in periods)


def attend(run: Run, watch: Watch, stop: bool) -> None:
    """Do what is due after a step: the bound, samples, a checkpoint."""
    recipe = run.recipe
    number = run.facts.step
    output = recipe.output
    last = number == recipe.steps
    if number % output.validate_every == 0 or last:
        measure(run, watch)
        watch.weights(number, run.weights())
    if number % output.sample_every == 0 or last:
        draw_samples(run, watch)
    if number % output.save_every == 0 or last or stop:
        # in this order: a run that is killed between the two repeats the steps and publishes again
        publish(run, output.folder / WEIGHTS)
        checkpoint.save(output.folder / CHECKPOINTS, run.state, run.facts, run.world, output.keep)


def measure(run: Run, watch: Watch) -> None:
    """Measure the bound, which the next checkpoint records."""
    terms = run.validate()
    watch.bound(run.facts.step, terms, run.data, run.references)
    run.facts = replace(run.facts, bound=terms.per_token.value)


def resume(run: Run, accept_changes: bool) -> list[str]:
    """Resume from the newest intact checkpoint, if there is one; return messages for the user.

    Raises:
        ValueError: it is of another recipe, vocabulary, data, noise or number of processes, and
            that was not accepted; it lacks a part of the state of this run.
    """
    if run.earlier is None:
        return run.skipped
    path, facts = run.earlier
    changes = list_differences(run, facts)
    if changes and not accept_changes:
        raise ValueError(
            f"{path} is of another run: {'; '.join(changes)}. Choose another output.folder, or "
            "--accept-changes"
        )
    notes = checkpoint.load(path, run.state, run.world)
    run.facts = replace(run.facts, step=facts.step, bound=facts.bound)
    return [*run.skipped, f"resuming from step {facts.step}", *changes, *notes]


def list_differences(run: Run, facts: checkpoint.Facts) -> list[str]:
    """Return the differences between the run that wrote a checkpoint and this one."""
    changes = []
    if facts.vocabulary != run.facts.vocabulary:
        changes.append(
            f"the vocabulary is {run.facts.vocabulary[:12]}, was {facts.vocabulary[:12]}"
        )
    if facts.content != run.facts.content:
        changes.append(
            f"the data of {run.data.folder}, by what they were prepared from, are "
            f"{run.facts.content[:12]}, were {facts.content[:12]}"
        )
    if facts.process != run.facts.process:
        changes.append(
            "the noise, as built from the recipe, the tree in its files and the data, is "
            f"{run.facts.process[:12]}, was {facts.process[:12]}"
        )
    if facts.world != run.facts.world:
        changes.append(f"processes are {run.facts.world}, were {facts.world}")
    if facts.recipe != run.facts.recipe:
        before = run.recipe.output.folder / RECIPE
        changes += (
            differences(read_recipe(before), run.recipe)
            if before.exists()
            else ["the recipe differs"]
        )
    return changes


def draw_samples(run: Run, watch: Watch) -> None:
    """Draw samples and write them: as text, and as a picture where the data have one."""
    tokens, trace = draw(run)
    watch.samples(run.facts.step, [run.data.text(one) for one in tokens], trace)
    layout = run.data.layout
    if layout is None or not run.world.first:
        return
    symbols = names_of(run.data.tokenizer, layout.ends)
    whole = [list(takewhile(lambda token: token < len(symbols), one)) for one in tokens]
    shown = [np.array(one) for one in whole if len(one) >= layout.voices]
    if shown and (suffix := picture_of(layout, symbols)):
        path = run.recipe.output.folder / "samples" / f"step_{run.facts.step:08d}{suffix}"
        write_samples(path, shown, symbols, layout)
        watch.say(f"  step {run.facts.step}: picture of the samples in {path}")


@torch.no_grad()
def draw(run: Run) -> tuple[list[list[int]], list[tuple[float, Text]]]:
    """Draw samples, and the trajectory of the first one; every process draws the same.

    A network that takes labels draws the classes in turn.
    """
    recipe = run.recipe
    tokenizer = run.data.tokenizer
    trace = []
    with run.use_averages():
        names = cluster_names(run.process, run.network.model, run.known.clusters, tokenizer)
        generator = torch.Generator(run.world.device).manual_seed(recipe.seed)

        def show(step: int, t: Tensor, z: Tensor) -> None:
            trace.append((float(t[0].mean()), render_states(run.process, tokenizer, z[0], names)))

        tokens = {}
        denoiser = run.network.denoiser
        labels = takes_labels(run.network.model)
        for (length, _), rows in beginnings(run).items():
            numbers = list(rows)
            if labels:
                classes = (
                    torch.tensor(numbers, device=run.world.device) % run.network.model.num_classes
                )
                denoiser = with_label(run.network.denoiser, classes)
            drawn = dd.sample(
                run.process,
                denoiser,
                (len(numbers), length),
                steps=recipe.output.sample_steps,
                prompt=torch.tensor(np.stack([*rows.values()]), device=run.world.device),
                parameterization=run.network.parameterization,
                pace=run.pace,
                generator=generator,
                on_step=show if 0 in numbers else None,
                controls=[dd.controls.WholeBatch()] if labels else [],
            )
            tokens |= zip(numbers, drawn.tolist(), strict=True)
    return [tokens[number] for number in range(recipe.output.samples)], trace


def beginnings(run: Run) -> dict[tuple[int, int], dict[int, Int[np.ndarray, " n"]]]:
    """Return the given tokens at the beginning of each sample, by its number.

    They are those of the validation sequences in turn: prompts, or none. The keys are the length of
    a sample, that of the rows or one as training sequences have it, and the number of its given
    tokens.
    """
    length = run.recipe.data.length
    layout = run.data.layout
    held_out = run.data.validation
    by_size: dict[tuple[int, int], dict[int, Int[np.ndarray, " n"]]] = {}
    for number in range(run.recipe.output.samples):
        turn = number % len(held_out)
        lead = int(held_out.given(turn).argmin())  # a sequence has a token that is not given
        size = (
            layout.draw_length(run.recipe.seed, number, lead + 1, length)
            if layout and run.data.ragged
            else length
        )
        prompt = held_out[turn][:lead].astype(np.int64)
        by_size.setdefault((size, lead), {})[number] = prompt
    return by_size

"""Training of one run, resumable, with evaluations on the way."""

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import ddlib as dd
from recipes.config import Optimizer
from recipes.engine.optimizer import Average, optimizers, update
from studies.heads.models import AR, Arm, Model
from studies.heads.text import SEARCH, TEST, Text

OPTIMIZER = Optimizer(lr=3e-3, warmup=20, weight_decay=0.02, muon=True, ema=0.995)
"""Base of all runs. The rate is constant after the warm-up.

So a run may be read at several numbers of steps: at equal steps, FLOPs and seconds.
"""
EVALUATION = 12345
"""Seed of times and noise in evaluations, the same for all runs of a process."""
UNMEASURED = 2
"""Steps of a process before its costs are measured."""


@dataclass(frozen=True)
class Run:
    """A run: its arm, learning rate in units of the base, and seed."""

    arm: Arm
    factor: float
    seed: int

    @property
    def name(self) -> str:
        """Name in the result file."""
        return f"{self.arm.name} | {self.factor:g} | {self.seed}"

    @property
    def file(self) -> str:
        """Name of its files."""
        return self.name.replace(" | ", "-")


def weights_path(work: Path, run: Run) -> Path:
    """Return the path of the averaged weights of a run at equal steps."""
    return work / "weights" / f"{run.file}.pt"


def state_path(work: Path, run: Run, part: str) -> Path:
    """Return the path of the state of a run that is read on a held-out part."""
    return work / "states" / f"{run.file}-{part}.pt"


class Training:
    """Network, optimizers and average of a run."""

    def __init__(self, run: Run, work: Path, text: Text) -> None:
        self.run = run
        self.text = text
        self.steps = 0
        config = replace(OPTIMIZER, lr=OPTIMIZER.lr * run.factor)
        self.config = config
        self.model = Model(run.arm, work, run.seed, text.sizes)
        self.average = Average(self.model, config.ema)
        self.optimizers = optimizers(self.model, config)

    def step(self) -> None:
        """Take one step."""
        batch = self.text.batch(self.run.seed, self.steps)
        noise = dd.KeyedGenerator(self.run.seed, self.steps, torch.arange(len(batch)))
        self.model.loss(batch, noise).backward()
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        excess = (nn.utils.get_total_norm(gradients) / self.config.max_grad_norm).clamp(min=1)
        broken = torch.zeros(())
        rate = self.config.lr * min(1, (self.steps + 1) / self.config.warmup)
        update(self.optimizers, rate, broken, excess)
        self.average.update(self.average.decay_at(self.steps), broken)
        self.steps += 1

    def state(self) -> dict[str, Any]:
        """Return all that a continued run needs."""
        return {
            "steps": self.steps,
            "model": self.model.state_dict(),
            "average": self.average.weights,
            "optimizers": [each.state_dict() for each in self.optimizers],
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Continue from a state."""
        self.steps = state["steps"]
        self.model.load_state_dict(state["model"])
        for name, weight in state["average"].items():
            self.average.weights[name].copy_(weight)
        for optimizer, saved in zip(self.optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


class Evaluation:
    """Nats of held-out windows under the averaged weights."""

    def __init__(self, text: Text, counts: Tensor) -> None:
        self.text = text
        rank = counts.argsort(descending=True, stable=True).argsort()
        self.bin_of = torch.bucketize(rank, torch.tensor(text.sizes.bins), right=True)

    @cached_property
    def few(self) -> dict[str, Tensor]:
        """Every fifth window of the search, for curves."""
        windows = self.windows(SEARCH)
        return {source: some[::5] for source, some in windows.items()}

    def windows(self, part: str) -> dict[str, Tensor]:
        """Return the held-out windows of every source."""
        return {source: self.text.held_out(source, part) for source in self.text.sizes.sources}

    @torch.no_grad()
    def measure(
        self, training: Training, windows: Mapping[str, Tensor], draws: int
    ) -> dict[str, Any]:
        """Return the mean nats per token of every source and window, and the nats and tokens of
        each class of frequency.
        """
        training.average.swap()
        draws = 1 if training.run.arm.process == AR else draws
        nats = {}
        means = {}
        bins = torch.zeros(2, len(self.text.sizes.bins) + 1, dtype=torch.float64)
        first = 0
        for source, x in windows.items():
            numbers = torch.arange(first, first + len(x))
            first += len(x)
            values = [self._draw(training.model, x, numbers, draw) for draw in range(draws)]
            tokens = torch.stack(values).mean(0)
            nats[source] = [round(value, 4) for value in tokens.mean(1).tolist()]
            means[source] = float(tokens.mean())
            place = self.bin_of[x].flatten()
            bins[0].index_add_(0, place, tokens.flatten())
            bins[1].index_add_(0, place, torch.ones_like(tokens).flatten())
        training.average.swap()
        return {"steps": training.steps, "sources": means, "bins": bins.tolist(), "nats": nats}

    def _draw(self, model: Model, x: Tensor, numbers: Tensor, draw: int) -> Tensor:
        """Return one draw of the nats of windows, whose numbers are the keys of their noise."""
        size = self.text.sizes.batch
        parts = [
            model.nats(some, dd.KeyedGenerator(EVALUATION, draw, index)).double()
            for some, index in zip(x.split(size), numbers.split(size), strict=True)
        ]
        return torch.cat(parts)


def mean_of(evaluation: Mapping[str, Any]) -> float:
    """Return the mean over all windows; sources have as many windows each."""
    return mean(evaluation["sources"].values())


def train(
    run: Run,
    work: Path,
    evaluation: Evaluation,
    marks: Mapping[str, int],
    part: str = TEST,
) -> dict[str, Any]:
    """Train a run up to the last of its marks; return the evaluation at each, and a curve.

    The state is saved on the way and at the end; ``state_path(...)`` may be removed when the result
    is kept. The averaged weights at the first mark stay, for the sealed text. At that mark the nats
    of every window are kept too.

    Args:
        run: the run.
        work: folder of the study.
        evaluation: held-out windows.
        marks: numbers of steps by name.
        part: held-out part that is read at the marks.
    """
    text = evaluation.text
    sizes = text.sizes
    training = Training(run, work, text)
    path = state_path(work, run, part)
    path.parent.mkdir(exist_ok=True)
    result: dict[str, Any] = {"marks": {}, "curve": [], "nats": {}}
    if path.exists():
        saved = torch.load(path)
        training.load(saved["training"])
        result = saved["result"]
    first = next(iter(marks.values()))
    last = max(marks.values())
    points = set(_points(first, last, sizes.points))
    while training.steps < last:
        training.step()
        if training.steps in points:
            few = evaluation.measure(training, evaluation.few, 1)
            result["curve"].append([training.steps, round(mean_of(few), 5)])
            print(f"{run.name}: {training.steps}, {mean_of(few):.4f}", flush=True)
        reached = [name for name, steps in marks.items() if steps == training.steps]
        if reached:
            found = evaluation.measure(training, evaluation.windows(part), sizes.draws)
            nats = found.pop("nats")
            if training.steps == first:
                result["nats"] = nats
            result["marks"] |= {name: found for name in reached}
        if training.steps == first and part == TEST:
            _write(weights_path(work, run), training.average.weights)
        if training.steps % sizes.save_every == 0 or training.steps == last:
            _write(path, {"training": training.state(), "result": result})
    return result


def _points(first: int, last: int, count: int) -> Iterable[int]:
    """Return ``count`` even numbers of steps up to ``first``, and on at their distance."""
    distance = max(1, first // count)
    return range(distance, last + 1, distance)


def _write(path: Path, content: Any) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(exist_ok=True)
    partial = path.with_suffix(".part")
    torch.save(content, partial)
    partial.replace(path)


def _flops_in_place(
    total: Sequence[int], one: Sequence[int], other: Sequence[int], **_: object
) -> int:
    """Return the operations of ``total.addmm_(one, other)`` from the shapes."""
    return 2 * one[0] * one[1] * other[1]


IN_PLACE = {torch.ops.aten.addmm_: _flops_in_place}
"""Products that losses add to a gradient in place, which torch does not count."""


def costs(arms: Sequence[Arm], work: Path, text: Text) -> dict[Arm, dict[str, float]]:
    """Return the median processor seconds of a step of this process for each arm, and its
    floating-point operations.

    The arms take their steps in turn, so that a machine that slows down slows all of them.
    """
    trainings = {arm: Training(Run(arm, 1.0, 0), work, text) for arm in arms}
    taken: dict[Arm, list[float]] = {arm: [] for arm in arms}
    for _ in range(UNMEASURED + text.sizes.timed):
        for arm, training in trainings.items():
            start = time.process_time()
            training.step()
            taken[arm].append(time.process_time() - start)
    return {
        arm: {"seconds": median(taken[arm][UNMEASURED:]), "flops": operations(training)}
        for arm, training in trainings.items()
    }


def operations(training: Training) -> float:
    """Return the mean floating-point operations of the next two steps."""
    # fused attention has no count on a CPU
    with (
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False, custom_mapping=IN_PLACE) as counter,
    ):
        for _ in range(2):
            training.step()
    return counter.get_total_flops() / 2

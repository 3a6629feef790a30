"""Generators of the study by name: each is trained, and draws rows."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from recipes.metrics.tables import Codes
from studies.synthetic_tables import baselines
from studies.synthetic_tables.data import Split
from studies.synthetic_tables.diffusion import Diffusion, Share, of_seconds, of_steps
from studies.synthetic_tables.settings import AS_LONG, AS_OFTEN, EPOCHS, NOISES, Sizes


@dataclass(frozen=True)
class Task:
    """What a generator is trained on."""

    data: Split
    sizes: Sizes
    seed: int
    facts_of: Callable[[str], Mapping[str, float]]
    """Facts of a generator that ran before, for the same table and seed."""

    @property
    def number(self) -> int:
        """Number of rows to draw."""
        return len(self.data.held_out)


@dataclass(frozen=True)
class Made:
    """Rows that a generator drew."""

    samples: Codes
    facts: Mapping[str, float]
    """Seconds of CPU time, and the steps or epochs, of the training."""
    bits: dict[str, Any] | None = None
    """Bits of held-out rows, of generators that have them."""


def _diffusion(noise: str, share_of: Callable[[Task], Share]) -> Callable[[Task], Made]:
    def make(task: Task) -> Made:
        diffusion = Diffusion(task.data.columns, noise, task.sizes.network)
        begin = time.process_time()
        diffusion.fit(task.data.codes, share_of(task), task.seed)
        seconds = time.process_time() - begin
        begin = time.process_time()
        samples = diffusion.sample(task.number)
        sampling = time.process_time() - begin
        facts = {"seconds": seconds, "steps": diffusion.steps, "sampling": sampling}
        return Made(samples, facts, diffusion.bits(task.data.held_out))

    return make


def _ctgan(task: Task) -> Made:
    return Made(*baselines.ctgan(task.data, task.number, task.seed, seconds=task.sizes.seconds))


def _ctgan_epochs(task: Task) -> Made:
    return Made(*baselines.ctgan(task.data, task.number, task.seed, epochs=task.sizes.epochs))


def _copula(task: Task) -> Made:
    return Made(*baselines.copula(task.data, task.number, task.seed))


def _independent(task: Task) -> Made:
    data = task.data
    begin = time.process_time()
    samples = baselines.independent(data.codes, data.columns, task.number, task.seed)
    facts = {"seconds": time.process_time() - begin}
    return Made(samples, facts, baselines.independent_bits(data.codes, data.held_out, data.columns))


GENERATORS: Mapping[str, Callable[[Task], Made]] = {
    **{noise: _diffusion(noise, lambda task: of_seconds(task.sizes.seconds)) for noise in NOISES},
    "CTGAN": _ctgan,
    "Gaussian copula": _copula,
    "independent columns": _independent,
    EPOCHS: _ctgan_epochs,
    AS_LONG: _diffusion("masks", lambda task: of_seconds(task.facts_of(EPOCHS)["seconds"])),
    AS_OFTEN: _diffusion("masks", lambda task: of_steps(int(task.facts_of(EPOCHS)["steps"]))),
}

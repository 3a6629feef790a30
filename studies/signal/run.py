"""Noise of bound and gradient for every way to draw times and levels: the tables of docs/studies/signal.md.

All ways are measured on the same texts, so the variance between texts is part of each number.
docs/studies/signal.md also shows systematic levels and mirror pairs, which were removed after ddlib 0.1.0
because of these measurements.

A record of the code: it ran at commit 9abc9b6a, and protocol.md has the commands.
"""

import json
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

import ddlib as dd
from recipes.config import IN_STRATA, Recipe, time_density
from recipes.data import Batch, examples, open_prepared
from recipes.engine.provenance import provenance
from recipes.model_io import LoadedModel, open_saved
from studies.budgets.run import MODELS, SEARCH_SEED, USUAL
from studies.corpus_study import LENGTH, TINY, CorpusStudy
from studies.signal import page as signal_page
from studies.study import shared, written

FRESH = 10_000
"""Seed of an order of texts that no model was trained in."""


class Way(NamedTuple):
    """Rule for drawing times and levels."""

    method: str = "stratified"
    density: bool = False
    levels: str = "independent"


WAYS: Mapping[str, Way] = {
    "iid": Way("iid"),
    signal_page.TODAY: Way(),
    "density": Way(density=True),
    "balanced": Way(levels="balanced"),
    "density, balanced": Way(density=True, levels="balanced"),
}


class Drawn(NamedTuple):
    """A batch of noisy texts, and the weight of each."""

    z: Tensor
    t: Tensor
    weight: Tensor


def noised(process: dd.processes.ForwardProcess, batch: Batch, way: Way, share: float) -> Drawn:
    """Draw the noisy texts; ``share`` is the part of the mean that stays random."""
    noise = dd.KeyedGenerator(0, 0, batch.index)
    density = time_density("optimal", process, LENGTH, share) if way.density else None
    t = dd.sample_times(len(batch.x), way.method, noise, density=density, dtype=torch.float64)
    z = process.sample(batch.x, t, noise, levels=way.levels)
    weight = torch.ones_like(t) if density is None else density.weight(t)
    if way.levels == "balanced":
        weight = weight * process.importance_weight(batch.x, z, t)
    return Drawn(z, t, weight)


@torch.no_grad()
def bounds(saved: LoadedModel, batch: Batch, way: Way) -> Tensor:
    """Return the nats of each text, (B,)."""
    z, t, weight = noised(saved.process, batch, way, IN_STRATA)
    nats = dd.nelbo(
        saved.process,
        saved.model(z, t.float()),
        batch.x,
        z,
        t.float(),
        parameterization=saved.parameterization,
    )
    return weight * torch.where(batch.mask, nats.double(), 0.0).sum(1)


def gradient(saved: LoadedModel, loss: Recipe, batch: Batch, way: Way) -> Tensor:
    """Compute the gradient of the weighted training loss in nats per token, as one vector."""
    z, t, weight = noised(saved.process, batch, way, 1.0)
    nats = dd.training_loss(
        saved.process,
        saved.model(z, t.float()),
        batch.x,
        z,
        t.float(),
        loss.loss.rule(),
        mask=batch.mask,
        parameterization=saved.parameterization,
        reduction="none",
    )
    total = (weight[:, None].float() * nats).sum() / batch.mask.sum()
    slopes = torch.autograd.grad(total, list(saved.model.parameters()))
    return torch.cat([slope.flatten() for slope in slopes]).double()


def rounded(values: Tensor) -> list[float]:
    """Return the values to six digits."""
    return [float(f"{value:.6g}") for value in values.tolist()]


@dataclass(frozen=True)
class Signal(CorpusStudy):
    """Processes at points of training."""

    results = signal_page.PAGE
    commands = ("train", "measure", "report", "page")
    models: tuple[str, ...] = ("MDLM", "GIDD(0.1), dynamic", "HDLM-64", "HDLM-64-8, all edges")
    """Models of the search of ``studies.budgets.run``, in the order of ``signal_page.PROCESSES``."""
    points: tuple[float, ...] = (0.2, 0.6, 2.0)
    """Millions of tokens after which is measured; each is the end of a separate training."""
    texts: int = 64
    """Texts of an estimate of the bound."""
    sets: int = 64
    """Number of these estimates."""
    rows: int = 16
    """Texts of a gradient."""
    gradients: int = 32
    """Number of gradients."""

    @classmethod
    def tiny(cls) -> Self:
        """Return few short estimates after ten steps."""
        return cls(TINY, points=(0.005,), texts=8, sets=3, rows=4, gradients=3)

    def runs(self, work: Path) -> Iterator[tuple[str, float, Recipe]]:
        """Yield every process at every point of training."""
        for millions in self.points:
            for name, model in zip(signal_page.PROCESSES, self.models, strict=True):
                title = f"search-{model}-{USUAL}"  # that of two million is one of the search
                yield (
                    name,
                    millions,
                    self.setting.recipe(work, title, MODELS[model], millions, SEARCH_SEED),
                )

    def measured(self, saved: LoadedModel, given: Recipe) -> dict[str, Any]:
        """Compute the bounds of every set of texts and the distances of every gradient, for every
        way.
        """
        data, found = open_prepared(given.data.folder), {}
        options = dict(length=LENGTH, pad_id=data.pad_id, seed=FRESH, threads=0)
        sets = list(islice(examples(data.train, batch_size=self.texts, **options), self.sets))
        rows = list(islice(examples(data.train, batch_size=self.rows, **options), self.gradients))
        saved.model.requires_grad_(True)
        for name, way in WAYS.items():
            nats = torch.stack([bounds(saved, batch, way) for batch in sets])
            tokens = torch.stack([batch.mask.sum() for batch in sets])
            slopes = torch.stack([gradient(saved, given, batch, way) for batch in rows])
            mean = slopes.mean(0)
            found[name] = {
                "bounds": rounded(nats.sum(1) / tokens),
                "variances_within": rounded((nats / LENGTH).var(1)),
                "gradient": float(mean.norm()),
                "gradient_distances": rounded((slopes - mean).norm(dim=1)),
            }
            print(name, found[name], flush=True)
        return found

    def train(self, options: Namespace) -> None:
        """Train every process to every point."""
        shared([given for *_, given in self.runs(options.work)], options)

    def measure(self, options: Namespace) -> None:
        """Write the estimates of this process's share, one file for each process and point."""
        for name, millions, given in list(self.runs(options.work))[options.part :: options.of]:
            if not kept(options.work, name, millions).exists():
                written(
                    kept(options.work, name, millions),
                    self.measured(open_saved(given.output.folder), given),
                )

    def report(self, options: Namespace) -> None:
        """Write the result file, from all points measured so far."""
        work = options.work
        found = [
            {
                "process": name,
                "millions": millions,
                "ways": json.loads(kept(work, name, millions).read_text()),
            }
            for name, millions, _ in self.runs(work)
            if kept(work, name, millions).exists()
        ]
        sizes = {name: getattr(self, name) for name in ("texts", "sets", "rows", "gradients")} | {
            "length": LENGTH
        }
        written(options.out, {"provenance": provenance(), "sizes": sizes, "points": found})


def kept(work: Path, name: str, millions: float) -> Path:
    """Return the file of one point."""
    return work / f"signal-{name}-{millions:g}M.json"


STUDY = Signal()

if __name__ == "__main__":
    STUDY.main(__doc__)

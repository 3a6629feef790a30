"""Measurements of a trained network: bounds, exact likelihoods, judged samples."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int64
from torch import Tensor

from recipes.config import at_once
from recipes.data import Batch, Prepared, open_prepared
from recipes.engine.parallel import alone
from recipes.engine.validation import over
from recipes.evaluation.frontier import fewest_calls, quality
from recipes.evaluation.report import write
from recipes.evaluation.samples import draw_samples
from recipes.generation.calls import network_calls
from recipes.generation.sampling import Sampling
from recipes.metrics import Terms, measure, read
from recipes.metrics.scoring import Scores
from recipes.model_io import LoadedModel, make_order, open_saved
from studies.runs import Run, by_text
from studies.setting import LENGTH, Setting, measured, together

ORDER = "left_to_right"
BATCH = 32
SEED = 0


def bound(folder: Path, text: Path, draws: int) -> Run:
    """Return the bound of a text, and the nats of every document."""
    terms = Terms.average(measured(folder, [text], draws)[0])
    return {"bound": asdict(terms.per_token)} | by_text(terms)


def test_bound(folder: Path, work: Path, setting: Setting) -> Run:
    """Return the bound of the test text of all sources of the corpus."""
    terms = together(setting.tested(work, folder))
    return {"bound": asdict(terms.per_token)} | by_text(terms)


def chain(folder: Path, text: Path) -> Run:
    """Return the exact likelihood of a text from left to right, and the nats of every document."""
    saved = open_saved(folder)
    data = open_prepared(text)
    count = len(data.validation)
    order = make_order(saved, ORDER)
    calls = []

    def chain_of(batches: Iterable[Batch]) -> Terms:
        terms, most = read(
            saved.process,
            saved.denoiser,
            batches,
            order,
            None,
            count,
            parameterization=saved.parameterization,
        )
        calls.append(most)
        return terms

    terms = over(data, LENGTH, alone(), count, BATCH, chain_of)
    return {"nats_per_token": asdict(terms.per_token), "calls": max(calls)} | by_text(terms)


@dataclass(frozen=True)
class Cell:
    """A sampler of a network, a largest number of network calls, and a temperature."""

    network: str
    seed: int
    sampler: str
    calls: int
    temperature: float

    @property
    def name(self) -> str:
        """Name in the result file."""
        return f"{self.network}, {self.sampler}, {self.temperature:g}, {self.calls}, {self.seed}"


def draw(cell: Cell, folder: Path, samples: int, path: Path) -> None:
    """Draw the samples of a cell, and write their tokens and texts."""
    saved = open_saved(folder)
    each = fewest_calls(saved, Sampling(steps=1, sampler=cell.sampler), LENGTH)
    sampling = Sampling(
        steps=cell.calls // each, sampler=cell.sampler, temperature=cell.temperature
    )
    with network_calls(saved.model) as made:
        rows = draw_samples(saved, sampling, samples, LENGTH, BATCH, SEED, alone())
    documents = [saved.document(row) for row in rows]
    drawn = {
        "cell": asdict(cell),
        "made": made.sequences / samples,
        "rows": rows,
        "words": documents,
        "texts": [saved.tokenizer.decode(tokens) for tokens in documents],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write(path, drawn)


def summarize(drawn: Mapping[str, Any], judge: LoadedModel, data: Prepared) -> dict[str, Any]:
    """Return calls of drawn samples, and quality and variety of those that each judge scored.

    The autoregressive network scores all, another one those of ``studies.runs.judged``.
    """
    rows = torch.tensor(drawn["rows"])
    by_judge = {"corpus": quality(drawn["words"], causal_scores(judge, rows, data.pad_id))}
    if "scores" in drawn:
        scores = Scores(
            **{key: torch.tensor(drawn["scores"][key]) for key in ("nats", "tokens")}, cut=0
        )
        by_judge[drawn["judge"]["name"]] = quality(drawn["words"][: len(scores.tokens)], scores)
    return drawn["cell"] | {"made": drawn["made"], "judged": by_judge}


def causal_scores(judge: LoadedModel, rows: Int64[Tensor, "B L"], pad_id: int) -> Scores:
    """Return the nats of rows under a network along ``LeftToRight``, by one call for all positions.

    The bound in one step masks every token at once: it is the exact negative log-likelihood.
    """
    batches = [
        Batch(rows[index], rows[index] != pad_id, torch.ones_like(rows[index], dtype=bool), index)
        for index in torch.arange(len(rows)).split(BATCH)
    ]
    exact = partial(measure, seed=SEED, replicate=0, parameterization=judge.parameterization)
    terms = exact(
        judge.process,
        judge.denoiser,
        batches,
        steps=1,
        pace=judge.pace,
        at_once=at_once(judge.pace, judge.denoiser),
    )
    return Scores(terms.nats.sum(1), terms.tokens, 0)

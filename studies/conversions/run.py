"""The study of docs/studies/conversions.md.

SmolLM2-135M as a causal model, as a bidirectional one and as one by blocks.

A command that was stopped goes on where it was. Protocol and expectations are on the page, written
before the runs.

A record of the code: it ran at commit 26cb11fb, and protocol.md has the commands.
"""

import json
import os
import statistics
import time
from argparse import Namespace
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from textwrap import wrap
from typing import Any, Self

import torch
from torch import Tensor

from benchmarks.measuring import command, machine
from ddlib_models.hf.causal_lm import causal_lm
from recipes import adapt
from recipes.config import Recipe
from recipes.data import Prepared, examples, open_prepared, prepare
from recipes.data.source import SOTU
from recipes.engine import train
from recipes.engine.parallel import World
from recipes.engine.provenance import provenance
from recipes.engine.validation import NOISE, WINDOWS, validate
from recipes.evaluation.frontier import judged
from recipes.generation.calls import network_calls
from recipes.generation.lengths import FoundLength, Steps
from recipes.generation.sampling import Sampling, draw
from recipes.metrics import Terms
from recipes.metrics.scoring import load_scorer
from recipes.model_io import LoadedModel, open_saved
from studies import smoke
from studies.adapt.run import causal
from studies.conversions.causal_training import Row, finetune, generated
from studies.conversions.page import (
    BLOCK,
    BLOCKS,
    CAUSAL,
    CONFIDENCE,
    FIXED,
    MASKS,
    PACE,
    PAGE,
    RULES,
    WAYS,
    Way,
)
from studies.study import SCORER, Study, written

Values = dict[str, Any]
FOLDERS = {CAUSAL: "causal", MASKS: "bidirectional", BLOCKS: "blocks"}
"""Folders of the models."""


@dataclass(frozen=True)
class Conversions(Study):
    """Three models of the same weights, trained on the same windows."""

    results = PAGE
    commands = ("train", "draw", "lengths", "judge", "evaluate", "page")
    flags = {"--from": {"dest": "name", "help": "the causal model, a folder or a name"}} | SCORER
    length: int = 128
    batch: int = 4
    steps: int = 120
    windows: int = 128
    """Held-out windows of the bounds."""
    draws: int = 2
    """Draws of times and noise for each."""
    texts: int = 6
    """Samples of each cell."""
    ways: tuple[Way, ...] = WAYS
    paragraphs: int = 4
    """Held-out paragraphs whose length is to be found."""
    prompt: int = 8
    """Tokens of a paragraph that are given."""

    @classmethod
    def tiny(cls) -> Self:
        """Return windows of 64 tokens, four steps, and two samples of a cell of each model."""
        ways = tuple({way.model: way for way in WAYS}.values())
        return cls(
            length=64,
            batch=2,
            steps=4,
            windows=2,
            draws=1,
            texts=2,
            ways=ways,
            paragraphs=2,
            prompt=4,
        )

    def inputs(self, work: Path) -> None:
        """Prepare a few short texts in the tokens of a random model."""
        work.mkdir(exist_ok=True)
        text = work / "text.txt"
        lines = wrap(next(iter(smoke.sources(5000).values())), 40)
        text.write_text("\n".join(lines), encoding="utf-8")
        prepare(
            adapt.corpus_for(str(smoke.judge(work.parent / "judge")), str(text), 9), work / "data"
        )

    def recipes(self, work: Path, name: str) -> dict[str, Recipe]:
        """Return the recipes of the two conversions."""
        _, given = adapt.variants(name)["mdlm"]
        common = replace(
            given,
            data=replace(given.data, folder=work / "data", length=self.length),
            model={**given.model, "anneal": self.steps // 2},
            loss=given.loss | {"count_padding": True},
            hardware=replace(given.hardware, bf16=True),
            batch=self.batch,
            steps=self.steps,
        )

        def run(folder: str, **changes: Any) -> Recipe:
            output = replace(
                given.output,
                folder=work / folder,
                untrained=False,
                validate_every=max(self.steps // 4, 1),
                validate_sequences=min(self.windows, 64),
                sample_every=self.steps,
                samples=1,
                sample_steps=16,
                save_every=max(self.steps // 4, 1),
                tensorboard=False,
            )
            return replace(common, output=output, **changes)

        by_blocks = {"model": {**common.model, "block_size": BLOCK}, "pace": PACE}
        return {MASKS: run(FOLDERS[MASKS]), BLOCKS: run(FOLDERS[BLOCKS], **by_blocks)}

    def train(self, options: Namespace) -> None:
        """Train this process's share of the three models."""
        work, every = options.work, self.recipes(options.work, options.name)
        if not (work / "data").exists():
            prepare(adapt.corpus_for(options.name, SOTU, None), work / "data")
        for kind in (MASKS, BLOCKS, CAUSAL)[options.part :: options.of]:
            if kind != CAUSAL:
                train(every[kind])
            elif not (work / FOLDERS[CAUSAL]).exists():
                finetune(every[MASKS], options.name, work / FOLDERS[CAUSAL])

    def draw(self, options: Namespace) -> None:
        """Draw the samples of every cell one by one, and take their times."""
        work = options.work
        for way in self.ways[options.part :: options.of]:
            path = work / "drawn" / f"{way.file}.json"
            if path.exists():
                continue
            path.parent.mkdir(exist_ok=True)
            rows = self.sampled(work, way)
            found = {
                "rows": [row._asdict() for row in rows],
                "machine": machine(),
                "load": os.getloadavg()[0],
            }
            written(path, found)
            print(way.file, statistics.median(row.seconds for row in rows), flush=True)

    def sampled(self, work: Path, way: Way) -> list[Row]:
        """Return the samples of a cell, drawn one by one."""
        if way.model == CAUSAL:
            return generated(
                work / FOLDERS[CAUSAL], open_prepared(work / "data"), self.length, self.texts
            )
        saved, rows = open_saved(work / FOLDERS[way.model]), list[Row]()
        sampling = Sampling(**way.sampling)
        for number in range(self.texts):
            index = torch.tensor([number])
            start = time.process_time()
            with network_calls(saved.model) as made:
                found = draw(saved, sampling, 0, index, self.length)
            rows.append(Row(found[0].tolist(), time.process_time() - start, made.sequences))
        return rows

    def held_out(self, data: Prepared, saved: LoadedModel) -> tuple[Tensor, list[int]]:
        """Return the first held-out windows whose text is of a medium length, and these lengths."""
        stream = examples(
            data.validation, length=self.length, pad_id=data.fill_id, batch_size=1, seed=WINDOWS
        )
        least, most = 3 * self.prompt, self.length - 2 * self.prompt
        with closing(stream):
            rows = [
                (part.x[0], len(saved.document(part.x[0].tolist())))
                for part in islice(stream, len(data.validation))
            ]
        some = [(row, size) for row, size in rows if least <= size <= most][: self.paragraphs]
        return torch.stack([row for row, _ in some]), [size for _, size in some]

    def lengths(self, options: Namespace) -> None:
        """Find the lengths of held-out paragraphs by each rule, from their first tokens."""
        work, path = options.work, options.work / "lengths.json"
        saved = open_saved(work / FOLDERS[MASKS])
        x, true = self.held_out(open_prepared(work / "data"), saved)
        sampling = Sampling(sampler=CONFIDENCE, temperature=0.0, steps=self.length)
        found: Values = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        for name in RULES:
            if name in found:
                continue
            rule = None if name == FIXED else FoundLength(f"{name},max={self.length}").rule(saved)
            steps, index = Steps(saved.process.vocab_size), torch.arange(len(x))
            drawn = draw(
                saved, sampling, 0, index, self.length, x[:, : self.prompt], steps, rule=rule
            )
            sizes = [len(saved.document(row)) for row in drawn.tolist()]
            found[name] = {
                "found": sizes,
                "true": true,
                "steps": [steps.of[row] for row in index.tolist()],
            }
            written(path, found)
            print(name, found[name], flush=True)

    def judge(self, options: Namespace) -> None:
        """Measure the samples by the judge."""
        work, saved = options.work, open_saved(options.work / FOLDERS[MASKS])
        scorer = load_scorer(options.scorer, torch.device("cpu"), False)
        for way in self.ways:
            path = work / "judged" / f"{way.file}.json"
            path.parent.mkdir(exist_ok=True)
            if not path.exists() and (work / "drawn" / path.name).exists():
                rows = self.rows(work, way)
                documents = [saved.document(row["tokens"]) for row in rows]
                written(
                    path,
                    judged(saved, documents, scorer)
                    | {"first": saved.tokenizer.decode(documents[0])},
                )

    @staticmethod
    def rows(work: Path, way: Way) -> list[Values]:
        """Return the samples of a cell."""
        found: list[Values] = json.loads(
            (work / "drawn" / f"{way.file}.json").read_text(encoding="utf-8")
        )["rows"]
        return found

    def nats(self, work: Path) -> dict[str, Values]:
        """Return the bounds of held-out windows, and the causal model's nats."""
        data, world = open_prepared(work / "data"), World(0, 1, torch.device("cpu"))
        size = data.vocab_size
        model = causal_lm(size + 1, size, str(work / FOLDERS[CAUSAL]), attention="causal", shift=1)
        known = causal(model, data, self.length, self.windows, self.batch)
        found = {
            CAUSAL: {"value": known["nats_per_token"], "standard_error": known["standard_error"]}
        }
        for name in (MASKS, BLOCKS):
            saved = open_saved(work / FOLDERS[name])
            terms = [
                validate(
                    saved.process,
                    saved.denoiser,
                    data,
                    self.length,
                    world,
                    sequences=self.windows,
                    batch=self.batch,
                    seed=NOISE,
                    replicate=number,
                    density=None,
                    pace=saved.pace,
                    parameterization=saved.parameterization,
                )
                for number in range(self.draws)
            ]
            found[name] = asdict(Terms.average(terms).per_token)
            print(name, found[name], flush=True)
        return found

    def evaluate(self, options: Namespace) -> None:
        """Write the result file."""
        work, out = options.work, options.out
        before = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
        cells = []
        for way in self.ways:
            if not (work / "judged" / f"{way.file}.json").exists():
                continue  # not drawn yet
            rows, quality = (
                self.rows(work, way),
                json.loads((work / "judged" / f"{way.file}.json").read_text()),
            )
            seconds = [row["seconds"] for row in rows]
            speed = {
                "tokens_per_second": self.length / statistics.median(seconds),
                "seconds": seconds,
            }
            calls = statistics.mean(row["calls"] for row in rows)
            cells.append(
                {"model": way.model, "title": way.title, **way.sampling, **speed, "calls": calls}
                | quality
            )
        found = {
            "command": command(),
            "machine": machine(),
            "provenance": provenance(),
            "length": self.length,
            "windows": self.windows,
            "paragraphs": self.paragraphs,
            "nats": before.get("nats") or self.nats(work),
            "cells": cells,
            "lengths": json.loads((work / "lengths.json").read_text(encoding="utf-8")),
        }
        written(out, found)


STUDY = Conversions()

if __name__ == "__main__":
    STUDY.main(__doc__)

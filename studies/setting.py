"""Network, budget and measurement of the studies on the corpus."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from recipes.config import Data, Hardware, Optimizer, Output, Recipe
from recipes.data import Corpus, local, open_prepared, prepare
from recipes.engine.parallel import alone
from recipes.evaluate import Options, bounds, density_of
from recipes.metrics import Terms
from recipes.model_io import open_saved
from studies.corpus.public_domain import SOURCES

LENGTH = 128
"""Tokens of a sequence."""
DRAWS = 4
"""Draws of times and noise for every test text."""
COMPILED = 2
"""Budget in millions of tokens above which blocks are compiled."""


@dataclass(frozen=True)
class Model:
    """A process and its training loss."""

    process: dict[str, Any]
    loss: dict[str, Any] = field(default_factory=dict)

    def __or__(self, rule: Mapping[str, Any]) -> "Model":
        return replace(self, loss=self.loss | rule)


@dataclass(frozen=True)
class Setting:
    """Text, network and measurement of the studies on the corpus."""

    words: int = 4096
    """Tokens of the vocabulary, learned from the training text."""
    network: Mapping[str, int] = field(default_factory=lambda: dict(dim=128, depth=4, heads=4))
    batch: int = 16
    test: int = 140
    """Number of test documents of each source, the first that are held out."""
    search: int = 240
    """Number of held-out documents of each source in which those for the search end."""
    draws: int = DRAWS
    windows: int = 128
    """Windows of a validation in training."""

    def corpus(self, work: Path) -> Corpus:
        """Return all sources for training, the search's for validation, with the tokens learned
        from the first.
        """
        text = work / "text"
        files = str(text / "train.jsonl")
        held_out = str(text / "search.jsonl")
        return local(files=files, held_out=held_out, tokenizer=f"train:{self.words}")

    def recipe(self, work: Path, name: str, model: Model, millions: float, seed: int) -> Recipe:
        """Return a recipe of so many million tokens in steps of 16 x 128, on one CPU core."""
        steps = round(millions * 1e6 / self.batch / LENGTH / 10) * 10 or 10
        plain = name.replace(", ", "-").replace(" ", "_")
        return Recipe(
            data=Data(corpus=self.corpus(work), folder=work / "data", length=LENGTH),
            process=model.process,
            model=dict(kind="dit", **self.network, pad_to=1),
            start="text",
            loss={"weighting": "clip:2"} | model.loss,
            optimizer=Optimizer(
                lr=3e-3, warmup=50, weight_decay=0.1, muon=True, ema=1 - 10 / steps
            ),
            # compiled blocks make the same sums, rounded differently, in less time after half a
            # minute at the start
            hardware=Hardware(threads=1, compile=millions > COMPILED),
            output=Output(
                folder=work / "runs" / f"{plain}-{millions:g}M-{seed}",
                validate_every=max(steps // 10, 1),
                validate_sequences=self.windows,
                validate_times="optimal",
                sample_every=steps,
                samples=1,
                save_every=max(steps // 20, 50),
                keep=1,
                tensorboard=False,
            ),
            batch=self.batch,
            steps=steps,
            seed=seed,
        )

    def prepare(self, work: Path) -> None:
        """Prepare the training tokens, the text of the search, and the test text of each source in
        the same tokens.
        """
        text = work / "text"
        search = []
        for source in SOURCES:
            documents = (
                (text / f"held_out_{source}.jsonl")
                .read_text(encoding="utf-8")
                .splitlines(keepends=True)
            )
            (text / f"test_{source}.jsonl").write_text(
                "".join(documents[: self.test]), encoding="utf-8"
            )
            search += documents[self.test : self.search]
        (text / "search.jsonl").write_text("".join(search), encoding="utf-8")
        prepare(self.corpus(work), work / "data")
        for source in SOURCES:
            test = local(
                files=str(text / "search.jsonl"),
                held_out=str(text / f"test_{source}.jsonl"),
                tokenizer=str(work / "data" / "tokenizer.json"),
            )
            prepare(test, work / "test" / source)

    def tested(self, work: Path, folder: Path) -> dict[str, list[Terms]]:
        """Return the replicates of the bound of each source's test text under the model in a run's
        folder.
        """
        texts = [work / "test" / source for source in SOURCES]
        return dict(zip(SOURCES, measured(folder, texts, self.draws), strict=True))


TINY = Setting(
    words=300, network=dict(dim=16, depth=1, heads=1), batch=4, test=2, search=3, draws=2, windows=8
)
"""A setting at which a run of ten steps takes seconds."""


def measured(folder: Path, texts: list[Path], draws: int = DRAWS) -> list[list[Terms]]:
    """Return the replicates of the bound of each text under the model in a run's folder."""
    world = alone()
    saved = open_saved(folder, world.device)
    options = Options(run=str(folder), replicates=draws, scorer="none", times="optimal")
    density = density_of(saved, options)
    return [bounds(saved, open_prepared(text), options, world, density) for text in texts]


def together(terms: Mapping[str, list[Terms]]) -> Terms:
    """Join all sources as one text, the mean of the replicates."""
    return Terms.average([joined(many) for many in zip(*terms.values(), strict=True)])


def joined(parts: tuple[Terms, ...]) -> Terms:
    """Join the sequences of all sources as one corpus."""
    count = 0
    moved = []
    for part in parts:
        moved.append(replace(part, index=part.index + count))
        count += int(part.index.max()) + 1
    return Terms.join(moved)

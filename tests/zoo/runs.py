"""Named tiny runs: prepared texts, a recipe that trains in a second, and runs that were never
trained, with random weights, published as training does.
"""

import functools
import io
import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch
from rich.console import Console

from ddlib.hierarchies import save_clusters, semantic_clusters
from recipes.config import Data, Hardware, ModelContext, Optimizer, Output, Recipe
from recipes.console import make_console
from recipes.data import Batch, Corpus, Prepared, examples, local, open_prepared, prepare, speeches
from recipes.engine.parallel import World
from recipes.engine.setup import FromText, make_model, make_process
from recipes.model_io import WEIGHTS
from recipes.model_io.writing import Record, write_model

ALONE = World(0, 1, torch.device("cpu"))
LENGTH = 24
"""Tokens of a row of a published run."""
SENTENCES = (
    "The state of our union is strong.",
    "Tonight we celebrate the work of free people who never gave up.",
    "No.",
    "We will build roads, schools and bridges, and we will pay for them; this is what the people "
    "sent us here to do.",
)


def quiet() -> Console:
    """A console that prints nothing."""
    return make_console(io.StringIO())


def read_lines(path: Path) -> list[dict]:
    """The objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def write_texts(path: Path, sentences: tuple[str, ...] = SENTENCES, count: int = 40) -> None:
    """Numbered sentences, each a document of a JSONL file."""
    texts = [f"{number}. {sentences[number % len(sentences)]}" for number in range(count)]
    path.write_text("".join(json.dumps({"text": one}) + "\n" for one in texts), encoding="utf-8")


def batch_of(x: torch.Tensor, index: torch.Tensor | None = None) -> Batch:
    """Rows (B, L) without padding, all of whose tokens are free, numbered from 0."""
    every = torch.ones_like(x, dtype=torch.bool)
    return Batch(x, every, every, torch.arange(len(x)) if index is None else index)


@functools.cache
def text(folder: Path, words: int = 300, held_out: int = 60) -> Path:
    """A folder of prepared text of a few words: a copy, since its preparation takes as long as
    fifty steps.
    """
    shutil.copytree(_prepared_speeches(words, held_out).name, folder)
    return folder


def smoke_text(folder: Path) -> None:
    """The text of ``--smoke`` where a command in this folder looks for it."""
    text(folder / "runs" / "smoke" / "data", 1024, 1000)


@functools.cache
def _prepared_speeches(words: int, held_out: int) -> TemporaryDirectory:
    folder = TemporaryDirectory()
    prepare(speeches(words=words, held_out=held_out), Path(folder.name))
    return folder


def recipe(data: Path, folder: Path, **changes) -> Recipe:
    """Twenty steps that take a second."""
    twenty = Recipe(
        data=Data(corpus=speeches(words=300, held_out=60), folder=data, length=16),
        process=dict(kind="hdlm", clusters=6, xi=0.9),
        model=dict(kind="dit", dim=16, depth=2, heads=2, cond_dim=8, pad_to=1, dropout=0.1),
        optimizer=Optimizer(lr=3e-3, warmup=4, ema=0.9),
        hardware=Hardware(threads=1),
        output=Output(
            folder=folder,
            log_every=1,
            validate_every=10,
            validate_sequences=24,
            sample_every=20,
            sample_steps=4,
            samples=2,
            save_every=4,
            keep=2,
            tensorboard=False,
        ),
        batch=8,
        steps=20,
    )
    return replace(twenty, **changes)


def recipe_in(folder: Path, name: str = "run", **changes) -> Recipe:
    """The same in ``folder``/name, with its text in ``folder``/data."""
    return recipe(text(folder / "data"), folder / name, **changes)


def exact(run: Recipe) -> Recipe:
    """The same with numbers that do not depend on the layout: dropout is drawn by process, and
    near 0 Adam divides by its rounding errors.
    """
    return replace(
        run, model=run.model | {"dropout": 0.0}, optimizer=replace(run.optimizer, eps=1e-6)
    )


PUBLISHED = {
    "masks": {},
    "packed": dict(packed=True),
    "wrapped": dict(wrap=True),
    "two layers": dict(depth=2),
    "blocks": dict(pace="blocks:size=4"),
    "uniform": dict(process=dict(kind="uniform", schedule="linear")),
    "clusters": dict(process=dict(kind="hdlm", clusters=8)),
    "clusters, xi": dict(process=dict(kind="hdlm", clusters=8, xi=0.9)),
    "two levels": dict(process=dict(kind="hdlm_levels", clusters=[8, 4], xi=[0.9, 1.0])),
}
"""Processes and layouts of runs with random weights."""


@dataclass(frozen=True)
class Published:
    """Folder of the run, and the text that it would have been trained on."""

    run: Path
    data: Prepared

    def held_out(self, rows: int) -> Batch:
        """The first rows of the text for validation."""
        whole = dict(length=LENGTH, pad_id=self.data.pad_id, seed=0, threads=0)
        return next(examples(self.data.validation, batch_size=rows, **whole))


@functools.cache
def _prepared() -> tuple[TemporaryDirectory, Corpus]:
    """The text of all runs in a folder, prepared once per process."""
    folder = TemporaryDirectory()
    text = Path(folder.name) / "text.jsonl"
    write_texts(text, count=30)
    corpus = local(str(text), "train:300", held_out=11)
    prepare(corpus, Path(folder.name) / "data")
    return folder, corpus


def publish_tiny(name: str, folder: Path, **options) -> Published:
    """The named run with random weights in ``folder``/run, its text in ``folder``/data."""
    return _publish(folder, **PUBLISHED[name] | options)


def publishes(name: str):
    """Return the fixture ``published`` of a module: the named run in a folder of its own."""

    @pytest.fixture(scope="module")
    def published(tmp_path_factory):
        return publish_tiny(name, tmp_path_factory.mktemp("published"))

    return published


def _publish(
    folder: Path,
    process: dict | None = None,
    packed: bool = False,
    pace: str = "together",
    wrap: bool = False,
    depth: int = 1,
) -> Published:
    prepared, corpus = _prepared()
    shutil.copytree(prepared.name, folder, dirs_exist_ok=True)
    data = open_prepared(folder / "data", corpus)
    run = Recipe(
        data=Data(corpus=corpus, folder=folder / "data", length=LENGTH, packed=packed, wrap=wrap),
        process=process or dict(kind="mdlm"),
        pace=pace,
        model=dict(kind="dit", dim=16, depth=depth, heads=2, cond_dim=8, pad_to=1),
        loss=dict(parameterization="posterior"),  # not the default
        optimizer=Optimizer(lr=1e-3),
        output=Output(folder=folder / "run"),
        batch=4,
        steps=1,
    )
    sizes = run.process.get("clusters")
    if sizes is not None:  # put where the run would look for those that it made of the text
        vectors = torch.randn(data.vocab_size, 8, generator=torch.Generator().manual_seed(0))
        counts = sizes if isinstance(sizes, list) else [sizes]
        clusters = semantic_clusters(vectors, counts, fingerprint=data.fingerprint)
        save_clusters(data.folder / "clusters-{}".format("-".join(map(str, counts))), clusters)
    known = FromText(run, data, ALONE)
    model = make_model(run, ModelContext(known, make_process(run, known, data, ALONE)))
    with torch.no_grad():
        for parameter in model.parameters():  # a fresh one is uniform: its head and gates are zero
            parameter.add_(0.3 * torch.randn_like(parameter))
    record = Record(
        recipe=run, tokenizer=data.tokenizer, clusters=known.clusters, counts=known.counted
    )
    write_model(model, run.output.folder / WEIGHTS, record, "tiny", "Of random weights.")
    return Published(run.output.folder, data)


def tiny_scorer(folder, tokenizer):
    """Save a random causal language model with this tokenizer, which judges samples.

    Return its folder.
    """
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_object=tokenizer).save_pretrained(folder)
    config = GPT2Config(
        vocab_size=tokenizer.get_vocab_size(), n_positions=64, n_embd=8, n_layer=1, n_head=2
    )
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder

"""A run that was never trained: prepared text and random weights, published as training does."""

import functools
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from ddlib.hierarchies import save_clusters, semantic_clusters
from recipes.config import Data, ModelContext, Optimizer, Output, Recipe
from recipes.data import Corpus, Prepared, local, open_prepared, prepare
from recipes.engine.parallel import World
from recipes.engine.setup import FromText, make_model, make_process
from recipes.model_io import WEIGHTS
from recipes.model_io.writing import Record, write_model

LENGTH = 24
SENTENCES = (
    "The state of our union is strong.",
    "Tonight we celebrate the work of free people who never gave up.",
    "No.",
    "We will build roads, schools and bridges, and we will pay for them; this is what the people "
    "sent us here to do.",
)


@dataclass(frozen=True)
class Published:
    """Folder of the run, and the text that it would have been trained on."""

    run: Path
    data: Prepared


@functools.cache
def _prepared() -> tuple[TemporaryDirectory, Corpus]:
    """The text of all runs in a folder, prepared once per process."""
    made = TemporaryDirectory()
    text = Path(made.name) / "text.jsonl"
    lines = [
        json.dumps({"text": f"{number}. {SENTENCES[number % len(SENTENCES)]}"})
        for number in range(30)
    ]
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    corpus = local(str(text), "train:300", held_out=11)
    prepare(corpus, Path(made.name) / "data")
    return made, corpus


def publish_tiny(
    folder: Path,
    process: dict | None = None,
    packed: bool = False,
    pace: str = "together",
    wrap: bool = False,
    depth: int = 1,
) -> Published:
    """A network with random weights in ``folder``/run, its text in ``folder``/data."""
    prepared, corpus = _prepared()
    shutil.copytree(prepared.name, folder, dirs_exist_ok=True)
    data = open_prepared(folder / "data", corpus)
    recipe = Recipe(
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
    world = World(0, 1, torch.device("cpu"))
    given = recipe.process.get("clusters")
    if given is not None:  # put where the run would look for those that it made of the text
        vectors = torch.randn(data.vocab_size, 8, generator=torch.Generator().manual_seed(0))
        counts = given if isinstance(given, list) else [given]
        made = semantic_clusters(vectors, counts, fingerprint=data.fingerprint)
        save_clusters(data.folder / "clusters-{}".format("-".join(map(str, counts))), made)
    known = FromText(recipe, data, world)
    model = make_model(recipe, ModelContext(known, make_process(recipe, known, data, world)))
    with torch.no_grad():
        for parameter in model.parameters():  # a fresh one is uniform: its head and gates are zero
            parameter.add_(0.3 * torch.randn_like(parameter))
    record = Record(
        recipe=recipe, tokenizer=data.tokenizer, clusters=known.clusters, counts=known.counted
    )
    write_model(model, recipe.output.folder / WEIGHTS, record, "tiny", "Of random weights.")
    return Published(recipe.output.folder, data)


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

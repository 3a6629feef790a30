"""A run that was never trained: prepared text and random weights, published as training does."""

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

from ddlib.hierarchies import save_clusters, semantic_clusters
from recipes.config import recipe_yaml
from recipes.config import Data, Loss, Model, Optimizer, Output, Recipe
from recipes.data import Prepared, local, prepare
from recipes.engine.setup import make_model
from recipes.saved import CLUSTERS, RECIPE, TOKENIZER, WEIGHTS
from recipes.variants import GIDD, HDLM, MDLM, HDLMLevels

LENGTH = 24
SENTENCES = (
    "The state of our union is strong.",
    "Tonight we celebrate the work of free people who never gave up.",
    "No.",
    "We will build roads, schools and bridges, and we will pay for them; this is what the people sent us here to do.",
)


@dataclass(frozen=True)
class Published:
    """Where the run is, and the text that it would have been trained on."""

    run: Path
    data: Prepared


def publish_tiny(
    folder: Path, process: MDLM | GIDD | HDLM | HDLMLevels | None = None, packed: bool = False
) -> Published:
    """A network with random weights in ``folder``/run, its text in ``folder``/data."""
    text = folder / "text.jsonl"
    lines = [json.dumps({"text": f"{number}. {SENTENCES[number % len(SENTENCES)]}"}) for number in range(30)]
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")
    corpus = local(str(text), "train:300", held_out=11)
    data = prepare(corpus, folder / "data")
    recipe = Recipe(
        data=Data(corpus=corpus, folder=folder / "data", length=LENGTH, packed=packed),
        process=process or MDLM(),
        model=Model(dim=16, depth=1, heads=2, cond_dim=8, pad_to=1),
        loss=Loss(parameterization="posterior"),  # not what ddlib takes if nobody tells it
        optimizer=Optimizer(lr=1e-3),
        output=Output(folder=folder / "run"),
        batch=4,
        steps=1,
    )
    clusters, files = None, {}
    if recipe.process.levels:
        vectors = torch.randn(data.vocab_size, 8, generator=torch.Generator().manual_seed(0))
        counts = tuple(8 // 2**level for level in range(recipe.process.levels))
        clusters = semantic_clusters(vectors, counts, fingerprint=data.fingerprint)
        with tempfile.TemporaryDirectory() as temporary:
            save_clusters(Path(temporary) / CLUSTERS, clusters)
            files = {path.name: path.read_bytes() for path in Path(temporary).iterdir()}
    noise = recipe.process.build(data.vocab_size, clusters)
    model = make_model(recipe, noise)
    with torch.no_grad():
        for parameter in model.parameters():  # a fresh one knows nothing: its head and gates are zero
            parameter.add_(0.3 * torch.randn_like(parameter))
    files |= {RECIPE: recipe_yaml(recipe), TOKENIZER: data.tokenizer.to_str()}
    model.save_pretrained(recipe.output.folder / WEIGHTS, extra=files)
    return Published(recipe.output.folder, data)

"""Export of the weights: safetensors and JSON, with all that sampling and evaluation require."""

import json
import tempfile
from collections.abc import Mapping
from pathlib import Path

from safetensors.torch import save
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from ddlib.hierarchies import save_clusters
from ddlib_models import Pretrained
from ddlib_models.io.manifest import writing
from ddlib_models.io.pretrained import save_tensors
from recipes.config import ModelContext, recipe_yaml
from recipes.engine.run import Run
from recipes.engine.setup import FromText, make_model
from recipes.model_io import CLUSTERS, COUNTS, RECIPE, SPEEDS, SYMBOLS, TOKENIZER

_CARD = """# {title}

{about}

```python
from recipes.model_io import open_saved

saved = open_saved("...")  # this folder, or a repository on the hub
```

`ddlib_manifest.json` holds the sizes and sha256 of all files; they are checked at every load.
"""


def publish(run: Run, folder: Path) -> None:
    """Write the averaged weights (the last ones if there is no average), recipe, tokenizer, clusters and counts."""
    model = _blank(run)
    with run.averaged():  # on one CPU the dictionary holds the weights themselves, not copies
        weights = get_model_state_dict(run.objective, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if run.world.first:
            model.load_state_dict({name.removeprefix("model."): value for name, value in weights.items()})
    if run.world.first:
        files = {RECIPE: recipe_yaml(run.recipe), TOKENIZER: run.data.tokenizer.to_str()} | known_files(run.known)
        if run.data.layout is not None:
            files[SYMBOLS] = json.dumps(run.data.layout.plain())
        if run.state.speeds is not None:
            files[SPEEDS] = save({name: value.detach().cpu() for name, value in run.state.speeds.parameters.items()})
        save_network(model, folder, files, _card(run))
    run.world.barrier()


def _blank(run: Run) -> nn.Module:
    """Return a network to be filled, built as for loading, which may require less than the recipe: no checkpoint."""
    trained = run.objective.model
    if isinstance(trained, Pretrained):
        return type(trained)(**trained.saved_arguments())
    return make_model(run.recipe, ModelContext(run.known, run.process))


def save_network(model: nn.Module, folder: Path, files: Mapping[str, bytes | str], card: Mapping[str, str]) -> None:
    """Save a network by its own method, or its tensors alone, from which the recipe rebuilds it.

    Args:
        model: the network.
        folder: folder of the weights.
        files: further files by name.
        card: ``title`` and ``about`` of README.md.
    """
    if isinstance(model, Pretrained):
        model.save_pretrained(folder, extra=files, model_card_kwargs=card)
        return
    with writing(folder, {"class": type(model).__name__}, unlisted=("README.md",)) as unfinished:
        save_tensors(model, unfinished / "model.safetensors")
        for name, content in files.items():
            (unfinished / name).write_bytes(content.encode() if isinstance(content, str) else content)
        (unfinished / "README.md").write_text(_CARD.format(**card), encoding="utf-8")


def _card(run: Run) -> dict[str, str]:
    """Return the content of the model card besides the instructions for loading."""
    return {
        "title": run.recipe.output.folder.name,
        "about": f"A discrete diffusion {'language ' * run.data.is_text}model, {run.process!r}, trained by `{RECIPE}`. "
        "With ddlib's recipes `python -m recipes.generate FOLDER` samples from it and `recipes.evaluate` measures it.",
    }


def known_files(known: FromText) -> dict[str, bytes]:
    """Return the values that a run filled in and that cannot be recomputed, as files by name."""
    files = {} if known.counted is None else {COUNTS: save({"counts": known.counted})}
    if known.clusters is not None:
        with tempfile.TemporaryDirectory() as folder:
            save_clusters(Path(folder) / CLUSTERS, known.clusters)
            files |= {path.name: path.read_bytes() for path in Path(folder).iterdir()}
    return files

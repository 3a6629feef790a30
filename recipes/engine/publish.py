"""The weights for others: safetensors and JSON, with all that is needed to sample and to measure."""

import tempfile
from pathlib import Path

from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from ddlib.hierarchies import save_clusters
from recipes.config import recipe_yaml
from recipes.engine.run import Run
from recipes.engine.setup import make_model
from recipes.saved import CLUSTERS, RECIPE, TOKENIZER


def publish(run: Run, folder: Path) -> None:
    """Writes the averaged weights (the last ones if there is no average), recipe, tokenizer and clusters."""
    model = make_model(run.recipe, run.process)
    with run.averaged():  # on one CPU the dictionary holds the weights themselves, not copies
        weights = get_model_state_dict(run.objective, options=StateDictOptions(full_state_dict=True, cpu_offload=True))
        if run.world.first:
            model.load_state_dict({name.removeprefix("model."): value for name, value in weights.items()})
    if run.world.first:
        files = {RECIPE: recipe_yaml(run.recipe), TOKENIZER: run.data.tokenizer.to_str()} | _clusters(run)
        model.save_pretrained(folder, extra=files, model_card_kwargs=_card(run))
    run.world.barrier()


def _card(run: Run) -> dict[str, str]:
    """What the model card says besides how to load the network."""
    return {
        "title": run.recipe.output.folder.name,
        "about": f"A discrete diffusion language model, {run.process!r}, trained by `{RECIPE}`. "
        "With ddlib's recipes `python -m recipes.generate FOLDER` samples from it and `recipes.evaluate` measures it.",
    }


def _clusters(run: Run) -> dict[str, bytes]:
    if run.clusters is None:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        save_clusters(Path(folder) / CLUSTERS, run.clusters)
        return {path.name: path.read_bytes() for path in Path(folder).iterdir()}

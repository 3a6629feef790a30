"""Export of the weights of a run: safetensors and JSON, with all that sampling and evaluation
require.
"""

from pathlib import Path

from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

from ddlib_models import Pretrained
from recipes.config import ModelContext
from recipes.engine.run import Run
from recipes.engine.setup import make_model
from recipes.model_io.names import RECIPE
from recipes.model_io.writing import Record, write_model


def publish(run: Run, folder: Path) -> None:
    """Write the averaged weights (the last ones if there is no average), recipe, tokenizer,
    clusters and counts.
    """
    model = _blank(run)
    with run.use_averages():  # on one CPU the dictionary holds the weights themselves, not copies
        weights = get_model_state_dict(
            run.network, options=StateDictOptions(full_state_dict=True, cpu_offload=True)
        )
        if run.world.first:
            model.load_state_dict(
                {name.removeprefix("model."): value for name, value in weights.items()}
            )
    if run.world.first:
        record = Record(
            recipe=run.recipe,
            tokenizer=run.data.tokenizer,
            layout=run.data.layout,
            clusters=run.known.clusters,
            counts=run.known.counted,
            template=run.data.template,
            content=run.data.content,
        )
        about = (
            f"A discrete diffusion {'language ' * run.data.is_text}model, {run.process!r}, trained "
            f"by `{RECIPE}`. With "
            "ddlib's recipes `python -m recipes.generate FOLDER` samples from it and "
            "`recipes.evaluate` measures it."
        )
        write_model(model, folder, record, run.recipe.output.folder.name, about)
    run.world.barrier()


def _blank(run: Run) -> nn.Module:
    """Return a network to be filled, built as for loading, which may require less than the recipe:
    no checkpoint.
    """
    trained = run.network.model
    if isinstance(trained, Pretrained):
        return type(trained)(**trained.saved_arguments())
    return make_model(run.recipe, ModelContext(run.known, run.process))

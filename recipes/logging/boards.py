"""Remote boards for curves, histograms and texts: TensorBoard, Weights & Biases."""

import html
import textwrap
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from pathlib import Path
from types import ModuleType

import numpy as np
from jaxtyping import Float
from pydantic import TypeAdapter

from recipes.config import Recipe

RUN_ID = "wandb_id"


class Board(AbstractContextManager["Board"], ABC):
    """Abstract board; closed when its context ends."""

    @abstractmethod
    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        """Log numbers by name, ``part/number``."""

    @abstractmethod
    def histogram(self, step: int, name: str, values: Float[np.ndarray, " N"]) -> None:
        """Log the distribution of values at one step."""

    @abstractmethod
    def text(self, step: int, name: str, text: str) -> None:
        """Log lines verbatim."""


class TensorBoard(Board):
    """Event files in the run's folder ``tensorboard``.

    Those of steps that will be repeated are hidden.
    """

    def __init__(self, module: ModuleType, recipe: Recipe, start: int) -> None:
        self._writer = module.SummaryWriter(
            str(recipe.output.folder / "tensorboard"), purge_step=start + 1
        )

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        # so that events older than a checkpoint survive a kill
        self._writer.flush()

    def histogram(self, step: int, name: str, values: Float[np.ndarray, " N"]) -> None:
        self._writer.add_histogram(name, values, step)

    def text(self, step: int, name: str, text: str) -> None:
        # TensorBoard reads Markdown: four spaces begin a verbatim block without line wraps
        lines = [part for line in text.splitlines() for part in textwrap.wrap(line, 100) or [""]]
        self._writer.add_text(name, "\n".join("    " + line for line in lines), step)

    def __exit__(self, *error: object) -> None:
        self._writer.close()


class WandB(Board):
    """Run of Weights & Biases, resumed by the id in the run's folder.

    The step counter of W&B cannot go back, so steps are an ordinary axis: steps repeated after a
    kill are logged twice.
    """

    def __init__(self, module: ModuleType, recipe: Recipe, start: int) -> None:
        folder = recipe.output.folder
        self._module = module
        self._run = module.init(
            project=recipe.output.wandb,
            id=run_id(folder / RUN_ID),
            resume="allow",
            name=folder.name,
            dir=str(folder),
            config=TypeAdapter(Recipe).dump_python(recipe, mode="json"),
            allow_val_change=True,
        )
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def scalars(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log({"step": step, **values})

    def histogram(self, step: int, name: str, values: Float[np.ndarray, " N"]) -> None:
        self._run.log({"step": step, name: self._module.Histogram(values)})

    def text(self, step: int, name: str, text: str) -> None:
        page = f'<pre style="white-space: pre-wrap">{html.escape(text)}</pre>'
        self._run.log({"step": step, name: self._module.Html(page)})

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._run.finish(exit_code=int(kind is not None))


def run_id(path: Path) -> str:
    """Return the id in the file; a new one if there is no file."""
    if not path.exists():
        path.write_text(uuid.uuid4().hex, encoding="utf-8")
    return path.read_text(encoding="utf-8")


def chosen_boards(recipe: Recipe) -> list[Callable[[int], Board]]:
    """Return the constructors of the boards in a recipe, which take the number of steps made
    before.

    Raises:
        ModuleNotFoundError: one of them is not installed; nothing was opened.
    """
    output = recipe.output
    requested = [
        (
            output.tensorboard,
            TensorBoard,
            "torch.utils.tensorboard",
            "output.tensorboard=True",
            "tensorboard",
        ),
        (output.wandb is not None, WandB, "wandb", f"output.wandb={output.wandb!r}", "wandb"),
    ]
    makers: list[Callable[[int], Board]] = []
    for is_wanted, board, name, flag, package in requested:
        if is_wanted:
            module = _load(name, f"{flag} needs {package}: pip install {package}")
            makers.append(lambda start, board=board, module=module: board(module, recipe, start))
    return makers


def _load(name: str, message: str) -> ModuleType:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(message) from error

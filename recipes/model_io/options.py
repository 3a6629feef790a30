"""What a command is told of a model that its files do not say."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from recipes.config import at_least
from recipes.model_io.base import LoadedModel, Precision
from recipes.model_io.opening import open_saved


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How a model is read."""

    family: str | None = None
    """How a model of others is read, as ddlib_models.hub names it; by default its files say."""
    mask_token: str | None = None
    """The token that stands for its mask, or, where no token is spelled so, its id; likewise."""
    block_size: int | None = None
    """Positions of a block that it was trained by, which is then its pace; 0 if every position sees all. Likewise."""
    revision: str | None = None
    """Branch, tag or commit of a repository on the hub."""
    trust: tuple[str, ...] = ()
    """Modules that weights from elsewhere may import parts from, package.module; or a model's name, to run its code."""

    def __post_init__(self) -> None:
        at_least(0, block_size=self.block_size or 0)

    def open(self, source: str, device: str | torch.device, precision: Precision) -> LoadedModel:
        """The model; arguments as those of ``open_saved``."""
        return open_saved(source, device, precision, **asdict(self))

    def said(self) -> dict[str, Any]:
        """What was told, by name; whom to trust decides no number."""
        return {name: value for name, value in asdict(self).items() if name != "trust" and value is not None}

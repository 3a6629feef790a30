"""Command-line options for loading a model, for what its files do not contain."""

from dataclasses import asdict, dataclass
from typing import Any

import torch

from recipes.config import at_least
from recipes.model_io.base import LoadedModel, Precision
from recipes.model_io.opening import open_saved


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Options for loading a model."""

    family: str | None = None
    """Format of a third-party model, a name in ddlib_models.hub.

    By default detected from its files.
    """
    mask_token: str | None = None
    """Mask token of a third-party model, or its id if no token is spelled so.

    By default detected from its files.
    """
    block_size: int | None = None
    """Positions of a block in the training of a third-party model, which determines its pace; 0.

    Full attention; by
    default detected from its files."""
    revision: str | None = None
    """Branch, tag or commit of a repository on the hub."""
    trust: tuple[str, ...] = ()
    """Modules that third-party weights may import parts from, package.module.

    Or a model's name, to run its code.
    """

    def __post_init__(self) -> None:
        at_least(0, block_size=self.block_size or 0)

    def open(self, source: str, device: str | torch.device, precision: Precision) -> LoadedModel:
        """Open the model; arguments as in ``open_saved``."""
        return open_saved(source, device, precision, **asdict(self))

    def recorded(self) -> dict[str, Any]:
        """Return the options that affect results, by name, without ``trust``."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name != "trust" and value is not None
        }

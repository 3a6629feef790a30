"""Patches of grey photographs from the packages ``scikit-image`` and ``scikit-learn``."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from recipes.data.packaged import check_limit, digests, package_path
from recipes.data.sequences import Sequences
from recipes.domains.pictures.grey import check_levels, quantise, values_of

SKIMAGE = ("skimage", "data", "the sample pictures of scikit-image", "scikit-image")
SKLEARN = ("sklearn", "datasets/images", "the sample pictures of scikit-learn", "scikit-learn")

PICTURES = {
    "astronaut": (*SKIMAGE, "astronaut.png"),
    "brick": (*SKIMAGE, "brick.png"),
    "camera": (*SKIMAGE, "camera.png"),
    "chelsea": (*SKIMAGE, "chelsea.png"),
    "china": (*SKLEARN, "china.jpg"),
    "coffee": (*SKIMAGE, "coffee.png"),
    "coins": (*SKIMAGE, "coins.png"),
    "flower": (*SKLEARN, "flower.jpg"),
    "grass": (*SKIMAGE, "grass.png"),
    "gravel": (*SKIMAGE, "gravel.png"),
    "moon": (*SKIMAGE, "moon.png"),
    "motorcycle": (*SKIMAGE, "motorcycle_left.png"),
    "rocket": (*SKIMAGE, "rocket.jpg"),
}
"""Photographs by name: package, folder, description, distribution, file.

Drawings, text and microscopy are left out.
"""


@dataclass(frozen=True, kw_only=True)
class Patches:
    """Patches of photographs, cut without overlap, row by row.

    The class of a patch is its photograph.

    Neighbouring patches of a photograph are alike. A hold-out by photograph measures generalisation
    to others.

    Args:
        height: height of a patch in pixels.
        width: width of a patch in pixels.
        levels: number of grey values V.
        reduce: side of the squares of pixels that are averaged first: patches then show larger
            parts.
        pictures: names of the photographs.
        limit: number of patches of each photograph, evenly spaced; all by default.

    Raises:
        ValueError: sizes below 1, a number of grey values that is not in 2..256, a limit below 1,
            an unknown photograph or none.
    """

    height: int = 12
    width: int = 12
    levels: int = 256
    reduce: int = 1
    pictures: tuple[str, ...] = tuple(PICTURES)
    limit: int | None = None

    def __post_init__(self) -> None:
        for name in ("height", "width", "reduce"):
            if (value := getattr(self, name)) < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
        check_levels(self.levels)
        check_limit(self.limit)
        object.__setattr__(self, "pictures", tuple(self.pictures))
        if unknown := [name for name in self.pictures if name not in PICTURES]:
            raise ValueError(
                f"pictures={unknown[0]!r}: no such photograph, there are {', '.join(PICTURES)}"
            )
        if not self.pictures or len(set(self.pictures)) < len(self.pictures):
            raise ValueError(f"pictures={self.pictures}: must be one or more names, each once")

    def load(self) -> Sequences:
        """Return patches of shape (height, width), labelled by photograph.

        Raises:
            ModuleNotFoundError: a package is not installed.
            ValueError: a photograph is smaller than a patch.
        """
        cut = [self._cut(name) for name in self.pictures]
        labels = np.repeat(np.arange(len(cut)), [len(patches) for patches in cut])
        values = values_of(self.levels)
        return Sequences(
            ids=quantise(np.concatenate(cut), self.levels),
            symbols=tuple(map(str, values)),
            shape=(self.height, self.width),
            values=values,
            labels=labels,
            classes=self.pictures,
            separator=" ",
        )

    def identity(self) -> dict[str, str]:
        """Return the hash of each picture file, by its name."""
        return digests(_file(name) for name in self.pictures)

    def _cut(self, name: str) -> np.ndarray:
        """Return the patches of a photograph, (N, height × width) uint8."""
        from PIL import Image

        with Image.open(_file(name)) as opened:
            grey = np.asarray(opened.convert("L").reduce(self.reduce))
        rows = grey.shape[0] // self.height
        columns = grey.shape[1] // self.width
        if not rows or not columns:
            raise ValueError(
                f"height={self.height}, width={self.width}: {name} has {grey.shape[0]} x "
                f"{grey.shape[1]} pixels "
                f"with reduce={self.reduce}"
            )
        grid = grey[: rows * self.height, : columns * self.width].reshape(
            rows, self.height, columns, self.width
        )
        patches = grid.transpose(0, 2, 1, 3).reshape(rows * columns, -1)
        if self.limit is not None and self.limit < len(patches):
            patches = patches[np.arange(self.limit) * len(patches) // self.limit]
        return patches


def _file(name: str) -> Path:
    package, folder, what, distribution, file = PICTURES[name]
    return package_path(package, f"{folder}/{file}", what, distribution)

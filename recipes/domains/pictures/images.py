"""Pictures: files of them, arrays, or a column of a data set, with quantised values."""

import io
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int

from recipes.data.sequences import Ragged, Sequences, check_ints
from recipes.data.sources.files import (
    Table,
    check_split,
    chosen_labels,
    identity,
    matching,
    on_hub,
    suffix,
)
from recipes.domains.pictures.grey import check_levels, quantise, values_of

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".tif", ".tiff", ".webp", ".pgm", ".ppm")
ARRAYS = (".npy", ".npz", ".parquet")

FOLDER = "folder"
"""Value of ``labels`` for the name of the folder of each picture."""


@dataclass(frozen=True)
class Images:
    """Pictures of one size, in grey or in colour, each value quantised to a symbol whose name is
    the value.

    Args:
        files: picture files, a folder or a quoted pattern of them; or arrays (N, H, W) or (N, H, W,
            3) of 0..255 in .npy or .npz; or a .parquet file, or a data set of the hub, with a
            column of pictures.
        levels: number of values of grey, or of each colour: the symbols.
        colour: three symbols for each pixel, red, green and blue; else one, grey.
        size: height and width that every picture is resized to; by default all must have one size.
        column: array of an .npz, or column of a table; by default image, or the only one.
        labels: another array or column, "folder" for the name of each file's folder, or a file with
            one on each line.
        split: split of a data set of the hub, or a slice of one; files are all "train".

    Raises:
        ModuleNotFoundError: picture files need Pillow.
        FileNotFoundError, TypeError, ValueError: on loading: no such files; a file that is not a
            picture; pictures of several sizes; values outside of 0..255, or of more than 8 bits in
            a picture file; missing labels.
    """

    files: str
    levels: int = 256
    colour: bool = False
    size: list[int] | None = None
    column: str | None = None
    labels: str | None = None
    split: str = "train"

    def __post_init__(self) -> None:
        check_levels(self.levels)
        if self.size is not None and (len(self.size) != 2 or min(self.size) < 1):
            raise ValueError(f"size={self.size}: must be height and width")

    def load(self) -> Sequences:
        loaded, columns = self._pictures()
        if self.labels == FOLDER and columns(FOLDER) is None:
            raise ValueError(
                f"labels={FOLDER!r}: takes the folder of each picture file, and {self.files} holds "
                "many pictures; must "
                "be a column or another array of the file, or a file with one label on each line"
            )
        pictures: list[Int[np.ndarray, "H W *C"]] = []
        for name, picture in loaded:
            if pictures and picture.shape != pictures[0].shape:
                sizes = " and ".join(
                    f"{one.shape[0]} x {one.shape[1]}" for one in (picture, pictures[0])
                )
                raise ValueError(
                    f"{name}: is of another size than the first picture, {sizes}; size=[H, W] "
                    "resizes all"
                )
            pictures.append(quantise(picture, self.levels).astype(np.uint8))
        if not pictures:
            raise ValueError(f"files={self.files!r}: there is no picture")
        ids = np.stack(pictures)
        shape = pictures[0].shape
        values = values_of(self.levels)
        labels, classes = chosen_labels(self.labels, columns, len(ids))
        size = int(np.prod(shape))
        return Sequences(
            ids=Ragged(ids.reshape(-1), np.arange(len(ids) + 1) * size),
            symbols=tuple(map(str, values)),
            shape=shape,
            values=values,
            labels=labels,
            classes=classes,
            separator=" ",
        )

    def identity(self) -> dict[str, str]:
        if on_hub(self.files):
            return Table(self.files, self.split).identity()
        files = matching(self.files, (*PICTURES, *ARRAYS))
        folders = {f"folder of {number}": file.parent.name for number, file in enumerate(files)}
        return identity(files, self.labels) | (folders if self.labels == FOLDER else {})

    def _pictures(
        self,
    ) -> tuple[Iterator[tuple[str, np.ndarray]], Callable[[str], Sequence[Any] | None]]:
        """Return the pictures with their names, values in 0..255, and the further columns."""
        if on_hub(self.files):
            return self._of_rows(self.files, Table(self.files, self.split).read())
        check_split(self.split, self.files)
        files = matching(self.files, (*PICTURES, *ARRAYS))
        if suffix(files[0]) in PICTURES:
            if others := [file for file in files if suffix(file) in ARRAYS]:
                raise ValueError(
                    f"files={self.files!r}: pictures and arrays, {files[0]} and {others[0]}; "
                    "choose one"
                )
            names = [file.parent.name for file in files]
            return ((str(file), self._read_values(file, file)) for file in files), {
                FOLDER: names
            }.get
        if len(files) > 1:
            raise ValueError(f"files={self.files!r}: {len(files)} files of arrays, must be one")
        if suffix(files[0]) == ".parquet":
            import pyarrow.parquet as pq

            return self._of_rows(str(files[0]), pq.read_table(files[0]))
        return self._of_arrays(files[0])

    def _of_arrays(
        self, file: Path
    ) -> tuple[Iterator[tuple[str, np.ndarray]], Callable[[str], Sequence[Any] | None]]:
        content = np.load(file, allow_pickle=False)
        arrays = {"": content} if isinstance(content, np.ndarray) else dict(content)
        name = self._name(str(file), list(arrays))
        array = arrays[name]
        if array.dtype.kind == "f":
            raise TypeError(
                f"{file}: holds {array.dtype}, must hold whole numbers of 0..255: save "
                "x.round().astype('uint8'), or (255 * x).round().astype('uint8') of values in 0..1"
            )
        check_ints(array, str(file))
        if array.ndim not in (3, 4) or (array.ndim == 4 and array.shape[3] != 3):
            raise ValueError(f"{file}: has shape {array.shape}, must be (N, H, W) or (N, H, W, 3)")
        if not array.size:
            raise ValueError(f"{file}: has shape {array.shape}, must hold a picture")
        if int(array.min()) < 0 or int(array.max()) > 255:
            row = int(
                np.flatnonzero(((array < 0) | (array > 255)).reshape(len(array), -1).any(1))[0]
            )
            raise ValueError(
                f"{file}: row {row} holds values {array[row].min()} to {array[row].max()}, must "
                "lie in 0..255"
            )
        rows = ((f"{file}, row {row}", self._convert(one)) for row, one in enumerate(array))
        return rows, lambda key: arrays[key] if key and key in arrays else None

    def _of_rows(
        self, place: str, table: Any
    ) -> tuple[Iterator[tuple[str, np.ndarray]], Callable[[str], Sequence[Any] | None]]:
        name = self._name(place, table.column_names)
        if hasattr(table, "cast_column"):  # a data set, which would decode every picture
            from datasets import Image

            rows = table.cast_column(name, Image(decode=False))[name]
        else:
            rows = table.column(name).to_pylist()

        def picture(row: int, one: Any) -> np.ndarray:
            content = one if isinstance(one, bytes) else (one or {}).get("bytes")
            if content is None:
                raise ValueError(f"{place}: row {row} of column {name} holds no picture")
            return self._read_values(io.BytesIO(content), f"{place}, row {row}")

        def columns(key: str) -> Sequence[Any] | None:
            if key not in table.column_names:
                return None
            return table[key] if hasattr(table, "cast_column") else table.column(key).to_pylist()

        return ((f"{place}, row {row}", picture(row, one)) for row, one in enumerate(rows)), columns

    def _name(self, place: str, names: Sequence[str]) -> str:
        """Return the name of the array or column with the pictures."""
        if self.column is not None and self.column not in names:
            raise ValueError(f"column={self.column!r}: {place} has {', '.join(names)}")
        others = [name for name in names if name != self.labels]
        column = self.column or (
            "image" if "image" in names else others[0] if len(others) == 1 else None
        )
        if column is None and names != [""]:
            raise ValueError(f"column: {place} has {', '.join(names)}, choose one of them")
        return column or ""

    def _read_values(self, file: Any, name: Any) -> np.ndarray:
        """Return the values of a picture file."""
        pillow = _pillow()
        try:
            with pillow.open(file) as picture:
                if (mode := picture.mode).startswith(
                    ("I", "F")
                ):  # Pillow would clip them to 0..255
                    raise ValueError(
                        f"{name}: has values of more than 8 bits, of Pillow's mode {mode}; scale "
                        "them"
                    )
                return self._convert(picture.convert("RGB" if self.colour else "L"))
        except OSError as error:
            raise ValueError(f"{name}: cannot be read as a picture: {error}") from error

    def _convert(self, picture: Any) -> np.ndarray:
        """Return the values of a picture in grey or in colour, resized if a size is given."""
        array = np.asarray(picture)
        if self.size is None and self.colour == (array.ndim == 3):
            return array.astype(np.int64)
        image = _pillow().fromarray(array.astype(np.uint8)).convert("RGB" if self.colour else "L")
        if self.size is not None and image.size != (self.size[1], self.size[0]):
            image = image.resize((self.size[1], self.size[0]))
        return np.asarray(image).astype(np.int64)


def _pillow() -> Any:
    try:
        from PIL import Image
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("pictures need Pillow: pip install pillow") from error
    return Image

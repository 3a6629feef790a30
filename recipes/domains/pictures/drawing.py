"""Sequences shown as pictures: a grid of samples, and a film of their denoising trajectories.

grid(samples, (28, 28), values).save("samples.png")
film(states, (28, 28), values, Path("film.png"), process)    also .gif
"""

import colorsys
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from jaxtyping import Int, UInt8

from ddlib.processes import ForwardProcess

if TYPE_CHECKING:
    from PIL.Image import Image

MASK = (0x4B, 0x3F, 0x8F)
"""Colour of a state that contains no information on the token: violet, which no grey value is."""
HUES = (41, 164, 327, 202, 27, 56)
"""Hue in degrees of each level of clusters, as in page.js."""
TINT = 0.6
"""Saturation of the colour of a cluster."""
DARKEST, LIGHTEST = 0.2, 0.85
"""Lightness of clusters of black and white tokens: between them the tint can be seen."""
PAPER = (255, 255, 255)

SMALLEST = 160
"""Least height in pixels of an enlarged picture that is alone; in grids a quarter of it."""


class Picture(NamedTuple):
    """How a sequence is read as a picture."""

    shape: tuple[int, ...]
    """(H, W) grey, or (H, W, C) with C = 1 or 3 channels: the positions in row-major order."""
    values: tuple[int, ...]
    """Grey or channel value of each token, 0 to 255."""


def palette(
    values: Sequence[int], process: ForwardProcess | None = None
) -> UInt8[np.ndarray, "S 3"]:
    """Return a colour for each state: greys for tokens, a tinted grey for a cluster, violet for the
    mask.

    The grey of a cluster is the mean of the values of all tokens, weighted by their probability of
    reaching it. The tint of a cluster is that of its level on the HTML page.

    Args:
        values: value of each token, 0 to 255.
        process: the process of the states; by default the only other state is a mask.

    Raises:
        ValueError: no values, or one outside of 0..255; a process with another number of tokens.
    """
    grey = np.asarray(values, dtype=np.int64)
    if grey.ndim != 1 or not len(grey) or grey.min() < 0 or grey.max() > 255:
        raise ValueError(f"values={list(values)[:8]}: must be one or more numbers from 0 to 255")
    tokens = np.repeat(grey[:, None], 3, 1).astype(np.uint8)
    if process is None:
        return np.concatenate([tokens, [MASK]]).astype(np.uint8)
    if process.vocab_size != len(grey):
        raise ValueError(
            f"values has {len(grey)} entries, must have {process.vocab_size}: one for each token"
        )
    colours = [tokens]
    for level, size in enumerate(process.levels[1:], start=1):
        if process.hierarchy is None or size == 1:
            colours.append(np.tile(np.array(MASK, dtype=np.uint8), (size, 1)))
            continue
        reached = process.hierarchy.between(0, level).matrix().detach().cpu().numpy()  # (V, size)
        mean = (grey @ reached) / np.maximum(reached.sum(0), 1e-300)
        hue = HUES[(level - 1) % len(HUES)] / 360
        tinted = [
            colorsys.hls_to_rgb(hue, DARKEST + (LIGHTEST - DARKEST) * light / 255, TINT)
            for light in mean
        ]
        colours.append(np.round(np.array(tinted) * 255).astype(np.uint8))
    return np.concatenate(colours)


def pixels(
    ids: Int[np.ndarray, "N L"] | torch.Tensor,
    shape: Sequence[int],
    colours: UInt8[np.ndarray, "S 3"],
) -> UInt8[np.ndarray, "N H W 3"]:
    """Return the pixels of sequences of states.

    With three channels each position shows its channel of its state's colour.

    Args:
        ids: states, each sequence in row-major order.
        shape: (H, W), (H, W, 1) or (H, W, 3).
        colours: colour of each state, see ``palette``.

    Raises:
        ValueError: another shape, sequences of another length, a state without a colour.
    """
    ids = np.asarray(ids.detach().cpu() if isinstance(ids, torch.Tensor) else ids)
    height, width, channels = check_shape(shape)
    if ids.ndim != 2 or ids.shape[1] != height * width * channels:
        raise ValueError(
            f"ids have the shape {ids.shape}, must be (N, {height * width * channels}) for "
            f"{tuple(shape)}"
        )
    if not np.issubdtype(ids.dtype, np.integer):
        raise ValueError(f"ids are {ids.dtype}, must be integers")
    if ids.size and not 0 <= ids.min() <= ids.max() < len(colours):
        worst = ids.max() if ids.max() >= len(colours) else ids.min()
        raise ValueError(f"ids contain the state {worst}, must be in 0..{len(colours) - 1}")
    rgb = colours[ids].reshape(len(ids), height, width, channels, 3)
    return rgb[:, :, :, 0] if channels == 1 else rgb[..., range(3), range(3)]


def check_shape(shape: Sequence[int]) -> tuple[int, int, int]:
    """Return height, width and number of channels of a shape.

    Raises:
        ValueError: a shape that is not (H, W), (H, W, 1) or (H, W, 3).
    """
    full = (*shape, 1) if len(shape) == 2 else tuple(shape)
    if len(full) != 3 or min(full) < 1 or full[2] not in (1, 3):
        raise ValueError(
            f"shape={tuple(shape)}: must be (H, W), (H, W, 1) or (H, W, 3) to be shown as a picture"
        )
    return full


def grid(
    ids: Int[np.ndarray, "N L"] | torch.Tensor,
    shape: Sequence[int],
    values: Sequence[int],
    *,
    process: ForwardProcess | None = None,
    columns: int | None = None,
    scale: int | None = None,
) -> "Image":
    """Return one picture with all samples side by side, row by row.

    Args:
        ids: samples, or states of one time.
        shape: shape of a sample, see ``pixels``.
        values: value of each token.
        process: the process, for colours of its noisy states.
        columns: samples in a row; by default about as many as there are rows.
        scale: side of a pixel; by default samples become at least 40 pixels high, one alone 160.

    Raises:
        ValueError: no samples; anything that ``palette`` and ``pixels`` reject; fewer than one
            column; a scale below 1.
    """
    from PIL import Image

    return Image.fromarray(_sheet(pixels(ids, shape, palette(values, process)), columns, scale))


def film(
    states: Int[np.ndarray, "K N L"] | torch.Tensor | Sequence[torch.Tensor],
    shape: Sequence[int],
    values: Sequence[int],
    path: Path | str,
    *,
    process: ForwardProcess | None = None,
    columns: int | None = None,
    scale: int | None = None,
    seconds: float = 6.0,
    pause: float = 2.0,
) -> None:
    """Write a film of samples on their way from noise: an animated PNG, or a GIF for a path that
    ends in .gif.

    Args:
        states: states of the N samples at K times, noise first.
        shape: shape of a sample, see ``pixels``.
        values: value of each token.
        path: file; .png, .apng or .gif.
        process: the process, for colours of its noisy states.
        columns: as in ``grid``.
        scale: as in ``grid``.
        seconds: length of the film without the pause; a frame takes at least a fiftieth of a
            second.
        pause: seconds for which the last frame stays.

    Raises:
        ValueError: no frames; frames of different shapes; another kind of file; a length or a pause
            below 0; anything that ``grid`` rejects.
    """
    from PIL import Image

    path = Path(path)
    if path.suffix not in (".png", ".apng", ".gif"):
        raise ValueError(f"path={path}: must end in .png or .gif")
    if seconds < 0 or pause < 0:
        raise ValueError(f"seconds={seconds}, pause={pause}: must be 0 or more")
    frames = [
        np.asarray(one.detach().cpu() if isinstance(one, torch.Tensor) else one) for one in states
    ]
    if not frames or len({frame.shape for frame in frames}) > 1:
        raise ValueError(
            f"states: must be one or more arrays (N, L) of one shape, got {len(frames)} of them"
        )
    colours = palette(values, process)
    sheets = [
        Image.fromarray(_sheet(pixels(frame, shape, colours), columns, scale)) for frame in frames
    ]
    if path.suffix == ".gif":
        sheets = [_index_colours(sheet) for sheet in sheets]
    each = max(round(1000 * seconds / len(sheets)), 20)
    times = [each] * (len(sheets) - 1) + [max(each, round(1000 * pause))]
    sheets[0].save(
        path,
        format="GIF" if path.suffix == ".gif" else "PNG",
        save_all=True,
        append_images=sheets[1:],
        duration=times,
        loop=0,
    )


def _index_colours(sheet: "Image") -> "Image":
    """Return a picture with a table of its colours: exact for up to 256 of them, without dither for
    more.
    """
    from PIL import Image

    rgb = np.asarray(sheet).astype(np.int64)
    palette, index = np.unique(rgb @ (65536, 256, 1), return_inverse=True)
    if len(palette) > 256:
        return sheet.quantize(256, dither=Image.Dither.NONE)
    result = Image.fromarray(index.reshape(rgb.shape[:2]).astype(np.uint8), mode="P")
    result.putpalette(
        np.stack([palette >> 16, palette >> 8 & 255, palette & 255], 1).astype(np.uint8).tobytes()
    )
    return result


def _sheet(
    tiles: UInt8[np.ndarray, "N H W 3"], columns: int | None, scale: int | None
) -> UInt8[np.ndarray, "h w 3"]:
    """Return the pictures on one sheet, enlarged, with a margin between them."""
    count, height, width, _ = tiles.shape
    if not count:
        raise ValueError("there are no samples: must be at least one")
    columns = math.ceil(math.sqrt(count)) if columns is None else columns
    scale = (
        max(math.ceil((SMALLEST if count == 1 else SMALLEST // 4) / height), 1)
        if scale is None
        else scale
    )
    if columns < 1 or scale < 1:
        raise ValueError(f"columns={columns}, scale={scale}: must be at least 1")
    columns = min(columns, count)
    rows = math.ceil(count / columns)
    gap = max(scale, 2)
    sheet = np.empty(
        (rows * (height * scale + gap) + gap, columns * (width * scale + gap) + gap, 3),
        dtype=np.uint8,
    )
    sheet[:] = PAPER
    for number, one in enumerate(tiles):
        top = number // columns * (height * scale + gap) + gap
        left = number % columns * (width * scale + gap) + gap
        large = one.repeat(scale, 0).repeat(scale, 1)
        sheet[top : top + height * scale, left : left + width * scale] = large
    return sheet

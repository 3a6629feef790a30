"""Samples in the files of their kind: pictures, films of pictures, molecules, graphs, music,
FASTA, lines.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Int

from ddlib.contrib import Film
from ddlib.processes import ForwardProcess
from recipes.data.layout import Layout
from recipes.data.names import spelt
from recipes.domains.graphs.saving import GRAPH6, check_graph_file, write_graphs
from recipes.domains.graphs.sequences import is_graphs
from recipes.domains.molecules.drawing import draw
from recipes.domains.music.drawing import piano_rolls, write_midi
from recipes.domains.music.pitches import midi_of
from recipes.domains.pictures.drawing import film, grid
from recipes.visualization.lines import write_fasta, write_lines

FASTA = (".fasta", ".fa")
LINES = (".txt", ".smi")
MIDI = (".mid", ".midi")
PNG = (".png",)

FILMS = (".gif", ".apng")
"""Suffixes of films, which need the states of every step."""

SUFFIXES = (*PNG, *FILMS, *MIDI, *FASTA, *LINES, GRAPH6)
"""Suffixes of the files."""

MOLECULES = "molecules"
"""Kind of source whose sequences are SMILES."""


def check_samples(path: Path | str, symbols: Sequence[str], layout: Layout) -> None:
    """Raise ValueError for a file that these data cannot be written to, before anything is
    drawn.
    """
    path = Path(path)
    kind = f"data of the kind {layout.kind!r}"
    if layout.template:
        raise ValueError(f"path={path}: {kind} are texts: must end in .jsonl")
    if path.suffix not in SUFFIXES:
        raise ValueError(f"path={path}: must end in {', '.join(SUFFIXES)}")
    if is_graphs(layout):
        check_graph_file(path, layout)
        return
    if path.suffix == GRAPH6:
        raise ValueError(f"path={path}: {kind} are no graphs")
    if path.suffix in FILMS and not layout.is_picture:
        raise ValueError(
            f"path={path}: {kind} cannot be saved as a film, which requires a shape and values"
        )
    if path.suffix in MIDI and not is_music(symbols):
        raise ValueError(
            f"path={path}: the symbols are not pitches, so {kind} cannot be saved as music"
        )
    if path.suffix in FASTA and (
        layout.separator or any(len(name.strip()) != 1 or name == ">" for name in symbols)
    ):
        raise ValueError(
            f"path={path}: the samples are not strings of letters, so {kind} cannot be saved as "
            "FASTA"
        )
    if path.suffix in PNG and not (
        layout.is_picture or is_music(symbols) or layout.kind == MOLECULES
    ):
        raise ValueError(
            f"path={path}: {kind} cannot be saved as a picture, which requires a shape and values, "
            "the kind "
            f"{MOLECULES}, or pitches as symbols"
        )


def write_samples(
    path: Path | str,
    samples: Sequence[Int[np.ndarray, " L"]],
    symbols: Sequence[str],
    layout: Layout,
    *,
    steps: int = 4,
    process: ForwardProcess | None = None,
    films: Sequence[Film] = (),
) -> list[Path]:
    """Write samples into a file of the kind that its suffix names, and return the files.

    .png is a picture: a grid where sequences have a shape and values, drawings of molecules and
    graphs, or piano rolls. .gif and .apng are films of pictures. .mid is music, with a file
    name-0.mid, name-1.mid, ... for each of several samples. .g6 are graphs in graph6; .smi are
    molecules. .fasta or .fa and .txt or .smi are the symbols themselves.

    Args:
        path: file.
        samples: ids of each sample, without padding; in a picture of a shape also noisy states.
        symbols: names of the symbols.
        layout: layout of the data, as prepared data and models keep it.
        steps: steps of a quarter note of music.
        process: process of noisy states.
        films: denoising trajectory of each sample, for .gif and .apng.

    Raises:
        ValueError: no samples; as ``check_samples``; ids that are not symbols.
        ModuleNotFoundError: rdkit or music21 is not installed.
    """
    path = Path(path)
    suffix = path.suffix
    if not len(samples):
        raise ValueError("there are no samples: must be at least one")
    check_samples(path, symbols, layout)
    if is_graphs(layout):
        write_graphs(path, samples, layout)
        return [path]
    if suffix in FILMS:
        film(trajectory(films), layout.shape, layout.values, path, process=process)
        return [path]
    if suffix in PNG and layout.is_picture:
        grid(
            np.stack([np.asarray(one) for one in samples]),
            layout.shape,
            layout.values,
            process=process,
        ).save(path)
        return [path]
    if suffix in PNG and is_music(symbols):
        piano_rolls(samples, symbols, voices=layout.voices, steps=steps).savefig(path)
        return [path]
    if suffix in MIDI:
        files = [path.with_stem(f"{path.stem}-{number}") for number in range(len(samples))]
        files = files if len(samples) > 1 else [path]
        for file, one in zip(files, samples, strict=True):
            write_midi(file, one, symbols, voices=layout.voices, steps=steps)
        return files
    texts = [spelt(one, symbols, layout.separator) for one in samples]
    if suffix in FASTA:
        write_fasta(path, texts)
    elif suffix in LINES:
        write_lines(path, texts)
    else:
        draw(texts).save(path)
    return [path]


def picture_of(layout: Layout, symbols: Sequence[str]) -> str:
    """Return the suffix of the picture that samples of these data have without another package.

    "" for none.
    """
    return PNG[0] if layout.is_picture or is_graphs(layout) or is_music(symbols) else ""


def is_music(symbols: Sequence[str]) -> bool:
    """Return whether all symbols are pitches, holds or rests."""
    try:
        midi_of(symbols)
    except ValueError:
        return False
    return True


def trajectory(texts: Sequence[Film]) -> Int[np.ndarray, "K N L"]:
    """Return the states of recorded samples at all times, for ``film``.

    A sample that ended earlier keeps its last.

    Raises:
        ValueError: no samples, or samples of different lengths.
    """
    if not texts or len({len(text.start) for text in texts}) > 1:
        raise ValueError(f"texts: must be one or more samples of one length, got {len(texts)}")
    steps = max(len(text.frames) for text in texts)
    states = np.empty((steps + 1, len(texts), len(texts[0].start)), dtype=np.int64)
    for number, text in enumerate(texts):
        states[:, number] = text.start
        for step, frame in enumerate(text.frames, start=1):
            for event in frame.events:
                states[step:, number, event.position] = event.state
    return states

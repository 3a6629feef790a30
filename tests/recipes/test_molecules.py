"""Molecules: metrics as MOSES defines them, drawings, files."""

import io
import sys

import numpy as np
import pytest

from recipes.data import SymbolCorpus, prepare
from recipes.domains.molecules import metrics as metrics
from recipes.domains.molecules.drawing import draw
from recipes.evaluation.samples import metrics_of
from recipes.visualization.lines import write_fasta, write_lines

ASPIRIN = "CC(=O)Oc1ccccc1C(=O)O"
CAFFEINE = "Cn1c(=O)c2c(ncn2C)n(C)c1=O"
BENZENE = "c1ccccc1"


def test_rdkit_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit", None)
    for call in (
        lambda: metrics.validity(["C"]),
        lambda: draw(["C"]),
        lambda: metrics.internal_diversity(["C"]),
    ):
        with pytest.raises(
            ModuleNotFoundError, match="molecules need rdkit; run: pip install rdkit"
        ):
            call()


@pytest.fixture
def rdkit():
    pytest.importorskip("rdkit")


@pytest.mark.usefixtures("rdkit")
def test_shares_of_valid_different_and_new_molecules(capfd):
    smiles = ["CCO", "OCC", "C1CC(", "", "c1ccccc1", "C=C=C=C(", "N"]
    assert metrics.validity(smiles) == pytest.approx(4 / 7)
    assert metrics.canonical(smiles) == ["CCO", "CCO", None, None, BENZENE, None, "N"]
    assert metrics.uniqueness(smiles) == pytest.approx(3 / 4)
    assert metrics.uniqueness(smiles, first=2) == pytest.approx(1 / 2)
    assert metrics.novelty(smiles, ["CCO"]) == pytest.approx(2 / 3)
    assert (
        metrics.novelty(smiles, ["CCO", "N", BENZENE]) == 0.0 and metrics.novelty(smiles, []) == 1.0
    )
    assert (
        metrics.novelty(["C(F)(F)(F)F(F)F", "CC"], []) == 1.0
    )  # five bonds of a fluorine: not valid
    assert metrics.validity(["CCO"]) == 1.0 and metrics.validity(["("]) == 0.0
    assert "SMILES" not in capfd.readouterr().err  # rdkit reports nothing


@pytest.mark.usefixtures("rdkit")
def test_diversity_of_known_sets():
    assert metrics.internal_diversity([ASPIRIN] * 3) == pytest.approx(0)
    assert metrics.internal_diversity([ASPIRIN, "("]) == pytest.approx(0)
    # of two molecules without a common bit half of the pairs have similarity 1
    assert metrics.internal_diversity(["CC", "N"]) == pytest.approx(0.5)
    assert metrics.internal_diversity(["CC", "N"], power=2) == pytest.approx(1 - np.sqrt(0.5))
    found = [ASPIRIN, CAFFEINE, BENZENE, "CCO"]
    assert metrics.internal_diversity(found[::-1]) == pytest.approx(
        metrics.internal_diversity(found)
    )
    assert 0.5 < metrics.internal_diversity(found) < 0.75


@pytest.mark.usefixtures("rdkit")
def test_properties_of_known_molecules():
    found = metrics.properties([ASPIRIN, CAFFEINE, "("])
    assert found["weight"] == pytest.approx([180.159, 194.194], abs=1e-2)
    assert found["logp"] == pytest.approx([1.31, -1.03], abs=1e-2)
    assert found["qed"] == pytest.approx([0.55, 0.54], abs=1e-2)


@pytest.mark.usefixtures("rdkit")
def test_all_metrics_of_samples():
    data = [ASPIRIN, CAFFEINE, BENZENE, "CCO"]
    same = metrics.measure([*data[::-1], "("], data, data)
    assert same["validity"] == 0.8 and same["uniqueness"] == 1.0 and same["novelty"] == 0.0
    assert same["internal_diversity"] == pytest.approx(same["internal_diversity_of_data"])
    for name in metrics.PROPERTIES:
        assert same[f"{name}_distance"] == pytest.approx(0, abs=1e-12)
        assert same[f"{name}_mean"] == pytest.approx(same[f"{name}_mean_of_data"])
    other = metrics.measure(["CCO"], ["CCN"], data)
    assert other["weight_distance"] == pytest.approx(46.069 - 45.085, abs=1e-2)
    nothing = metrics.measure(["("], data, data)
    assert nothing["validity"] == 0 and nothing.keys() == same.keys()
    assert all(
        np.isnan(nothing[name]) for name in ("uniqueness", "novelty", "qed_mean", "logp_distance")
    )


@pytest.mark.usefixtures("rdkit")
@pytest.mark.parametrize(
    "call, fault",
    [
        (lambda: metrics.validity([]), r"smiles=\[\]: must be a list of one or more strings"),
        (lambda: metrics.validity("CCO"), "smiles='CCO': must be a list"),
        (lambda: metrics.canonical(["C", None]), "molecule 1 is None: must be a string"),
        (lambda: metrics.uniqueness(["(", ""]), "none of the 2 molecules is valid"),
        (
            lambda: metrics.uniqueness(["C"], first=2),
            "first=2: must be between 1 and the 1 valid molecules",
        ),
        (lambda: metrics.novelty(["("], []), "none of the 1 molecules is valid"),
        (lambda: metrics.internal_diversity(["C"], power=0), "power=0: must be at least 1"),
        (lambda: metrics.measure(["C"], ["("], []), "none of the 1 molecules is valid"),
        (lambda: draw([]), "smiles is empty: must have at least one molecule"),
        (lambda: draw(["C"], columns=0), "columns=0"),
        (lambda: draw(["C"], size=(0, 9)), r"size=\(0, 9\): must be at least 1"),
        (
            lambda: draw(["C"], captions=["a", "b"]),
            "captions has 2 entries, must have 1: one for each molecule",
        ),
    ],
)
def test_wrong_molecules_are_named(call, fault):
    with pytest.raises(ValueError, match=fault):
        call()


@pytest.mark.usefixtures("rdkit")
def test_molecules_are_drawn_and_invalid_ones_written():
    image = draw(
        [ASPIRIN, "C1CC(=O", CAFFEINE], columns=2, size=(200, 150), captions=["a", "b", "c"]
    )
    assert image.size == (400, 300)
    ink = np.asarray(image.convert("L")) < 200
    assert all(
        ink[top : top + 150, left : left + 200].sum() > 50
        for top, left in ((0, 0), (0, 200), (150, 0))
    )
    assert ink[150:, 200:].sum() == 0
    assert draw(["C"], columns=4, size=(90, 80)).size == (90, 80)
    image.save(io.BytesIO(), "png")


def test_fasta_and_lines(tmp_path):
    path = tmp_path / "samples.fasta"
    write_fasta(path, ["ACD" * 30, ""], ["long", "empty one"])
    assert path.read_text() == ">long\n" + "ACD" * 20 + "\n" + "ACD" * 10 + "\n>empty one\n"
    write_fasta(path, ["A", "C"])
    assert path.read_text() == ">sample_0\nA\n>sample_1\nC\n"
    write_lines(path, ["CCO", "", "N"])
    assert path.read_text() == "CCO\n\nN\n"
    for call, fault in (
        (lambda: write_fasta(path, ["A"], ["a", "b"]), "names has 2 entries, must have 1"),
        (lambda: write_fasta(path, ["A>"]), "sequence 0, 'A>': may contain neither '>' nor blanks"),
        (lambda: write_fasta(path, ["A C"]), "neither '>' nor blanks"),
        (lambda: write_fasta(path, ["A"], ["a\nb"]), r"name 0, 'a\\nb': must be one line"),
        (lambda: write_lines(path, ["C", "C\nN"]), r"sequence 1, 'C\\nN': must be one line"),
    ):
        with pytest.raises(ValueError, match=fault):
            call()


def test_novelty_does_not_depend_on_the_spelling_of_the_data(tmp_path):
    spelt = ["OCC", "N(C)C", "C(C)C", "FC", "O(C)C"]
    (tmp_path / "mol.txt").write_text("\n".join(spelt))
    source = {"kind": "lines", "files": str(tmp_path / "mol.txt"), "tokens": "smiles"}
    data = prepare(SymbolCorpus(source=source, held_out=1, ends=True), tmp_path / "data")
    found = metrics_of("molecules", data).measure([one[:-1] for one in data.train], data)
    assert found["validity"] == 1.0 and found["novelty"] == 0.0

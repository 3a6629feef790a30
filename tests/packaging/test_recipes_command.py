"""Command ``python -m ddlib recipes FOLDER``, which copies the recipes into a folder of the
user.
"""

import subprocess
import sys
from pathlib import Path

import pytest

import ddlib
from ddlib.__main__ import lay_recipes, main

ROOT = Path(__file__).parents[2]


def held(folder):
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_recipes_are_copied_unchanged_and_their_path_is_printed(tmp_path, capsys):
    assert main(["recipes", str(tmp_path / "mine")]) == 0
    here = {
        name: text for name, text in held(ROOT / "recipes").items() if "__pycache__" not in name
    }
    assert (
        held(tmp_path / "mine" / "recipes") == here
        and "train.py" in here
        and "visualization/page.html" in here
    )
    output = capsys.readouterr().out
    assert str(tmp_path / "mine" / "recipes") in output and 'pip install "ddlib[recipes]"' in output


@pytest.mark.parametrize("there", ["folder", "file"])
def test_existing_files_are_not_overwritten(there, tmp_path, capsys):
    taken = tmp_path / "recipes"
    taken.mkdir() if there == "folder" else taken.write_text("mine")
    with pytest.raises(SystemExit) as end:
        main(["recipes", str(tmp_path)])
    assert end.value.code == 2
    assert f"folder {tmp_path} holds recipes already" in capsys.readouterr().err
    assert held(tmp_path) == ({} if there == "folder" else {"recipes": b"mine"})


def test_a_place_that_cannot_be_one_is_named(tmp_path, capsys):
    (tmp_path / "notes").write_text("mine")
    with pytest.raises(SystemExit):
        main(["recipes", str(tmp_path / "notes")])
    assert "notes" in capsys.readouterr().err
    assert held(tmp_path) == {"notes": b"mine"}


def test_a_wheel_has_them_inside_and_comes_first(tmp_path, monkeypatch):
    """Copy from ``ddlib/_data``, the place in a wheel, not from a package named recipes in
    site-packages.
    """
    inside = tmp_path / "ddlib" / "_data" / "recipes"
    beside = tmp_path / "recipes"
    for folder, text in ((inside, "ours"), (beside, "theirs")):
        folder.mkdir(parents=True)
        (folder / "train.py").write_text(text)
    monkeypatch.setattr(ddlib, "__file__", str(tmp_path / "ddlib" / "__init__.py"))
    assert (lay_recipes(tmp_path / "mine") / "train.py").read_text() == "ours"


def test_the_error_names_an_installation_without_recipes(tmp_path, monkeypatch):
    monkeypatch.setattr(ddlib, "__file__", str(tmp_path / "ddlib" / "__init__.py"))
    with pytest.raises(FileNotFoundError, match="install ddlib from a wheel or use a clone"):
        lay_recipes(tmp_path / "mine")
    assert not (tmp_path / "mine").exists()


def test_a_copy_runs_from_its_folder(tmp_path):
    lay_recipes(tmp_path)
    with (tmp_path / "recipes" / "train.py").open("a") as file:
        file.write('\nprint("changed here")\n')
    done = subprocess.run(
        [sys.executable, "-c", "import recipes.train"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.endswith("changed here\n")


def test_a_recipe_is_a_command(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ddlib"])
    with pytest.raises(SystemExit) as end:
        main(["plot", "--help"])
    assert end.value.code == 0 and "python -m recipes.plot" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "recipes, each with its --help: adapt, audit, chorales" in capsys.readouterr().out


def test_a_recipe_whose_packages_are_missing_names_the_extra(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "recipes.plot", None)
    assert main(["plot"]) == 2
    assert "pip install 'ddlib[recipes,eval]'" in capsys.readouterr().err


def test_a_wheel_runs_its_own_recipes(tmp_path, monkeypatch, capsys):
    inside = tmp_path / "ddlib" / "_data" / "recipes"
    beside = tmp_path / "recipes"
    for folder, text in ((inside, "ours"), (beside, "theirs")):
        folder.mkdir(parents=True)
        (folder / "__init__.py").touch()
        (folder / "train.py").write_text(f"import sys\ndef main(): print('{text}', *sys.argv[1:])")
    monkeypatch.setattr(ddlib, "__file__", str(tmp_path / "ddlib" / "__init__.py"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "argv", ["ddlib"])
    for name in [name for name in sys.modules if name.partition(".")[0] == "recipes"]:
        monkeypatch.delitem(sys.modules, name)
    assert main(["train", "mine.yaml", "--steps", "2"]) == 0
    assert capsys.readouterr().out == "ours mine.yaml --steps 2\n"
    for name in ("recipes", "recipes.train"):
        monkeypatch.delitem(sys.modules, name)

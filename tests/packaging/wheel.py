"""What pip installs, tried as its users meet it: ``make wheel``, ``make lowest``.

    python tests/packaging/wheel.py [--lowest] [--pythons 3.11 3.12 3.13]

Builds sdist and wheel, and holds the wheel that the sdist builds to the one of the tree. Then, on each Python, in an
empty environment and outside of the checkout: import and its time, ``python -m ddlib``, tutorial 1 as it is written,
the recipes laid down. On the first Python one of them runs. ``--lowest`` installs the lowest versions that
pyproject.toml allows, otherwise they are those of constraints/cpu.txt. Needs uv. A Python that is not here is left out,
and that is said.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
OURS = {"ddlib", "ddlib_models"}
HEAVY = "scipy matplotlib transformers sklearn pandas datasets"
SECONDS, SHARE = 2.5, 2.0
"""``import ddlib`` takes at most so long; on a slower or busier machine so many times as long as ``import torch``. Both
of the processor's time, which what else the machine does lengthens less."""
ROOM = 10
"""GB. Only for Python 3.11 a machine like CI's has a torch without CUDA; one with it has several."""
HIDDEN = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
"""No user has these: where other code is, and that what pip compiles once is compiled at every start."""


def call(*words: str | Path, folder: Path, **environment: str) -> str:
    """What a command prints; where it fails all of that is shown.

    Raises:
        RuntimeError: it fails.
    """
    env = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    done = subprocess.run(
        [str(word) for word in words], cwd=folder, env=env | environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(f"{' '.join(map(str, words))}: status {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def uv(*words: str | Path, folder: Path = ROOT) -> str:
    """uv, which reads other settings than pip: wheels that pip is told to look for are for it too."""
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", ":env:.find-links"], capture_output=True, text=True, check=False
    )
    more = {"UV_FIND_LINKS": told.stdout.strip()} if told.stdout.strip() else {}
    return call(sys.executable, "-m", "uv", *words, folder=folder, UV_PYTHON_DOWNLOADS="never", **more)


def contents(wheel: Path) -> dict[str, bytes]:
    """Every file of a wheel, without the list of the others."""
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist() if not name.endswith("/RECORD")}


def build(out: Path) -> Path:
    """The wheel of the sdist, which is the tree's too and has ddlib's names only."""
    uv("build", "--quiet", "--out-dir", out)
    uv("build", "--quiet", "--wheel", "--out-dir", out / "tree")
    (wheel,), (straight,) = out.glob("*.whl"), (out / "tree").glob("*.whl")
    here, there = contents(wheel), contents(straight)
    if differ := sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name)):
        raise RuntimeError(f"the sdist builds another wheel than the tree, in {differ}")
    if strange := {name.partition("/")[0] for name in here} - OURS - {f"{wheel.name.partition('-py3')[0]}.dist-info"}:
        raise RuntimeError(f"the wheel puts {sorted(strange)} into site-packages")
    for name in subprocess.run(
        ["git", "ls-files", "recipes", *OURS], cwd=ROOT, capture_output=True, text=True, check=False
    ).stdout.split():
        place = f"ddlib/_data/{name}" if name.startswith("recipes/") else name
        if place not in here and (ROOT / name).exists():
            raise RuntimeError(f"the wheel lacks {name}")
    print(f"{wheel.name}: {len(here)} files, the same from the sdist and from the tree")
    return wheel


def interpreter(version: str) -> Path | None:
    """A Python of this version, on the path or of pyenv; None where there is none that starts."""
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [Path(path) for path in [shutil.which(f"python{version}")] if path]
    for path in [*found, *sorted(pyenv.glob(f"{version}.*/bin/python"))]:
        asked = "import sys; print('%d.%d' % sys.version_info[:2])"
        told = subprocess.run([path, "-c", asked], capture_output=True, text=True, check=False)
        if told.returncode == 0 and told.stdout.strip() == version:
            return path
    return None


def environment(wheel: Path, python: Path, folder: Path, lowest: bool) -> Path:
    """An empty environment in which nothing is installed but the wheel and what it needs; its Python."""
    uv("venv", "--quiet", "--python", python, folder / "env")
    install(folder / "env" / "bin" / "python", wheel, "", lowest)
    return folder / "env" / "bin" / "python"


def install(python: Path, wheel: Path, extras: str, lowest: bool) -> None:
    rule = ("--resolution", "lowest-direct") if lowest else ("--constraint", constraints(wheel.parent))
    uv("pip", "install", "--quiet", "--python", python, *rule, f"ddlib{extras} @ {wheel.as_uri()}")


def constraints(folder: Path) -> Path:
    """The tested versions but triton's, of which a torch with CUDA demands its own."""
    lines = (ROOT / "constraints" / "cpu.txt").read_text(encoding="utf-8").splitlines()
    path = folder / "constraints.txt"
    path.write_text("\n".join(line for line in lines if not line.startswith("triton==")), encoding="utf-8")
    return path


def imports(python: Path, folder: Path) -> None:
    """``import ddlib`` is the wheel's, loads nothing heavy and is quick, the best of three."""
    ask = "import os, {}; print(sum(os.times()[:2]))"
    best = {
        name: min(float(call(python, "-c", ask.format(name), folder=folder)) for _ in range(3))
        for name in ("torch", "ddlib")
    }
    where = f"import ddlib, ddlib_models, sys; print(ddlib.__file__, *set('{HEAVY}'.split()) & set(sys.modules))"
    place, *heavy = call(python, "-c", where, folder=folder).split()
    if not Path(place).is_relative_to(folder):
        raise RuntimeError(f"imported {place}, not the wheel")
    if heavy:
        raise RuntimeError(f"import ddlib loads {heavy}")
    if best["ddlib"] > max(SECONDS, SHARE * best["torch"]):
        raise RuntimeError(f"import ddlib takes {best['ddlib']:.2f} s, torch alone {best['torch']:.2f} s")
    print(f"    import ddlib in {best['ddlib']:.2f} s, of which torch {best['torch']:.2f} s")


def command(python: Path, folder: Path) -> None:
    """``python -m ddlib`` lists everything that is registered, and none of it is broken."""
    table = call(python, "-m", "ddlib", folder=folder)
    if "broken" in table or "hierarchical" not in table:
        raise RuntimeError(f"python -m ddlib says:\n{table}")
    call(python, "-m", "ddlib", "show", "hdlm:12x4", folder=folder)
    print(f"    python -m ddlib: {len(table.splitlines())} lines")


def tutorial(python: Path, wheel: Path, folder: Path, lowest: bool) -> None:
    """Tutorial 1 as it is written, far from the checkout."""
    install(python, wheel, "[plot]", lowest)
    uv("pip", "install", "--quiet", "--python", python, "--constraint", constraints(wheel.parent), "sybil")
    (folder / "docs" / "tutorials").mkdir(parents=True)
    for name in ("pages.py", "tutorials/1_first_process.md"):
        shutil.copy(ROOT / "docs" / name, folder / "docs" / name)
    said = call(python, "docs/pages.py", "docs/tutorials/1_first_process.md", folder=folder, OMP_NUM_THREADS="1")
    print(f"    {said.strip()}")


def recipes(python: Path, folder: Path) -> None:
    """The recipes are laid down once, and are no package of the environment."""
    call(python, "-m", "ddlib", "recipes", "mine", folder=folder)
    try:
        call(python, "-m", "ddlib", "recipes", "mine", folder=folder)
    except RuntimeError as error:
        if "holds recipes already" not in str(error):
            raise
    else:
        raise RuntimeError("python -m ddlib recipes overwrites")
    there = "import importlib.util; print(importlib.util.find_spec('recipes'))"
    if call(python, "-c", there, folder=folder).strip() != "None":
        raise RuntimeError("recipes is a package of the environment")
    print("    python -m ddlib recipes mine")


def smoke(python: Path, wheel: Path, folder: Path, lowest: bool) -> None:
    """A recipe goes the whole way from where it was laid."""
    install(python, wheel, "[recipes]", lowest)
    call(python, "-m", "recipes.owt", "mdlm", "--smoke", "--steps", "2", folder=folder / "mine", OMP_NUM_THREADS="1")
    print("    python -m recipes.owt mdlm --smoke --steps 2")


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lowest", action="store_true", help="with the lowest versions that pyproject.toml allows")
    parser.add_argument("--pythons", nargs="+", default=PYTHONS, metavar="3.11")
    options = parser.parse_args(arguments)
    tried = 0
    with tempfile.TemporaryDirectory() as out:
        wheel = build(Path(out) / "dist")
        for version in options.pythons:
            found, begun = interpreter(version), time.perf_counter()
            free = shutil.disk_usage(out).free >> 30
            if found is None or free < ROOM:
                why = "there is none on this machine" if found is None else f"{free} GB free, {ROOM} wanted"
                print(f"Python {version}: SKIPPED, {why}")
                continue
            print(f"Python {version}, {'lowest' if options.lowest else 'constrained'} versions:", flush=True)
            folder = Path(out) / version
            folder.mkdir()
            python = environment(wheel, found, folder, options.lowest)
            imports(python, folder)
            command(python, folder)
            tutorial(python, wheel, folder, options.lowest)
            recipes(python, folder)
            if not tried:
                smoke(python, wheel, folder, options.lowest)
            tried += 1
            print(f"    {time.perf_counter() - begun:.0f} s", flush=True)
            shutil.rmtree(folder)
    print(f"{tried} passed, 0 failed, {len(options.pythons) - tried} skipped")
    return 0 if tried else 1


if __name__ == "__main__":
    raise SystemExit(main())

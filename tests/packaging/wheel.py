"""Installation by pip, tested as users meet it: ``make wheel``, ``make lowest``.

    python tests/packaging/wheel.py [--lowest] [--pythons 3.11 3.12 3.13]

Builds sdist and wheel, and holds the wheel that the sdist builds to the one of the tree. Then, on each Python, in an
empty environment and outside of the checkout: import, ``python -m ddlib``, tutorial 1 as it is written, the recipes
laid down; in the end, when nothing else is at work, the time of the import. On the last Python a recipe runs: the tests
of the checkout run on the first.
``--lowest`` installs the lowest versions that pyproject.toml allows, otherwise they are those of constraints/cpu.txt.
Needs uv. A missing Python is left out, and the output names it. What passed lies in dist/.
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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHONS = ("3.11", "3.12", "3.13")
OURS = {"ddlib", "ddlib_models"}
HEAVY = "scipy matplotlib transformers sklearn pandas datasets sympy"
SECONDS, SHARE = 2.5, 2.0
"""``import ddlib`` takes at most so long; on a slower or busier machine so many times as long as ``import torch``. Both
of the processor's time, which what else the machine does lengthens less."""
ROOM = 10
"""GB. Only for Python 3.11 a machine like CI's has a torch without CUDA; one with it has several."""
HIDDEN = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
"""No user has these: where other code is, and that what pip compiles once is compiled at every start."""


def call(*words: str | Path, folder: Path, **environment: str) -> str:
    """Output of a command; on failure all of it is shown.

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
    """Settings of uv, which does not read those of pip: it takes the wheels of pip's settings too."""
    completed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", ":env:.find-links"], capture_output=True, text=True, check=False
    )
    more = {"UV_FIND_LINKS": completed.stdout.strip()} if completed.stdout.strip() else {}
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


def interpreter(version: str, out: Path) -> Path | None:
    """A Python of this version, on the path or of pyenv; None with a message if none starts or the disk is full."""
    if (free := shutil.disk_usage(out).free >> 30) < ROOM:
        print(f"Python {version}: SKIPPED, {free} GB are free, must be {ROOM}")
        return None
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [Path(path) for path in [shutil.which(f"python{version}")] if path]
    for path in [*found, *sorted(pyenv.glob(f"{version}.*/bin/python"))]:
        version_code = "import sys; print('%d.%d' % sys.version_info[:2])"
        completed = subprocess.run([path, "-c", version_code], capture_output=True, text=True, check=False)
        if completed.returncode == 0 and completed.stdout.strip() == version:
            return path
    print(f"Python {version}: SKIPPED, there is none on this machine")
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


def imports(python: Path, folder: Path) -> str:
    """``import ddlib`` is the wheel's and loads nothing heavy."""
    where = f"import ddlib, ddlib_models, sys; print(ddlib.__file__, *set('{HEAVY}'.split()) & set(sys.modules))"
    place, *heavy = call(python, "-c", where, folder=folder).split()
    if not Path(place).is_relative_to(folder):
        raise RuntimeError(f"imported {place}, not the wheel")
    if heavy:
        raise RuntimeError(f"import ddlib loads {heavy}")
    return "import ddlib"


def quick(python: Path, folder: Path) -> str:
    """``import ddlib`` takes little time, the best of three, where nothing else of ours is at work."""
    script = "import os, {}; print(sum(os.times()[:2]))"
    best = {
        name: min(float(call(python, "-c", script.format(name), folder=folder)) for _ in range(3))
        for name in ("torch", "ddlib")
    }
    if best["ddlib"] > max(SECONDS, SHARE * best["torch"]):
        raise RuntimeError(f"import ddlib takes {best['ddlib']:.2f} s, torch alone {best['torch']:.2f} s")
    return f"import ddlib in {best['ddlib']:.2f} s, of which torch {best['torch']:.2f} s"


def command(python: Path, folder: Path) -> str:
    """``python -m ddlib`` lists everything that is registered, and none of it is broken."""
    table = call(python, "-m", "ddlib", folder=folder)
    if "broken" in table or "hierarchical" not in table:
        raise RuntimeError(f"python -m ddlib prints:\n{table}")
    # sympy writes it for torch, which it has not always done
    call(python, "-c", "import ddlib as dd; dd.schedules.Symbolic('(1 - t)**2 * exp(-t)')", folder=folder)
    return f"python -m ddlib: {len(table.splitlines())} lines"


def tutorial(python: Path, wheel: Path, folder: Path, lowest: bool) -> str:
    """Tutorial 1 as it is written, far from the checkout."""
    install(python, wheel, "[plot]", lowest)
    uv("pip", "install", "--quiet", "--python", python, "--constraint", constraints(wheel.parent), "sybil")
    (folder / "docs" / "tutorials").mkdir(parents=True)
    for name in ("pages.py", "tutorials/1_first_process.md"):
        shutil.copy(ROOT / "docs" / name, folder / "docs" / name)
    return call(
        python, "docs/pages.py", "docs/tutorials/1_first_process.md", folder=folder, OMP_NUM_THREADS="1"
    ).strip()


def recipes(python: Path, folder: Path) -> str:
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
    return "python -m ddlib recipes mine"


def smoke(python: Path, wheel: Path, folder: Path, lowest: bool) -> str:
    """A recipe goes the whole way from where it was laid."""
    install(python, wheel, "[recipes]", lowest)
    # both read the blocks of the network, which isinstance does not find from Python 3.12 on
    flags = ("--smoke", "--steps", "2", "--optimizer.muon", "--hardware.recompute")
    call(python, "-m", "recipes.owt", "mdlm", *flags, folder=folder / "mine", OMP_NUM_THREADS="1")
    console = python.parent / "ddlib"
    run = folder / "mine" / "runs" / "smoke" / "owt" / "mdlm"
    call(console, "generate", run, "--samples", "1", "--steps", "2", folder=folder, OMP_NUM_THREADS="1")
    return f"python -m recipes.owt mdlm {' '.join(flags)}, ddlib generate"


def tried(wheel: Path, version: str, python: Path, folder: Path, lowest: bool, whole: bool) -> str:
    """Everything on one Python; what was found."""
    begun, folder = time.perf_counter(), folder / version
    folder.mkdir()
    python = environment(wheel, python, folder, lowest)
    lines = [imports(python, folder), command(python, folder), tutorial(python, wheel, folder, lowest)]
    lines.append(recipes(python, folder))
    if whole:
        lines.append(smoke(python, wheel, folder, lowest))
    title = f"Python {version}, {'lowest' if lowest else 'constrained'} versions, {time.perf_counter() - begun:.0f} s"
    return "\n    ".join([title, *lines])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lowest", action="store_true", help="with the lowest versions that pyproject.toml allows")
    parser.add_argument("--pythons", nargs="+", default=PYTHONS, metavar="3.11")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as out, ThreadPoolExecutor(2) as pool:
        wheel = build(Path(out) / "dist")
        found = {version: python for version in options.pythons if (python := interpreter(version, Path(out)))}
        jobs = [
            pool.submit(tried, wheel, version, python, Path(out), options.lowest, version == list(found)[-1])
            for version, python in found.items()
        ]
        for job in jobs:
            print(job.result(), flush=True)
        for version in found:
            folder = Path(out) / version
            print(f"Python {version}: {quick(folder / 'env' / 'bin' / 'python', folder)}", flush=True)
        for made in wheel.parent.glob("ddlib-*"):
            (ROOT / "dist").mkdir(exist_ok=True)
            shutil.copy(made, ROOT / "dist")
    print(f"{len(found)} passed, 0 failed, {len(options.pythons) - len(found)} skipped")
    return 0 if found else 1


if __name__ == "__main__":
    raise SystemExit(main())

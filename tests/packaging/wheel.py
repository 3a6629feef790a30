"""Build the sdist and the wheel and test their installation: ``make wheel``, ``make lowest``.

    python tests/packaging/wheel.py [--lowest] [--pythons 3.11 3.12 3.13]

The wheel that is built from the sdist must equal the wheel that is built from the tree. For each
Python, the wheel is installed into an empty environment outside the checkout. There the command
imports ddlib, runs ``python -m ddlib`` and the examples of tutorial 1, and copies the recipes. It
measures the time of the import at the end, when no other job runs. It runs a recipe on the last
Python only, since the tests of the checkout run recipes on the first. ``--lowest`` installs the
lowest versions that pyproject.toml allows; the default is those of constraints/cpu.txt. Requires
uv. A missing Python is skipped with a message. The files are copied into dist/ if all checks pass.
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
"""Limits of ``import ddlib`` in CPU time: so many seconds or, on a slow or busy machine, so many
times the time of ``import torch``. CPU time depends less than wall time on other processes."""
ROOM = 10
"""Required free disk space in GB: CI has torch without CUDA for Python 3.11 only, and torch with
CUDA takes several.
"""
HIDDEN = ("PYTHONPATH", "VIRTUAL_ENV", "PYTHONDONTWRITEBYTECODE")
"""Variables to remove: they add other packages to the path, or make Python compile all files at
every start.
"""


def call(*words: str | Path, folder: Path, **environment: str) -> str:
    """Run a command and return its output.

    Raises:
        RuntimeError: the command fails; the message has its whole output.
    """
    env = {name: value for name, value in os.environ.items() if name not in HIDDEN}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=folder,
        env=env | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(
            f"{' '.join(map(str, words))}: status {done.returncode}\n{done.stdout}{done.stderr}"
        )
    return done.stdout


def uv(*words: str | Path, folder: Path = ROOT) -> str:
    """Run uv with the ``find-links`` of pip's environment variables, which uv does not read."""
    completed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", ":env:.find-links"],
        capture_output=True,
        text=True,
        check=False,
    )
    more = {"UV_FIND_LINKS": completed.stdout.strip()} if completed.stdout.strip() else {}
    return call(
        sys.executable, "-m", "uv", *words, folder=folder, UV_PYTHON_DOWNLOADS="never", **more
    )


def contents(wheel: Path) -> dict[str, bytes]:
    """Contents of the files of a wheel by name, without RECORD, the list of files."""
    with zipfile.ZipFile(wheel) as file:
        return {name: file.read(name) for name in file.namelist() if not name.endswith("/RECORD")}


def build(out: Path) -> Path:
    """Build the wheel from the sdist and check its contents.

    Raises:
        RuntimeError: it differs from the wheel of the tree, lacks a file, or has a package that is
            not of ddlib.
    """
    uv("build", "--quiet", "--out-dir", out)
    uv("build", "--quiet", "--wheel", "--out-dir", out / "tree")
    (wheel,), (straight,) = out.glob("*.whl"), (out / "tree").glob("*.whl")
    here = contents(wheel)
    there = contents(straight)
    if differ := sorted(
        name for name in here.keys() | there.keys() if here.get(name) != there.get(name)
    ):
        raise RuntimeError(f"the wheels built from the sdist and from the tree differ in {differ}")
    if (
        strange := {name.partition("/")[0] for name in here}
        - OURS
        - {f"{wheel.name.partition('-py3')[0]}.dist-info"}
    ):
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
    """Find a Python of this version on the path or in pyenv.

    Print a message and return None if there is none.

    Also None if the disk has less than ``ROOM`` GB free.
    """
    if (free := shutil.disk_usage(out).free >> 30) < ROOM:
        print(
            f"Python {version}: SKIPPED, {free} GB of disk space are free, {ROOM} GB are required"
        )
        return None
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions"
    found = [Path(path) for path in [shutil.which(f"python{version}")] if path]
    for path in [*found, *sorted(pyenv.glob(f"{version}.*/bin/python"))]:
        version_code = "import sys; print('%d.%d' % sys.version_info[:2])"
        completed = subprocess.run(
            [path, "-c", version_code], capture_output=True, text=True, check=False
        )
        if completed.returncode == 0 and completed.stdout.strip() == version:
            return path
    print(f"Python {version}: SKIPPED, not found on this machine")
    return None


def environment(wheel: Path, python: Path, folder: Path, lowest: bool) -> Path:
    """Make an environment with only the wheel and its dependencies, and return its interpreter."""
    uv("venv", "--quiet", "--python", python, folder / "env")
    install(folder / "env" / "bin" / "python", wheel, "", lowest)
    return folder / "env" / "bin" / "python"


def install(python: Path, wheel: Path, extras: str, lowest: bool) -> None:
    rule = (
        ("--resolution", "lowest-direct") if lowest else ("--constraint", constraints(wheel.parent))
    )
    uv("pip", "install", "--quiet", "--python", python, *rule, f"ddlib{extras} @ {wheel.as_uri()}")


def constraints(folder: Path) -> Path:
    """Write constraints/cpu.txt without triton: torch with CUDA requires another version of it."""
    lines = (ROOT / "constraints" / "cpu.txt").read_text(encoding="utf-8").splitlines()
    path = folder / "constraints.txt"
    path.write_text(
        "\n".join(line for line in lines if not line.startswith("triton==")), encoding="utf-8"
    )
    return path


def imports(python: Path, folder: Path) -> str:
    """Check that ``import ddlib`` imports the wheel and loads none of the packages in ``HEAVY``."""
    where = (
        f"import ddlib, ddlib_models, sys; print(ddlib.__file__, *set('{HEAVY}'.split()) & "
        "set(sys.modules))"
    )
    place, *heavy = call(python, "-c", where, folder=folder).split()
    if not Path(place).is_relative_to(folder):
        raise RuntimeError(f"imported {place}, not the wheel")
    if heavy:
        raise RuntimeError(f"import ddlib loads {heavy}")
    return "import ddlib"


def quick(python: Path, folder: Path) -> str:
    """Check the CPU time of ``import ddlib``, the best of three.

    No other job of this command may run.
    """
    script = "import os, {}; print(sum(os.times()[:2]))"
    best = {
        name: min(float(call(python, "-c", script.format(name), folder=folder)) for _ in range(3))
        for name in ("torch", "ddlib")
    }
    if best["ddlib"] > max(SECONDS, SHARE * best["torch"]):
        raise RuntimeError(
            f"import ddlib takes {best['ddlib']:.2f} s, torch alone {best['torch']:.2f} s"
        )
    return f"import ddlib in {best['ddlib']:.2f} s, of which torch {best['torch']:.2f} s"


def command(python: Path, folder: Path) -> str:
    """Check that ``python -m ddlib`` lists the registered classes and can import all of them."""
    table = call(python, "-m", "ddlib", folder=folder)
    if "broken" in table or "hierarchical" not in table:
        raise RuntimeError(f"python -m ddlib prints:\n{table}")
    # sympy before 1.14 cannot print this expression for torch
    call(
        python,
        "-c",
        "import ddlib as dd; dd.schedules.Symbolic('(1 - t)**2 * exp(-t)')",
        folder=folder,
    )
    return f"python -m ddlib: {len(table.splitlines())} lines"


def tutorial(python: Path, wheel: Path, folder: Path, lowest: bool) -> str:
    """Run the examples of tutorial 1 outside the checkout."""
    install(python, wheel, "[plot]", lowest)
    uv(
        "pip",
        "install",
        "--quiet",
        "--python",
        python,
        "--constraint",
        constraints(wheel.parent),
        "sybil",
    )
    (folder / "docs" / "tutorials").mkdir(parents=True)
    for name in ("pages.py", "tutorials/1_first_process.md"):
        shutil.copy(ROOT / "docs" / name, folder / "docs" / name)
    return call(
        python,
        "docs/pages.py",
        "docs/tutorials/1_first_process.md",
        folder=folder,
        OMP_NUM_THREADS="1",
    ).strip()


def recipes(python: Path, folder: Path) -> str:
    """Check that the recipes are copied, never overwritten, and not importable from the
    environment.
    """
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
    """Train with a copied recipe and generate from the run."""
    install(python, wheel, "[recipes]", lowest)
    # the last two flags look for blocks of the network, which isinstance does not find from Python
    # 3.12 on
    flags = ("--smoke", "--steps", "2", "--optimizer.muon", "--hardware.recompute")
    call(python, "-m", "recipes.owt", "mdlm", *flags, folder=folder / "mine", OMP_NUM_THREADS="1")
    console = python.parent / "ddlib"
    run = folder / "mine" / "runs" / "smoke" / "owt" / "mdlm"
    call(
        console,
        "generate",
        run,
        "--samples",
        "1",
        "--steps",
        "2",
        folder=folder,
        OMP_NUM_THREADS="1",
    )
    return f"python -m recipes.owt mdlm {' '.join(flags)}, ddlib generate"


def tried(wheel: Path, version: str, python: Path, folder: Path, lowest: bool, whole: bool) -> str:
    """Run all checks on one Python and return a report."""
    begun = time.perf_counter()
    folder = folder / version
    folder.mkdir()
    python = environment(wheel, python, folder, lowest)
    lines = [
        imports(python, folder),
        command(python, folder),
        tutorial(python, wheel, folder, lowest),
    ]
    lines.append(recipes(python, folder))
    if whole:
        lines.append(smoke(python, wheel, folder, lowest))
    title = (
        f"Python {version}, {'lowest' if lowest else 'constrained'} versions, "
        f"{time.perf_counter() - begun:.0f} s"
    )
    return "\n    ".join([title, *lines])


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--lowest", action="store_true", help="with the lowest versions that pyproject.toml allows"
    )
    parser.add_argument("--pythons", nargs="+", default=PYTHONS, metavar="3.11")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as out, ThreadPoolExecutor(3) as pool:
        wheel = build(Path(out) / "dist")
        found = {
            version: python
            for version in options.pythons
            if (python := interpreter(version, Path(out)))
        }
        jobs = [
            pool.submit(
                tried, wheel, version, python, Path(out), options.lowest, version == list(found)[-1]
            )
            for version, python in found.items()
        ]
        for job in jobs:
            print(job.result(), flush=True)
        for version in found:
            folder = Path(out) / version
            print(
                f"Python {version}: {quick(folder / 'env' / 'bin' / 'python', folder)}", flush=True
            )
        for made in wheel.parent.glob("ddlib-*"):
            (ROOT / "dist").mkdir(exist_ok=True)
            shutil.copy(made, ROOT / "dist")
    print(f"{len(found)} passed, 0 failed, {len(options.pythons) - len(found)} skipped")
    return 0 if found else 1


if __name__ == "__main__":
    raise SystemExit(main())

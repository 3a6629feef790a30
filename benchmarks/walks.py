"""Source files that the main calls execute, in the order in which they are first entered.

    python -m benchmarks.walks            # the number of files, functions, calls and hops
    python -m benchmarks.walks --files    # also the files, in order

A tree of three levels, four sequences of length L = 8, four sampling steps, a network with constant
logits; and a training run of ``recipes.owt hdlm-levels --smoke`` and samples from its weights, two
in four steps, of which the files of all packages count. Each call runs once before it is counted,
so that imports and caches of the first run do not count.
"""

import argparse
import io
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch
from rich.console import Console

import ddlib as dd
from recipes import owt
from recipes.data import prepare
from recipes.engine.export import publish
from recipes.engine.parallel import World
from recipes.engine.run import Run
from recipes.generate import Options, generate
from recipes.generation.sampling import Sampling
from recipes.papers import smoke

SHAPE = (4, 8)
COUNTED = ("samplers", "parameterization", "config")
"""Packages whose files and hops are counted apart."""


class Walk(NamedTuple):
    """What one call executes; module bodies, lambdas and comprehensions are not counted."""

    files: list[str]
    """In the order of their first call."""
    functions: int
    calls: int
    hops: list[str]
    """File of the caller of each call of a function in another file."""

    @property
    def counted_files(self) -> list[str]:
        """Files of the packages that are counted apart."""
        return [file for file in self.files if file.startswith(COUNTED)]

    @property
    def counted_hops(self) -> int:
        """Hops that start in these packages."""
        return sum(file.startswith(COUNTED) for file in self.hops)


LIBRARY = Path(dd.__file__).parent
ALL = ("ddlib/", "ddlib_models/", "recipes/")
"""Packages whose files count in a training run."""


def walk(call: Callable[[], object], root: Path = LIBRARY, packages: Sequence[str] = ("",)) -> Walk:
    """Profile one run.

    Args:
        call: what is run.
        root: folder to which the names of files are relative.
        packages: folders in it whose files count.
    """
    files: dict[str, None] = {}
    hops: list[str] = []
    functions: set[tuple[str, str]] = set()
    calls = 0
    inside = tuple(f"{root}/{package}" for package in packages)

    def enter(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        code = frame.f_code
        if (
            event == "call"
            and code.co_filename.startswith(inside)
            and not code.co_name.startswith("<")
        ):
            calls += 1
            files.setdefault(code.co_filename.removeprefix(f"{root}/"))
            functions.add((code.co_filename, code.co_qualname))
            caller = "" if frame.f_back is None else frame.f_back.f_code.co_filename
            if caller.startswith(inside) and caller != code.co_filename:
                hops.append(caller.removeprefix(f"{root}/"))

    call()
    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Walk(list(files), len(functions), calls, hops)


def calls() -> dict[str, Callable[[], object]]:
    """The four calls on a tree of three levels: 12 tokens, 6 clusters, 3 super-clusters,
    the mask.
    """
    process = dd.presets.hdlm_levels([torch.arange(12) // 2, torch.arange(6) // 2])
    x = torch.randint(process.vocab_size, SHAPE)
    t = dd.sample_times(SHAPE[0])
    z = process.sample(x, t)
    network = lambda z, t: torch.zeros(*z.shape, process.vocab_size)  # noqa: E731
    return {
        "process.sample": lambda: process.sample(x, t),
        "dd.training_loss": lambda: dd.training_loss(process, network(z, t), x, z, t),
        "dd.bound": lambda: dd.bound(process, network, x),
        "dd.sample(Remask)": lambda: dd.sample(
            process, network, SHAPE, dd.samplers.Remask(), steps=4
        ),
    }


def training(folder: Path) -> dict[str, Callable[[], object]]:
    """The beginning of a training run, one of its steps, and samples, on text in ``folder``."""
    recipe = smoke(owt.recipes()["hdlm-levels"][1])
    prepare(recipe.data.corpus, folder / "data")
    recipe = replace(
        recipe,
        data=replace(recipe.data, folder=folder / "data"),
        output=replace(recipe.output, folder=folder / "run"),
    )
    alone = World(0, 1, torch.device("cpu"))
    run = Run.prepare(recipe, alone)
    batches = next(iter(run.batches()))
    weights = folder / "weights"
    publish(run, weights)
    samples = Options(run=str(weights), samples=2, sampling=Sampling(steps=4))
    console = Console(file=io.StringIO())
    return {
        "Run.prepare": lambda: Run.prepare(recipe, alone),
        "Run.step": lambda: run.step(batches, stop=False),
        "recipes.generate": lambda: generate(samples, console),
    }


def main(arguments: list[str] | None = None) -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", action="store_true", help="list the files")
    listed = parser.parse_args(arguments).files
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        walks = {name: walk(call) for name, call in calls().items()}
        parts = training(Path(folder))
        walks |= {name: walk(call, LIBRARY.parent, ALL) for name, call in parts.items()}
    for name, route in walks.items():
        print(
            f"{name}: {len(route.files)} files, {route.functions} functions, {route.calls} calls, "
            f"{len(route.hops)} hops between files; in {', '.join(COUNTED)}: "
            f"{len(route.counted_files)} files, {route.counted_hops} hops"
        )
        for file in route.files if listed else ():
            print(f"    {file}")


if __name__ == "__main__":
    main()

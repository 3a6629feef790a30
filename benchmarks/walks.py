"""Source files of ddlib that the main calls execute, in the order in which they are first entered.

    python -m benchmarks.walks            # the number of files, functions, calls and hops
    python -m benchmarks.walks --files    # also the files, in order

A tree of three levels, four sequences of length L = 8, four sampling steps, a network with constant
logits. Each call runs once before it is counted, so that imports and caches of the first run do not
count.
"""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

import ddlib as dd

SHAPE = (4, 8)
ROOMS = ("samplers", "parameterization", "config")
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
    def rooms(self) -> list[str]:
        """Files of the packages that are counted apart."""
        return [file for file in self.files if file.startswith(ROOMS)]

    @property
    def hops_of_rooms(self) -> int:
        """Hops that start in these packages."""
        return sum(file.startswith(ROOMS) for file in self.hops)


def walk(call: Callable[[], object]) -> Walk:
    """Profile one run."""
    files: dict[str, None] = {}
    hops: list[str] = []
    functions: set[tuple[str, str]] = set()
    calls = 0
    inside = f"{Path(dd.__file__).parent}/"

    def enter(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        code = frame.f_code
        if (
            event == "call"
            and code.co_filename.startswith(inside)
            and not code.co_name.startswith("<")
        ):
            calls += 1
            files.setdefault(code.co_filename.removeprefix(inside))
            functions.add((code.co_filename, code.co_qualname))
            caller = "" if frame.f_back is None else frame.f_back.f_code.co_filename
            if caller.startswith(inside) and caller != code.co_filename:
                hops.append(caller.removeprefix(inside))

    call()
    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Walk(list(files), len(functions), calls, hops)


def calls() -> dict[str, Callable[[], object]]:
    """The four calls on a tree of three levels.

    12 tokens, 6 clusters, 3 super-clusters, the mask.
    """
    process = dd.presets.hdlm_levels([torch.arange(12) // 2, torch.arange(6) // 2])
    x, t = torch.randint(process.vocab_size, SHAPE), dd.sample_times(SHAPE[0])
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


def main(arguments: list[str] | None = None) -> None:
    """Print the counts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--files", action="store_true", help="list the files")
    listed = parser.parse_args(arguments).files
    torch.manual_seed(0)
    for name, call in calls().items():
        found = walk(call)
        print(
            f"{name}: {len(found.files)} files, {found.functions} functions, {found.calls} calls, "
            f"{len(found.hops)} hops between files; in {', '.join(ROOMS)}: {len(found.rooms)} files, "
            f"{found.hops_of_rooms} hops"
        )
        for file in found.files if listed else ():
            print(f"    {file}")


if __name__ == "__main__":
    main()

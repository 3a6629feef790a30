"""Source files of ddlib that the main calls execute, in the order in which they are first entered.

    python -m benchmarks.walks            # the number of files, functions and calls
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

import torch

import ddlib as dd

SHAPE = (4, 8)


def walk(call: Callable[[], object]) -> tuple[list[str], int, int]:
    """Profile one run: the files in the order of their first call, the number of functions, and of
    Python calls.

    Module bodies, lambdas and comprehensions are not counted.
    """
    files: dict[str, None] = {}
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

    call()
    sys.setprofile(enter)
    try:
        call()
    finally:
        sys.setprofile(None)
    return list(files), len(functions), calls


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
        files, functions, calls_made = walk(call)
        print(f"{name}: {len(files)} files, {functions} functions, {calls_made} calls")
        for file in files if listed else ():
            print(f"    {file}")


if __name__ == "__main__":
    main()

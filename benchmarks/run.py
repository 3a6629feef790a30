"""All benchmarks of the table, one after another on one core.

    python -m benchmarks.run                     # the CPU rows, once, without the training step
    # as required by the table: three runs, the training step too
    python -m benchmarks.run --times 3 --full
    python -m benchmarks.run --only noising sampling_hdlm
    # the CPU rows with glibc's own allocator setting, into results/fresh
    python -m benchmarks.run --fresh-pages
    python -m benchmarks.run --gpu

Each benchmark writes benchmarks/results/NAME.json, the runs in the order in which they were made. A
run goes through all benchmarks before the next begins, each in a separate process, so that one's
heap does not affect another.

glibc returns tensors of more than 32 MB to the system at once, and touching fresh pages costs about
as much as arithmetic on them. That affects programs with many large tensors, the papers' formulas
most of all. So processes keep the memory that they free, like one whose heap has grown, and like
allocators of GPUs. ``--fresh-pages`` measures the other setting, the default of most programs.
"""

import argparse
import json
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks import dense, fields, head, noising, products, sampler_costs, sampling, training
from benchmarks.measuring import FRESH, REPEATS, RESULTS, in_its_own_process, report

KEEP = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
"""Settings that make glibc take all memory from its heap, and keep it."""
Work = Callable[[], dict[str, Any]]


def join(*parts: Work) -> dict[str, Any]:
    """Join several measurements of one thing."""
    results = [part() for part in parts]
    ratios = {name: value for one in results for name, value in one["ratios"].items()}
    return {name: value for one in results for name, value in one.items()} | {"ratios": ratios}


def cpu(repeats: int = REPEATS, tiny: bool = False, full: bool = False) -> Mapping[str, Work]:
    """Return the CPU rows' benchmarks by name.

    ``full`` adds the training step, which takes longer than all others.
    """
    sizes = head.TINY if tiny else head.GPT2
    less, more = (32, 64) if tiny else (1024, 2048)
    both = ("ours", "papers")
    plain = ("ours", "cross_entropy")
    beside = ("ours", "words", "cross_entropy", *(("expanded",) if tiny else ()))
    small = training.TINY_STEP if tiny else training.LAPTOP

    def times(kind: str, tokens: int, *names: str) -> Work:
        return partial(head.times, kind, tokens, repeats, names, sizes)

    def memory(kind: str, tokens: int, *names: str) -> Work:
        return partial(head.memory, kind, tokens, names or both, tiny)

    text = sampling.TINY_TEXT if tiny else sampling.TEXT
    batch = dict(sequences=8, length=32, sizes=sizes) if tiny else {}
    work: dict[str, Work] = {
        "head_hdlm_1024": partial(join, times("hdlm", less), memory("hdlm", less)),
        "head_hdlm_2048": partial(
            join, times("hdlm", more, *both, "cross_entropy"), memory("hdlm", more)
        ),
        "head_hdlm_xi_1024": times("hdlm_xi", less),
        "head_gidd_1024": times("gidd", less),
        "head_gidd_2048": memory("gidd", more),
        "head_mdlm_1024": times("mdlm", less, *plain),
        "head_hdlm_children_1024": times("hdlm_children", less, *beside),
        "head_hdlm_children_2048": partial(
            join, times("hdlm_children", more, *beside), memory("hdlm_children", more, "ours")
        ),
        "head_mdlm_children_1024": times("mdlm_children", less, *beside),
        "head_mdlm_children_2048": times("mdlm_children", more, *beside),
        "noising": partial(noising.measure, repeats, **batch),
        "dense": partial(
            dense.measure, repeats, **(dict(sequences=4, length=16, states=32) if tiny else {})
        ),
        "products": partial(products.measure, sizes, repeats),
        "fields": partial(fields.measure, 4 * repeats, tiny),
        "training_laptop_mdlm": partial(training.laptop, "mdlm", small, repeats),
        "training_laptop_hdlm": partial(training.laptop, "hdlm", small, repeats),
        "training_along_orders": partial(training.along, 16 if tiny else 4096, small, repeats),
        "sampling_masked": partial(sampling.measure, "masked", text),
        "sampling_hdlm": partial(sampling.measure, "hdlm", text),
        "samplers": partial(
            sampler_costs.every, sampler_costs.TINY_COSTS if tiny else sampler_costs.COSTS
        ),
    }
    if full:
        work["training"] = partial(
            training.measure, training.TINY_STEP if tiny else training.STEP, repeats
        )
    return work


def gpu(repeats: int = 20) -> Mapping[str, Work]:
    """Return the GPU rows' benchmarks, except the head and packing, which are separate commands."""
    from benchmarks import (
        attention,
        utilisation,
    )  # the latter imports the recipes, which takes seconds

    texts = sampling.Text(sequences=32, device="cuda")
    return {
        "training_gpu": partial(
            training.measure, training.Step(sequences=32, device="cuda"), repeats
        ),
        "sampling_hdlm_gpu": partial(sampling.measure, "hdlm", texts),
        "first_hitting_gpu": partial(sampling.first_hitting, texts),
        "attention_gpu": partial(attention.measure, repeats=repeats),
        **{
            f"training_{name}_gpu": partial(utilisation.measure, size)
            for name, size in utilisation.SIZES.items()
        },
    }


def run(work: Mapping[str, Work], times: int, device: str, folder: Path = RESULTS) -> None:
    """Run all in turn, ``times`` times, and write the results so far after each."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in work}
    for number in range(times):
        for name, measure in work.items():
            begin = time.perf_counter()
            runs[name].append(measure())
            report(name, runs[name], device, folder)
            ratios = ", ".join(
                f"{key} {value:.3g}" for key, value in runs[name][-1]["ratios"].items()
            )
            print(
                f"run {number + 1} of {times}, {time.perf_counter() - begin:5.1f} s  {name:<20} "
                f"{ratios}",
                flush=True,
            )


def measure_apart(name: str, *flags: str) -> dict[str, Any]:
    """Return the result of a benchmark in a separate process."""
    result: dict[str, Any] = json.loads(in_its_own_process("run", "--here", name, *flags))
    return result


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=1, help="runs that are stored")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="benchmarks to run")
    parser.add_argument(
        "--full",
        action="store_true",
        help="also the training step, which takes longer than all others together",
    )
    parser.add_argument("--gpu", action="store_true", help="the GPU rows")
    parser.add_argument(
        "--fresh-pages", action="store_true", help="return freed memory to the system"
    )
    parser.add_argument(
        "--tiny", action="store_true", help="small sizes, one after another: a test run"
    )
    parser.add_argument(
        "--results",
        type=Path,
        help="folder of the results; default benchmarks/results, or fresh in it with --fresh-pages",
    )
    parser.add_argument("--here", metavar="NAME", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.tiny and not (options.results or options.here):
        parser.error("--tiny: pass another folder with --results, these numbers are not results")
    if options.gpu and not torch.cuda.is_available():
        parser.error("--gpu: no CUDA device here")
    torch.set_num_threads(1)
    requested = "training" in (*(options.only or ()), options.here)
    work = gpu() if options.gpu else cpu(tiny=options.tiny, full=options.full or requested)
    if options.here:
        print(json.dumps(work[options.here]()))
        return
    unknown = set(options.only or ()) - set(work)
    if unknown:
        parser.error(f"--only {' '.join(sorted(unknown))}: must be among {', '.join(work)}")
    os.environ.update({} if options.fresh_pages else KEEP)
    flags = [flag for flag, value in (("--gpu", options.gpu), ("--tiny", options.tiny)) if value]
    chosen = {name: partial(measure_apart, name, *flags) for name in options.only or work}
    folder = options.results or (RESULTS / FRESH if options.fresh_pages else RESULTS)
    run(chosen, options.times, "cuda" if options.gpu else "cpu", folder)


if __name__ == "__main__":
    main()

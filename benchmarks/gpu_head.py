"""Output layer and loss on a GPU: the Triton kernels against torch, torch.compile and Liger.

    python -m benchmarks.gpu_head                   # writes results/gpu_head.json
    python -m benchmarks.gpu_head --modes training  # the rows of the table, in half the time
    python -m benchmarks.gpu_head --sweep           # times of other tiles too

D = 768, 50,257 tokens, bfloat16 products of float32 parameters, whose cast is included in every
method. Batches are of MDLM and of HDLM with 64 clusters, once with tokens of all levels in their
expected shares, once all masks. Losses are compared with float64 before anything is timed.
Milliseconds are between CUDA events, methods take turns, medians are reported. Cross-entropies are
another loss, of all tokens: the minimum with full logits. Losses on child logits differ too: of the
clusters of the noise, or for MDLM of as many as the square root of the tokens.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu_losses import (
    MODES,
    OTHER_LOSS,
    PROCESSES,
    TINY,
    Batch,
    Loss,
    Sizes,
    evaluation,
    methods,
    ours,
    training,
)
from benchmarks.measuring import report, require_gpu

TOLERANCE = 0.01
OURS = ("triton", "without_triton")


def milliseconds(work: Callable[[], Any]) -> float:
    """Return the time of one call, between CUDA events."""
    torch.cuda.synchronize()
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    work()
    after.record()
    after.synchronize()
    return before.elapsed_time(after)


def peak_bytes(work: Callable[[], Any]) -> int:
    """Return the peak GPU memory during ``work``, minus that before it."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    work()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def try_methods(
    work: Mapping[str, Callable[[], Tensor]], expected: float
) -> tuple[dict[str, Any], list[str]]:
    """Return the loss or the error of each method, and the names of those that run.

    Raise for an error of ours.
    """
    results: dict[str, Any] = {}
    for name, method in work.items():
        try:
            for _ in range(3):  # compilation, autotuning, warm-up
                value = float(method())
        except (
            Exception
        ) as error:  # a peer or a tile that is not supported here, or runs out of memory
            if name in OURS:
                raise
            results[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
            continue
        if name not in OTHER_LOSS and abs(value - expected) > TOLERANCE * abs(expected):
            wrong = f"{name} gives {value}, float64 {expected}"
            if name in OURS:
                raise AssertionError(wrong)
            results[name] = {
                "error": wrong
            }  # a compiler's mistake does not take the other times away
            continue
        results[name] = {"loss": value}
    return results, [name for name in results if "loss" in results[name]]


def measure(
    work: Mapping[str, Callable[[], Tensor]], expected: float, device: str, repeats: int
) -> dict[str, Any]:
    """Return milliseconds, in turns, and bytes of every method.

    On a CPU only the losses are compared.
    """
    results, names = try_methods(work, expected)
    if device == "cpu":
        return results
    timings: dict[str, list[float]] = {name: [] for name in names}
    for _ in range(repeats):
        for name in names:
            timings[name].append(milliseconds(work[name]))
    for name in names:
        results[name] |= {
            "peak_bytes": peak_bytes(work[name]),
            "median_ms": statistics.median(timings[name]),
        }
        results[name]["ms"] = timings[name]
    return results


def sweep(batch: Batch, expected: float, device: str, repeats: int) -> dict[str, Any]:
    """Return the ``ours`` kernels in other tiles, and in other chunks."""
    from ddlib.kernels.gpu import forward_kernel as online
    from ddlib.kernels.gpu import inplace_softmax as row
    from ddlib.kernels.gpu import vocab_order

    def run_with(
        module: Any, name: str, value: Any, step: Callable[[Batch, Loss], Tensor]
    ) -> Tensor:
        default = getattr(module, name)
        setattr(module, name, value)
        try:
            return step(batch, partial(ours, triton=True))
        finally:
            setattr(module, name, default)

    shapes = [
        (128, 128, 64, 8, 3),
        (128, 128, 64, 8, 4),
        (128, 256, 64, 8, 3),
        (64, 128, 64, 4, 4),
        (128, 64, 64, 4, 4),
    ]
    work = {
        str(tiles): partial(
            run_with, online, "default_tiles", lambda _, tiles=tiles: tiles, evaluation
        )
        for rows, columns, depth, warps, stages in shapes
        for splits in (1, 4, 16)
        for tiles in [online.Tiles(rows, columns, depth, splits, warps, stages)]
    }
    work |= {
        f"held={held}": partial(run_with, row, "HELD", held, training)
        for held in (4096, 8192, 16384, 32768)
    }
    work["joint products of clusters"] = partial(run_with, vocab_order, "SPARSE", 1e9, training)
    work |= {
        f"chunk=2^{power}": partial(training, batch, partial(ours, triton=True, chunk=1 << power))
        for power in range(25, 31)
    }
    return measure(work, expected, device, repeats)


def cases(options: argparse.Namespace) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every batch in every mode."""
    sizes = TINY if options.tiny else Sizes()._replace(sequences=options.sequences)
    for kind in options.processes:
        for masks in (False, True):
            torch.compiler.reset()
            batch = Batch(kind, masks, sizes, options.device)
            expected = batch.reference()
            losses = methods(options.tiny)
            name = f"{kind}, {'masks' if masks else 'all levels'}"
            for mode in options.modes:
                step = MODES[mode]
                work = {key: partial(step, batch, loss) for key, loss in losses.items()}
                yield f"{name}, {mode}", measure(work, expected, options.device, options.repeats)
            if options.sweep:
                yield f"{name}, sweep", sweep(batch, expected, options.device, options.repeats)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    command = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    command.add_argument("--sequences", type=int, default=64, help="sequences of 512 tokens")
    command.add_argument("--repeats", type=int, default=20, help="at least 5")
    command.add_argument("--processes", nargs="+", choices=PROCESSES, default=list(PROCESSES))
    command.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    command.add_argument("--sweep", action="store_true")
    command.add_argument(
        "--device", choices=("cuda", "cpu"), default="cuda", help=argparse.SUPPRESS
    )
    command.add_argument("--tiny", action="store_true", help=argparse.SUPPRESS)
    return command


def main() -> None:
    """Run the command."""
    command = parser()
    options = command.parse_args()
    if options.repeats < 5:
        command.error(f"--repeats is {options.repeats}, must be at least 5")
    if options.tiny != (options.device == "cpu") or (options.tiny and options.sweep):
        command.error("--device cpu and --tiny require each other and exclude --sweep")
    if options.device == "cuda":
        require_gpu(command)
    results = dict[str, dict[str, Any]]()
    for name, rows in cases(options):
        results[name] = rows
        if (
            not options.tiny
        ):  # after each case: compilations take minutes, and a device may be lent for a short time
            report(
                "gpu_head",
                [{"ratios": ratios(results), "settings": vars(options), "rows": results}],
                "cuda",
            )
    if options.tiny:
        print(
            json.dumps(
                {
                    "dry_run": "losses on a CPU without Triton; nothing was measured",
                    "rows": results,
                },
                indent=1,
            )
        )
        return
    print(
        json.dumps(
            {"ratios": ratios(results), "settings": vars(options), "rows": results}, indent=1
        )
    )


def ratios(results: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> dict[str, float]:
    """Return every method's cost over that of ``ours``, by case, method and quantity.

    And the latter in GiB.
    """
    timed = {case: rows for case, rows in results.items() if "median_ms" in rows.get("triton", ())}
    held = {
        f"{case}: triton GiB": rows["triton"]["peak_bytes"] / 2**30 for case, rows in timed.items()
    }
    return held | {
        f"{case}: {name} {quantity}": row[key] / rows["triton"][key]
        for case, rows in timed.items()
        for name, row in rows.items()
        for quantity, key in (("time", "median_ms"), ("memory", "peak_bytes"))
        if name != "triton" and key in row
    }


if __name__ == "__main__":
    main()

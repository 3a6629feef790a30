"""Training throughput on a GPU: tokens per second, and the share of the peak arithmetic that they
use.

    python -m benchmarks.utilisation small      # 12 x 768, 64 x 512 tokens
    python -m benchmarks.utilisation base       # 24 x 1024, 32 x 512 tokens

The step is that of the training engine, see ``benchmarks.profile``: bfloat16, compiled blocks, HDLM
with 64 clusters. Operations are counted from sizes: 2abc for a product of (a, b) and (b, c), twice
as many backwards as forwards, of the blocks' matrices, attention, and the output layer. ``nominal``
counts all logits, as is usual; ``executed`` those that are computed. Operations other than matrix
products are not counted.
"""

import argparse
import json
import statistics
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.measuring import REPEATS, now, require_gpu
from benchmarks.profile import Size, batches, run
from ddlib.processes import Hierarchical
from ddlib_models import sizes
from recipes.engine.utilisation import PEAKS, peak


def size(network: Mapping[str, int], sequences: int) -> Size:
    """Return the size of a network of the papers on a GPU."""
    width = network["dim"]
    depth = network["depth"]
    return Size(
        depth=depth, width=width, sequences=sequences, length=512, device="cuda", compile=True
    )


SIZES = {"small": size(sizes.small(), 64), "base": size(sizes.base(), 32)}


class Operations(NamedTuple):
    """Operations for each token of a step."""

    nominal: float
    executed: float


def operations(given: Size, share: float) -> Operations:
    """Count operations forwards and backwards, where ``share`` of all logits is computed."""
    blocks = given.depth * (24 * given.width**2 + 4 * given.length * given.width)
    head = 2 * given.width * given.vocabulary.words
    return Operations(3 * (blocks + head), 3 * (blocks + share * head))


def share(process: Hierarchical, x: Tensor, t: Tensor) -> float:
    """Return the share of logits that the loss of tokens ``x`` (B, L) at times ``t`` (B,) depends
    on.
    """
    states, counts = process.sample(x, t, torch.Generator(x.device).manual_seed(0)).unique(
        return_counts=True
    )
    levels = process.level_of(states[None])[0].tolist()
    needed = 0
    for state, count, level in zip(states.tolist(), counts.tolist(), levels, strict=True):
        below = level and process.subtree_logits_suffice(level, level - 1)
        needed += count * (
            len(process.hierarchy.under(state)) if below else process.vocab_size if level else 0
        )
    return needed / (x.numel() * process.vocab_size)


def windows(
    step: Callable[[], Any],
    steps: int,
    device: str,
    repeats: int = REPEATS,
) -> list[float]:
    """Return the seconds of each window of ``steps``."""
    taken = []
    for _ in range(repeats):
        begin = now(device)
        for _ in range(steps):
            step()
        taken.append(now(device) - begin)
    return taken


def needed(given: Size, process: Hierarchical) -> float:
    """Return the share of logits that the loss of random tokens depends on, over all times."""
    times = (torch.arange(256, dtype=torch.float64, device=given.device) + 0.5) / 256
    words = torch.randint(given.vocabulary.words, (256, given.length), device=given.device)
    return share(process, words, times)


def used(given: Size, logits: float, seconds: float, at_best: float | None) -> dict[str, Any]:
    """Return tokens per second of a step, and the share of the peak that it uses.

    Args:
        given: sizes.
        logits: share of all logits that the step computes.
        seconds: of the step.
        at_best: operations per second at the peak; None, unknown, gives no shares.

    Returns:
        these as ``ratios``, and the counted operations for each token.
    """
    counted = operations(given, logits)._asdict()
    speed = given.sequences * given.length / seconds
    ratios = {"tokens per second": speed}
    if at_best is not None:
        ratios |= {name: value * speed / at_best for name, value in counted.items()}
    return {"ratios": ratios, "operations_per_token": counted}


def measure(
    given: Size, steps: int = 20, warm_up: int = 20, at_best: float | None = None
) -> dict[str, Any]:
    """Return tokens per second, the median of windows of ``steps``, and the share of ``at_best``
    operations/s.
    """
    at_best = at_best or peak(name := torch.cuda.get_device_name())
    if at_best is None:
        raise ValueError(
            f"device {name!r} is none of {', '.join(PEAKS)}: pass its dense bfloat16 TFLOP/s with "
            "--peak"
        )
    trained = run(given)
    with closing(batches(trained)) as stream:
        for _ in range(warm_up):  # compilation
            trained.step([next(stream)], False)
        taken = windows(lambda: trained.step([next(stream)], False), steps, given.device)
    return {
        **used(given, needed(given, trained.process), statistics.median(taken) / steps, at_best),
        "seconds": taken,
        "settings": given._asdict() | {"vocabulary": given.vocabulary._asdict(), "steps": steps},
    }


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--sequences", type=int, help="sequences of 512 tokens")
    parser.add_argument("--steps", type=int, default=20, help="steps of a window")
    parser.add_argument(
        "--peak",
        type=float,
        metavar="TFLOP/S",
        help="peak of a device that is not an A100, H100 or H200",
    )
    options = parser.parse_args()
    require_gpu(parser)
    given = SIZES[options.size]
    given = given._replace(sequences=options.sequences or given.sequences)
    at_best = None if options.peak is None else options.peak * 1e12
    print(json.dumps(measure(given, options.steps, at_best=at_best), indent=1))


if __name__ == "__main__":
    main()

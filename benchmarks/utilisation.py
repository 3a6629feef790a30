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
from typing import Any, NamedTuple

import torch
from torch import Tensor

from benchmarks.measuring import REPEATS, now, require_gpu
from benchmarks.profile import Size, launching, run
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


def operations(size: Size, share: float) -> Operations:
    """Count operations forwards and backwards, where ``share`` of all logits is computed."""
    blocks = size.depth * (24 * size.width**2 + 4 * size.length * size.width)
    head = 2 * size.width * size.vocabulary.words
    return Operations(3 * (blocks + head), 3 * (blocks + share * head))


def share(process: Hierarchical, x: Tensor, t: Tensor) -> float:
    """Return the share of logits that the loss of tokens ``x`` (B, L) at times ``t`` (B,) depends
    on.
    """
    states, counts = process.sample(x, t, torch.Generator(x.device).manual_seed(0)).unique(
        return_counts=True
    )
    levels = process.level_of(states[None])[0].tolist()
    required = 0
    for state, count, level in zip(states.tolist(), counts.tolist(), levels, strict=True):
        below = level and process.subtree_logits_suffice(level, level - 1)
        required += count * (
            len(process.hierarchy.under(state)) if below else process.vocab_size if level else 0
        )
    return required / (x.numel() * process.vocab_size)


def windows(
    step: Callable[[], Any],
    steps: int,
    device: str,
    repeats: int = REPEATS,
) -> list[float]:
    """Return the seconds of each window of ``steps``."""
    timings = []
    for _ in range(repeats):
        begin = now(device)
        for _ in range(steps):
            step()
        timings.append(now(device) - begin)
    return timings


def share_over_times(size: Size, process: Hierarchical) -> float:
    """Return the share of logits that the loss of random tokens depends on, over all times."""
    times = (torch.arange(256, dtype=torch.float64, device=size.device) + 0.5) / 256
    words = torch.randint(size.vocabulary.words, (256, size.length), device=size.device)
    return share(process, words, times)


def throughput(size: Size, logits: float, seconds: float, at_best: float | None) -> dict[str, Any]:
    """Return tokens per second of a step, and the share of the peak that it uses.

    Args:
        size: sizes.
        logits: share of all logits that the step computes.
        seconds: of the step.
        at_best: operations per second at the peak; None, unknown, gives no shares.

    Returns:
        these as ``ratios``, and the counted operations for each token.
    """
    counted = operations(size, logits)._asdict()
    speed = size.sequences * size.length / seconds
    ratios = {"tokens per second": speed}
    if at_best is not None:
        ratios |= {name: value * speed / at_best for name, value in counted.items()}
    return {"ratios": ratios, "operations_per_token": counted}


def measure(
    size: Size, steps: int = 20, warm_up: int = 20, at_best: float | None = None
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
    trained = run(size)
    with launching(trained) as step:
        for _ in range(warm_up):  # compilation
            step()
        timings = windows(step, steps, size.device)
    return {
        **throughput(
            size,
            share_over_times(size, trained.process),
            statistics.median(timings) / steps,
            at_best,
        ),
        "seconds": timings,
        "settings": size._asdict() | {"vocabulary": size.vocabulary._asdict(), "steps": steps},
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
    size = SIZES[options.size]
    size = size._replace(sequences=options.sequences or size.sequences)
    at_best = None if options.peak is None else options.peak * 1e12
    print(json.dumps(measure(size, options.steps, at_best=at_best), indent=1))


if __name__ == "__main__":
    main()

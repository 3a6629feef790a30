"""Training loss from logits of 8 x 512 tokens, forwards and backwards: kernels between levels
against masks.

    python -m benchmarks.kernels --times 3    # writes benchmarks/results/kernels.json

Alphabets of 256 and 4,096 tokens, 64 clusters, float32, one thread. All processes have the same
logits and times; "confident" logits are 20 times as large, so that masses underflow in float32.
``masks`` is the loss of ``Masked``. Ratios are times over that of masks.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import ddlib as dd
from benchmarks.measuring import REPEATS, RESULTS, command_line, medians, report, seconds

SEQUENCES = 8
LENGTH = 512
CLUSTERS = 64
SIZES = (256, 4096)
WIDTHS = (2.0, 6.0, 20.0)
TINY = dict[str, Any](sequences=4, length=16, clusters=4, sizes=(16,))
SCALES = {"": 1.0, ", confident": 20.0}


def hierarchies(words: int, clusters: int) -> Mapping[str, dd.hierarchies.Hierarchy]:
    """Return hierarchies of an alphabet, masks alone first."""
    generator = torch.Generator().manual_seed(0)
    nearest = torch.arange(words) * clusters // words
    other = (nearest + torch.randint(1, clusters, (words,), generator=generator)) % clusters
    sparse = {
        "index": torch.stack([nearest, other], 1),
        "probability": torch.tensor([[0.7, 0.3]]).expand(words, 2),
    }
    dense = torch.randn(words, clusters, generator=generator, dtype=torch.float64).softmax(1)
    return {
        "masks": dd.hierarchies.Flat(words),
        "tree": dd.hierarchies.Tree([nearest.tolist()]),
        "blur": dd.hierarchies.Blur(words, WIDTHS),
        "soft, two clusters": dd.hierarchies.Soft(sparse),
        "soft, all clusters": dd.hierarchies.Soft(dense),
    }


def step(
    hierarchy: dd.hierarchies.Hierarchy, x: Tensor, t: Tensor, logits: Tensor
) -> Callable[[], Tensor]:
    """Build the loss and its gradient for logits, at a fixed draw of noise."""
    process = dd.processes.Hierarchical(hierarchy, dd.schedules.Linear())
    z = process.sample(x, t, torch.Generator().manual_seed(1))

    def both() -> Tensor:
        value = dd.training_loss(process, logits, x, z, t)
        torch.autograd.grad(value, logits)
        return value.detach()

    return both


def measure(
    repeats: int = REPEATS,
    sequences: int = SEQUENCES,
    length: int = LENGTH,
    clusters: int = CLUSTERS,
    sizes: tuple[int, ...] = SIZES,
) -> dict[str, Any]:
    """Return CPU seconds of the loss of each hierarchy, and their ratios to masks."""
    all_timings: dict[str, list[float]] = {}
    ratios: dict[str, float] = {}
    for words in sizes:
        generator = torch.Generator().manual_seed(0)
        each = hierarchies(words, clusters)
        x = torch.randint(words, (sequences, length), generator=generator)
        t = dd.sample_times(sequences, generator=generator)
        noise = torch.randn(sequences, length, words, generator=generator)
        for name, scale in SCALES.items():
            logits = (scale * noise).requires_grad_()
            steps = {kind: step(hierarchy, x, t, logits) for kind, hierarchy in each.items()}
            for kind, method in steps.items():
                if not bool(method().isfinite()):
                    raise AssertionError(f"the loss of {kind} is not finite")
            timings = seconds(steps, repeats)
            middle = medians(timings)
            all_timings |= {
                f"{words} tokens{name}: {kind}": values for kind, values in timings.items()
            }
            ratios |= {
                f"{words} tokens{name}: {kind} time": value / middle["masks"]
                for kind, value in middle.items()
                if kind != "masks"
            }
    return {"ratios": ratios, "cpu_seconds": all_timings}


def main() -> None:
    """Run the command."""
    parser = command_line(__doc__)
    parser.add_argument("--times", type=int, default=1, help="runs that are stored")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="folder, default benchmarks/results"
    )
    options = parser.parse_args()
    if options.tiny and options.results == RESULTS:
        parser.error("--tiny: pass another folder with --results, these numbers are not results")
    torch.set_num_threads(1)
    small = TINY if options.tiny else {}
    report(
        "kernels",
        [measure(options.repeats, **small) for _ in range(options.times)],
        folder=options.results,
    )


if __name__ == "__main__":
    main()

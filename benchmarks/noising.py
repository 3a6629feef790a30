"""Forward noising of 64 x 512 tokens, against a draw from dense distributions over tokens and
clusters.

    python -m benchmarks.noising

50,257 tokens, 64 clusters, float32, one thread. The dense distributions of a whole batch do not fit
into memory: one timing of the peer is of ``PART`` sequences, a different part each time, and counts
for all parts. ``ours`` is timed on the whole batch.
"""

import json
from itertools import cycle
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import ddlib as dd
from benchmarks.head import GPT2, TINY, Sizes, parents
from benchmarks.measuring import REPEATS, command_line, medians, over_ours, seconds

SEQUENCES = 64
LENGTH = 512
PART = 2


def dense(process: dd.processes.Hierarchical, x: Tensor, t: Tensor) -> Tensor:
    """Draw from one-hot tokens and clusters, weighted by the occupancies, by cumulative sums."""
    words, clusters = process.hierarchy.levels[:2]
    keep, cluster, mask = process.occupancies(t).float()[:, :, None, None].unbind(1)
    probs = torch.cat(
        [
            keep * F.one_hot(x, words),
            cluster * F.one_hot(process.hierarchy.maps[0].parents[x], clusters),
            mask.expand(len(x), x.shape[1], 1),
        ],
        -1,
    )
    drawn = torch.searchsorted(probs.cumsum(-1), torch.rand(*x.shape, 1)).squeeze(-1)
    return drawn.clamp_max(process.num_states - 1)  # the total may be below 1 by rounding


def measure(
    repeats: int = REPEATS, sequences: int = SEQUENCES, length: int = LENGTH, sizes: Sizes = GPT2
) -> dict[str, Any]:
    """Return CPU seconds for the whole batch, and the speedup of ``ours``."""
    torch.manual_seed(0)
    process = dd.presets.hdlm(parents(sizes))
    x = torch.randint(sizes.words, (sequences, length))
    t = dd.sample_times(sequences)
    parts = list(zip(x.split(PART), t.split(PART), strict=True))
    first = parts[0][0].repeat(2, 1), torch.full((2 * PART,), 0.5, dtype=torch.float64)
    shares = [
        _shares(process, draw(*first))
        for draw in (process.sample, lambda x, t: dense(process, x, t))
    ]
    if (shares[0] - shares[1]).abs().max() > 5 / first[
        0
    ].numel() ** 0.5:  # seven standard errors at least
        raise AssertionError(f"the two distributions differ: frequencies of the levels {shares}")
    turn = cycle(parts)
    timings = seconds(
        {"ours": lambda: process.sample(x, t), "dense": lambda: dense(process, *next(turn))},
        repeats,
    )
    timings["dense"] = [value * len(parts) for value in timings["dense"]]
    return {"ratios": over_ours(medians(timings), "time"), "cpu_seconds": timings}


def _shares(process: dd.processes.Hierarchical, z: Tensor) -> Tensor:
    return torch.bincount(process.level_of(z).flatten(), minlength=3) / z.numel()


def main() -> None:
    """Run the command."""
    options = command_line(__doc__).parse_args()
    torch.set_num_threads(1)
    small = dict(sequences=8, length=32, sizes=TINY) if options.tiny else {}
    print(json.dumps(measure(options.repeats, **small), indent=1))


if __name__ == "__main__":
    main()

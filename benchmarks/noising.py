"""Forward noising of 64 x 512 tokens: ours against a draw from dense laws over words and clusters, as peers make it.

    python benchmarks/noising.py

50,257 words, 64 clusters, float32, one thread. The peer goes through the batch four sequences at a time, since its laws
would not fit into memory at once.
"""

import argparse

import torch
import torch.nn.functional as F
from measuring import medians, report, seconds
from torch import Tensor

import ddlib as dd

WORDS, CLUSTERS, SEQUENCES, LENGTH = 50_257, 64, 64, 512


def dense(process: dd.processes.Hierarchical, x: Tensor, t: Tensor) -> Tensor:
    """One-hot words and clusters, weighted by the occupancies, and a draw from the sums of all."""
    parents = process.hierarchy.maps[0].parents
    keep, cluster, mask = process.occupancies(t).float()[:, :, None, None].unbind(1)
    law = torch.cat(
        [
            keep * F.one_hot(x, WORDS),
            cluster * F.one_hot(parents[x], CLUSTERS),
            mask.expand(len(x), x.shape[1], 1),
        ],
        -1,
    )
    return torch.searchsorted(law.cumsum(-1), torch.rand(*x.shape, 1)).squeeze(-1)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    process = dd.presets.hdlm(dd.hierarchies.random_parents(WORDS, CLUSTERS)[0])
    x, t = torch.randint(WORDS, (SEQUENCES, LENGTH)), dd.sample_times(SEQUENCES)
    parts = list(zip(x.split(4), t.split(4), strict=True))
    shares = [
        torch.bincount(process.level_of(z).flatten(), minlength=3) / z.numel()
        for z in (process.sample(x, t), torch.cat([dense(process, *part) for part in parts]))
    ]
    if (shares[0] - shares[1]).abs().max() > 0.01:
        raise AssertionError(f"the two laws differ: shares of the levels {shares}")
    methods = {"ours": lambda: process.sample(x, t), "dense": lambda: [dense(process, *part) for part in parts]}
    taken = seconds(methods, options.repeats)
    middle = medians(taken)
    report("noising", {"noising": {"cpu_seconds": taken, "times_faster": middle["dense"] / middle["ours"]}})


if __name__ == "__main__":
    main()

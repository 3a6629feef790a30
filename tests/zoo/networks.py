"""Small networks: whole, split, sparse, by blocks, with memory, guided."""

import torch
from torch.nn.functional import linear

from ddlib.guidance import ClassifierFree
from ddlib.guidance.small_networks import Lookup
from ddlib_models import DiT
from zoo.block_networks import ByBlocks
from zoo.block_networks import Sparse as SparseByBlocks

F64 = torch.float64


class Timed(Lookup):
    """Network that takes a time per position."""

    own_times = True


class Shifted(Lookup):
    """Network whose rows begin at different columns."""

    shifts_rows = True


class Split(Lookup):
    """Split denoiser."""

    def __init__(self, process, seed=1):
        super().__init__(process, seed)
        generator = torch.Generator().manual_seed(seed)
        size = process.vocab_size
        self.layer = torch.randn(size, size, dtype=F64, generator=generator)

    def features(self, z, t):
        return super().__call__(z, t)

    def output_weights(self):
        return self.layer, None

    def __call__(self, z, t):
        return linear(self.features(z, t), *self.output_weights())


class Sparse(Split):
    """Split denoiser at some positions."""

    def features_at(self, z, t, positions):
        return self.features(z, t).take_along_dim(positions[..., None], 1)


class Recalling(Split):
    """Split denoiser that takes its features of the previous call."""

    takes_memory = True

    def features(self, z, t, memory=None):
        features = super().features(z, t)
        return features if memory is None else features + memory.sin()


def guided(network):
    """Return a function of a process to a guidance of two such networks."""
    return lambda process: ClassifierFree(
        process, network(process, 1), network(process, 2), 2.5, "states"
    )


def dit(process):
    torch.manual_seed(0)
    return DiT(process.num_states, process.vocab_size, 8, 1, 1, cond_dim=8, memory=True).eval()


def by_blocks(kind):
    return lambda process: kind(process.num_states, process.vocab_size, 1)


KINDS = {
    "whole": lambda process: Lookup(process, 1),
    "timed": lambda process: Timed(process, 1),
    "shifted": lambda process: Shifted(process, 1),
    "split": Split,
    "sparse": Sparse,
    "recalling": Recalling,
    "blocks": by_blocks(ByBlocks),
    "sparse blocks": by_blocks(SparseByBlocks),
    "guided": guided(Lookup),
    "guided, timed": guided(Timed),
    "dit": dit,
}
"""Functions of a process to a network with one set of capabilities each."""

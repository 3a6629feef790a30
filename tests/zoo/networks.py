"""Small networks: whole, split, sparse, by blocks, with memory, guided."""

import torch
from torch.nn.functional import linear

from ddlib.guidance import ClassifierFree
from ddlib.guidance.small_networks import Lookup
from ddlib_models import DiT
from zoo.block_networks import ByBlocks
from zoo.block_networks import Sparse as SparseByBlocks

F64 = torch.float64
D = 5
"""Number of features of ``Halves``."""


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


def never(z, t):
    """A network that must not be called."""
    raise AssertionError("the network was called")


def with_own_times(denoiser, block_size=None):
    """The same denoiser, as one that takes a time for each position."""
    denoiser.own_times = True
    if block_size is not None:
        denoiser.block_size = block_size
    return denoiser


def constant(row):
    return lambda z, t: row.expand(*z.shape, -1)


class Counted:
    """A denoiser that counts its calls and their rows."""

    def __init__(self, inner):
        self.inner = inner
        self.calls = 0
        self.rows = 0

    def __call__(self, *given):
        self.calls, self.rows = self.calls + 1, self.rows + len(given[0])
        return self.inner(*given)


class Halves:
    """A random denoiser in two halves, row by row; counts its calls and the sequences in them."""

    def __init__(self, process, bias=True):
        generator = torch.Generator().manual_seed(7)

        def randn(*shape):
            return torch.randn(*shape, generator=generator, dtype=F64)

        self.table = randn(2, process.num_states, D) / 2
        self.weight = randn(process.vocab_size, D) / 2
        self.bias = randn(process.vocab_size) / 4 if bias else None
        self.calls = 0
        self.sequences = 0
        self.whole = 0

    def features(self, z, t):
        assert (
            z.dtype == torch.int64 and t.dtype == torch.get_default_dtype() and t.shape == (len(z),)
        )
        self.calls, self.sequences = self.calls + 1, self.sequences + len(z)
        return self.table[0][z] + self.table[1][z.roll(1, -1)] * (1 + t[:, None, None].double())

    def output_weights(self):
        return self.weight, self.bias

    def __call__(self, z, t):
        self.whole += 1
        return linear(self.features(z, t), self.weight, self.bias)


def plain(halves):
    """The same denoiser with its halves hidden."""
    return lambda z, t: halves(z, t)

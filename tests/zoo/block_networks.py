"""A small network that sees by blocks and keeps what it worked out, for tests of block sampling."""

import torch

F64 = torch.float64


class Kept:
    """Cache of ``ByBlocks``: the sums over the blocks of tokens."""

    def __init__(self, tokens, total):
        self.tokens = tokens
        self.total = total

    def rows(self, index):
        return Kept(self.tokens[index], self.total[index])


class ByBlocks:
    """Features of a position: its state, time and place, those of its block, and of every block
    before.
    """

    own_times = True

    def __init__(self, states, words, size, length=24, width=6):
        noise = torch.Generator().manual_seed(states)
        self.block_size = size
        self.seen = []
        self.prefilled = 0
        self.states, self.places = (
            2 * torch.randn(n, width, dtype=F64, generator=noise) for n in (states, length)
        )
        self.layer = torch.randn(words, width, dtype=F64, generator=noise)

    def _blocks(self, z, t, first):
        own = t[:, None].expand(z.shape) if t.ndim == 1 else t
        place = self.places[first : first + z.shape[1]]
        return (self.states[z] * (1.5 - own.to(F64))[..., None] * place.cos() + place).unflatten(
            1, (-1, self.block_size)
        )

    def prefill(self, x, cache=None):
        first = 0 if cache is None else cache.tokens.shape[1]
        here = self._blocks(x, torch.zeros(len(x)), first)
        total = here.sum(2).tanh().sum(1)
        self.prefilled += x.numel()
        return (
            Kept(x, total)
            if cache is None
            else Kept(torch.cat([cache.tokens, x], 1), cache.total + total)
        )

    def features(self, z, t, *, cache=None):
        self.seen.append(tuple(z.shape))
        here = self._blocks(z, t, 0 if cache is None else cache.tokens.shape[1])
        sums = here.sum(2)
        before = (
            sums.tanh().cumsum(1) - sums.tanh() + (0.0 if cache is None else cache.total[:, None])
        )
        return (here + (sums + before)[:, :, None]).sin().flatten(1, 2)

    def __call__(self, z, t, *, clean=None, cache=None):
        return 2 * self.features(z, t, cache=cache) @ self.layer.T

    def extend(self, z, t, cache):
        return self(z, t, cache=cache)


class Split(ByBlocks):
    """The same in halves."""

    def output_weights(self):
        return 2 * self.layer, None


class Sparse(Split):
    """The same at the positions of the call."""

    def features_at(self, z, t, positions, *, cache=None):
        return self.features(z, t, cache=cache).take_along_dim(positions[..., None], 1)


class Forgetful(ByBlocks):
    """One that sees by blocks and keeps nothing."""

    prefill = extend = property()


NETWORKS = {"whole": ByBlocks, "split": Split, "sparse": Sparse}

"""Batches of hidden states under an output layer, for the tests of the fused losses and of their kernels."""

import torch

F64 = torch.float64
NESTED = [[0, 0, 1, 1, 2, 3, 3, 4], [0, 1, 1, 0, 2], [0, 0, 1]]


def batch(process, tree=None, seed=0, *, rows=12, length=5, dim=7, dtype=F64, scale=1.0, extra=0, own=False):
    """Hidden states, matrix, bias; words, states, times.

    The output layer has a row for every state of the tree but its root, without a tree for every word; and ``extra``.
    Every position has a time of its ``own``, or each text one.
    """
    generator = torch.Generator().manual_seed(seed)
    columns = (process.vocab_size if tree is None else tree.num_states - 1) + extra
    sizes = (rows, length, dim), (columns, dim), (columns,)
    layer = [(torch.randn(size, generator=generator, dtype=F64) * scale).to(dtype).requires_grad_() for size in sizes]
    x = torch.randint(process.vocab_size, (rows, length), generator=generator)
    t = torch.rand((rows, length) if own else (rows,), generator=generator, dtype=F64)
    return layer, (x, process.sample(x, t, generator), t)


def close(ours, theirs, tolerance=1e-10):
    for one, other in zip(ours, theirs, strict=True):
        assert (one - other).abs().max() <= tolerance * (1 + other.abs().max())

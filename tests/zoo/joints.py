"""Joint distributions of sequences, and a test of drawn sequences against them."""

import torch

from ddlib.verification.framework.inputs import frequencies, tally
from zoo.calls import seeded

F64 = torch.float64
PAIR = torch.tensor([[0.30, 0.02, 0.05], [0.03, 0.05, 0.20], [0.25, 0.04, 0.06]], dtype=F64)
"""Joint distribution of a sequence of two tokens out of three."""
PAIR_OF_FOUR = torch.tensor(
    [
        [0.30, 0.01, 0.02, 0.01],
        [0.01, 0.02, 0.15, 0.01],
        [0.02, 0.20, 0.01, 0.02],
        [0.01, 0.01, 0.02, 0.18],
    ],
    dtype=F64,
)
"""The same of two tokens out of four."""


def joint(vocab_size, length, seed=0):
    """A joint distribution of sequences, (vocab_size,) * length."""
    return (
        torch.randn(vocab_size**length, dtype=F64, generator=seeded(seed))
        .softmax(0)
        .view([vocab_size] * length)
    )


def follows(tokens, probs):
    """True if sequences have the frequencies of a joint distribution, by exact binomial bounds."""
    index = torch.zeros(len(tokens), dtype=torch.int64)
    for column in tokens.unbind(1):
        index = index * probs.shape[0] + column
    counts = tally(index[:, None], probs.numel())[0]
    checked = frequencies("sequences", ("sequence",), counts, probs.flatten(), len(tokens))
    return bool(((checked.got - checked.expected).abs() <= checked.allowed).all())

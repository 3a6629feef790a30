"""Model sizes of MDLM, GIDD and HDLM, as arguments of a DiT: ``DiT(num_states, vocab_size,
**small())``.
"""

from typing import TypedDict


class Size(TypedDict):
    """Arguments of ``DiT`` that set its size."""

    dim: int
    depth: int
    heads: int
    cond_dim: int
    pad_to: int


def tiny() -> Size:
    """28.4M parameters in the blocks; GIDD's smallest."""
    return Size(dim=512, depth=8, heads=8, cond_dim=128, pad_to=128)


def small() -> Size:
    """92.1M parameters in the blocks: SMALL of the papers, 170M with a GPT-2 vocabulary."""
    return Size(dim=768, depth=12, heads=12, cond_dim=128, pad_to=128)


def base() -> Size:
    """321.2M parameters in the blocks: BASE of the papers, 425M with a GPT-2 vocabulary."""
    return Size(dim=1024, depth=24, heads=16, cond_dim=128, pad_to=128)

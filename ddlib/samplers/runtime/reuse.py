"""Approximate caches of networks in which all positions attend to each other.

Which keys and values are reused.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Reuse:
    """Rule for the keys and values of positions outside of the block that is drawn (Fast-dLLM,
    arXiv 2505.22618).

    They are computed in a pass over the full sequence at the first call of a block. Later calls
    evaluate the other positions alone. A changed token in the block would change them too, so that
    the result is approximate.
    """

    suffix: bool
    """True for "dual": reused before and behind the block; False for "prefix": before it alone."""
    refresh: int | None = None
    """Number of calls in a block after which they are computed again; None: once in each block."""

"""Approximate caches of networks in which all positions attend to each other.

Which keys and values are reused.
"""

import re
from dataclasses import dataclass

from ddlib.paces import Pace
from ddlib.parameterization.capabilities import Capabilities

_NAMED = re.compile(r"(prefix|dual)(?::refresh=(\d+))?")


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

    def __str__(self) -> str:
        name = "dual" if self.suffix else "prefix"
        return name if self.refresh is None else f"{name}:refresh={self.refresh}"


def reuse_of(keep: bool | str) -> bool | Reuse:
    """Return the rule of this name.

    "prefix", "dual", "dual:refresh=4"; True and False are returned unchanged.

    Raises:
        TypeError, ValueError: no such name, or a number of calls below 1.
    """
    if isinstance(keep, bool):
        return keep
    rule = (
        "must be True, False, 'prefix' or 'dual', or one of the last two with a number of calls, "
        "such as "
        "'dual:refresh=4'"
    )
    if not isinstance(keep, str):
        raise TypeError(f"keep is {keep!r}, {rule}")
    found = _NAMED.fullmatch(keep)
    if found is None or (found[2] is not None and int(found[2]) < 1):
        raise ValueError(f"keep is {keep!r}, {rule}")
    return Reuse(found[1] == "dual", None if found[2] is None else int(found[2]))


def check_reuse(
    keep: bool | Reuse, pace: Pace | None, able: Capabilities, sampler: object = None
) -> None:
    """Raise TypeError unless positions outside of a block stand while it is drawn, and the network
    takes a window.

    Args:
        keep: the rule; True and False always pass.
        pace: order of the positions.
        able: capabilities of the denoiser.
        sampler: the sampler, for the message; None for none.
    """
    if isinstance(keep, bool):
        return
    if pace is None or pace.block is None:
        whose = (
            ""
            if sampler is None
            else f", and {sampler!r} may change (remask) any position of a sequence in each step"
        )
        raise TypeError(
            f"keep is '{keep}' and pace is {pace!r}, must be Blocks(n): cached positions outside "
            "of a block must "
            f"not change{whose}; with Blocks(n) only positions within a block change"
        )
    if not able.caches_windows and not (
        able.caches_blocks and able.block_size and pace.block % able.block_size == 0
    ):
        raise TypeError(
            f"keep is '{keep}', which the denoiser {able.name} does not support: it must evaluate "
            "a window of "
            "positions with cached keys and values of the others (ddlib.typing.WindowDenoiser), as "
            "ddlib_models.DiT "
            "and ddlib_models.hf.causal_lm.CausalLM do; encoders of transformers, as in MaskedLM, "
            "do not take such a "
            "cache, nor do rows behind padding: sample prompts of one length together"
        )

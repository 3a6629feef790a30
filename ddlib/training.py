"""The loss that recipes optimise: the bound, with the papers' changes to it."""

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ddlib.checks import check_devices, check_mask, check_number, require
from ddlib.denoiser import Parameterization, cavity_logits
from ddlib.nelbo import check_noised, generic_nelbo
from ddlib.processes import ForwardProcess
from ddlib.reduce import mean_per_token
from ddlib.times import TimeDensity
from ddlib.times.base import sound
from ddlib.typing import Logits, PaddingMask, PerToken, Times, Tokens

_Parts = tuple[PerToken, PerToken]


def _standard(process: ForwardProcess, logits: Logits, x: Tokens, z: Tokens, t: Times) -> _Parts:
    closed = process.weighted_divergence(logits, x, z, t)
    if closed is not None:
        return closed
    weight = process.loss_weight(x, z, t).to(logits.dtype)
    value = generic_nelbo(process, logits, x, z, t)
    return weight, torch.where(weight > 0, value / torch.where(weight > 0, weight, 1.0), 0.0)


def _hard(process: ForwardProcess, logits: Logits, x: Tokens, z: Tokens, t: Times) -> _Parts:
    return process.hard_weighted_divergence(logits, x, z, t)


_MODES: dict[str, Callable[[ForwardProcess, Logits, Tokens, Tokens, Times], _Parts]] = {
    "standard": _standard,
    "hard": _hard,
}


def check_mode(process: ForwardProcess, mode: str) -> None:
    """Raises ValueError for an unknown mode, TypeError for one that the process does not have."""
    require(mode in _MODES, f"mode is {mode!r}, must be one of {', '.join(map(repr, _MODES))}")
    if mode not in process.modes:
        listed = ", ".join(map(repr, process.modes))
        raise TypeError(f"mode is {mode!r}, which {type(process).__name__} does not have, must be {listed}")


def training_loss(
    process: ForwardProcess,
    logits: Logits,
    x: Tokens,
    z: Tokens,
    t: Times,
    weight_clip: tuple[float, float] | None = None,
    mode: str = "standard",
    *,
    mask: PaddingMask | None = None,
    count_padding: bool = True,
    level_weights: Sequence[float] | None = None,
    parameterization: Parameterization = "cavity",
    density: TimeDensity | None = None,
    reduction: str = "mean",
) -> Tensor:
    """The training loss in nats per token: ``nelbo`` with clipped weights, hard mode and padding as the papers train.

    With the defaults it is the mean of ``nelbo``. Evaluation never clips: use ``nelbo`` or ``bound``.

    Args:
        process: the forward process.
        logits: (B, L, V) over words, or (B, L, S - 1) over states for child logits.
        x: (B, L) clean words.
        z: (B, L) noisy states.
        t: (B,) times.
        weight_clip: (low, high) for the loss weight, before it multiplies the divergence; words keep weight 0. The
            paper clips at 2 or 10.
        mode: "standard", or "hard" for the paper's hard mode, if ``process.modes`` has it.
        mask: (B, L) bool, True at real tokens, False at padding.
        count_padding: whether padding counts in the loss (the paper's choice) or is left out.
        level_weights: one factor per level 1..n of ``process.levels``: in a hierarchy (token loss, cluster loss, ...),
            with a mask alone that of the mask. Words keep the weight they have.
        parameterization: what the logits mean, as in ``nelbo``.
        density: of the times, where they were drawn from one: each loss is multiplied by ``density.weight(t)``, so that
            the mean is what uniform times have. None for uniform times, or to train more where more is drawn.
        reduction: "mean" over tokens, or "none" for (B, L).

    Raises:
        TypeError, ValueError: as ``nelbo``; a bad clip, mode, mask, level weight, density or reduction.
    """
    density = sound(density)
    check_mode(process, mode)
    require(reduction in ("mean", "none"), f"reduction is {reduction!r}, must be 'mean' or 'none'")
    check_noised(process, x, z, t)
    if mask is not None:
        check_devices(x=x, mask=mask)
        check_mask("mask", mask, x.shape)
    weight, divergence = _MODES[mode](process, cavity_logits(process, logits, z, t, parameterization), x, z, t)
    loss = changed_weight(process, weight, z, weight_clip, level_weights) * divergence
    if density is not None:
        loss = loss * density.weight(t).to(loss.dtype)[:, None]
    kept = None if count_padding else mask
    if reduction == "none":
        return loss if kept is None else torch.where(kept, loss, 0.0)
    return mean_per_token(loss, kept)


def changed_weight(
    process: ForwardProcess,
    weight: PerToken,
    z: Tokens,
    weight_clip: tuple[float, float] | None,
    level_weights: Sequence[float] | None,
) -> PerToken:
    """The weight as training changes it: clipped, then times its level's factor; words have none.

    A weight of 0, which words of a hierarchy have, stays 0.
    """
    low, high = _clip(weight_clip)
    weight = torch.where(weight > 0, weight.clamp(low, high), 0.0)
    return weight if level_weights is None else weight * _level_factor(process, z, level_weights).to(weight)


def _clip(weight_clip: tuple[float, float] | None) -> tuple[float, float]:
    if weight_clip is None:
        return 0.0, math.inf
    if not isinstance(weight_clip, (tuple, list)) or len(weight_clip) != 2:
        raise TypeError(f"weight_clip is {weight_clip!r}, must be a pair (low, high) or None")
    low, high = weight_clip
    require(0 <= low <= high and high > 0, f"weight_clip is {weight_clip}, must be 0 <= low <= high, high > 0")
    return low, high


def _level_factor(process: ForwardProcess, z: Tokens, level_weights: Sequence[float]) -> Tensor:
    depth = len(process.levels) - 1
    if depth == 0:
        raise TypeError(
            f"level_weights is {level_weights}, {type(process).__name__} has words alone: no level above to weigh"
        )
    require(
        len(level_weights) == depth,
        f"level_weights has {len(level_weights)} entries, must have {depth}: one per level above the words",
    )
    factors = [check_number(f"level_weights[{i}]", v, 0, 1e6, "in [0, 1e6]") for i, v in enumerate(level_weights)]
    return torch.tensor([1.0, *factors], dtype=torch.float64, device=z.device)[process.level_of(z)]

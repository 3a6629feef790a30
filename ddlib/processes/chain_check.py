"""Rough check of a process without a closed form, once per object: are its matrices a chain?"""

from collections.abc import Iterator
from typing import Any, Protocol
from weakref import WeakSet

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.utils.validation import refuse, require

LARGEST = 64
"""Number of states up to which a process is checked; ``dd.verify`` checks larger ones."""
_TIMES = (0.21, 0.53, 0.87)
_STEP = 1e-5
_ROUGHLY = 0.05

_sound: WeakSet[Any] = WeakSet()
"""Processes that were checked."""


class Chain(Protocol):
    """Process with dense matrices."""

    num_states: int

    @property
    def breaks(self) -> list[float]:
        """Times at which rates are not smooth."""

    def rate_matrix(self, t: float | Tensor) -> Float64[Tensor, "S S"]:
        """Compute the rates at a time."""

    def transition(self, s: float | Tensor, t: float | Tensor) -> Float64[Tensor, "S S"]:
        """Compute the transition probabilities between two times."""


def check_chain(process: Chain) -> None:
    r"""Raise ValueError unless rows of ``transition`` are distributions and its derivative is that
    of ``rate_matrix``, :math:`\partial_t q_{t|0} = q_{t|0} Q_t`, at three times.
    """
    if process in _sound or process.num_states > LARGEST:
        return
    for t in _smooth_times(process.breaks):
        _check_at(process, t)
    _sound.add(process)


def _smooth_times(breaks: list[float]) -> Iterator[float]:
    """Yield the times that are not at a break."""
    for t in _TIMES:
        if all(abs(t - each) > 2 * _STEP for each in breaks):
            yield t


def _check_at(process: Chain, t: float) -> None:
    name = type(process).__name__
    before, here, after = (process.transition(0.0, t + step) for step in (-_STEP, 0.0, _STEP))
    size = (process.num_states, process.num_states)
    require(
        tuple(here.shape) == size,
        f"{name}: transition(0, {t}) has shape {tuple(here.shape)}, must be (S, S) = {size}",
    )
    off = (here.sum(1) - 1).abs()
    row = int(off.nan_to_num(torch.inf).argmax())
    require(
        float(off[row]) < 1e-6 and float(here.min()) > -1e-9,
        f"{name}: row {row} of transition(0, {t}) sums to {float(here[row].sum()):.6g} and the "
        f"least entry is {float(here.min()):.3g}, must be distributions",
    )
    slope = (after - before) / (2 * _STEP)
    rates = here @ process.rate_matrix(t)
    apart = (slope - rates).abs()
    if not bool(apart.max() < _ROUGHLY * slope.abs().max() + 1e-6):
        i, j = divmod(int(apart.nan_to_num(torch.inf).argmax()), process.num_states)
        refuse(
            f"{name}: transition(0, t)[{i}, {j}] changes at the rate {float(slope[i, j]):.4g} at "
            f"t = {t}, and transition(0, t) @ rate_matrix(t) is {float(rates[i, j]):.4g}, must be "
            "equal; dd.verify checks the rest"
        )

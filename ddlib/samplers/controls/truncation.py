"""Temperature and truncation of all distributions that are drawn from."""

import math
from collections.abc import Callable
from functools import lru_cache, partial

import torch
from torch import Tensor

from ddlib.processes import identity
from ddlib.samplers.control import Control, Needs
from ddlib.typing import Sharpen
from ddlib.utils.validation import check_count, check_number

Scheduled = float | Callable[[float], float]
"""Number, or function of the time, which runs from 1, noise, to 0."""


class Truncation(Control):
    """Temperature, then top-k, top-p and min-p, for every distribution over tokens or clusters that
    is drawn from.

    Args:
        temperature: divisor of the logits; 0 is greedy. A number or a function of the time.
        top_p: keep the smallest set with at least this probability (Holtzman et al., 2020). A
            number or a function of the time.
        top_k: keep this many of the likeliest, and those that are as likely as the last of them;
            None for all.
        min_p: keep those that are at least this share as likely as the likeliest (arXiv
            2407.01082); 0 for all.

    Raises:
        TypeError, ValueError: an argument out of range; for functions, when they are evaluated.
    """

    def __init__(
        self,
        temperature: Scheduled = 1.0,
        top_p: Scheduled = 1.0,
        top_k: int | None = None,
        min_p: float = 0.0,
    ):
        self.temperature = temperature
        self.top_p = top_p
        self.top_k = None if top_k is None else check_count("top_k", top_k)
        self.min_p = check_number("min_p", min_p, 0, 1, "in [0, 1]")
        self.sharpen(1.0)

    @property
    def offers(self) -> Needs:  # type: ignore[override]
        """Functions of the time make the times of the grid matter."""
        scheduled = callable(self.temperature) or callable(self.top_p)
        return Needs.TIMES if scheduled else Needs.NOTHING

    @property
    def needs(self) -> Needs:
        idle = self.temperature == 1 and self.top_p == 1 and self.top_k is None and self.min_p == 0
        return Needs.NOTHING if idle else Needs.TOKEN_DISTRIBUTIONS

    def sharpen(self, t: float) -> Sharpen:
        temperature = check_number(
            *_name_and_value("temperature", self.temperature, t), 0, 1e6, "in [0, 1e6]"
        )
        top_p = check_number(*_name_and_value("top_p", self.top_p, t), 1e-9, 1, "in [1e-9, 1]")
        if temperature == 1 and top_p == 1 and self.top_k is None and self.min_p == 0:
            return identity
        return _sharpen_by(temperature, top_p, self.top_k, self.min_p)


def _name_and_value(name: str, value: Scheduled, t: float) -> tuple[str, float]:
    return (f"{name}({t:g})", value(t)) if callable(value) else (name, value)


@lru_cache(maxsize=1)  # so that a constant temperature is one function in all steps
def _sharpen_by(temperature: float, top_p: float, top_k: int | None, min_p: float) -> Sharpen:
    return partial(_sharpen, temperature=temperature, top_p=top_p, top_k=top_k, min_p=min_p)


def _sharpen(
    log_probs: Tensor, temperature: float, top_p: float, top_k: int | None, min_p: float
) -> Tensor:
    log_probs = log_probs - log_probs.amax(-1, keepdim=True)
    if temperature == 0:
        log_probs = torch.where(log_probs == 0, 0.0, -torch.inf)
    elif temperature != 1:
        log_probs = (log_probs.to(torch.float64) / temperature).to(log_probs.dtype)
    if top_k is not None and top_k < log_probs.shape[-1]:
        log_probs = log_probs.masked_fill(
            log_probs < log_probs.topk(top_k, -1).values[..., -1:], -torch.inf
        )
    if top_p < 1:
        ordered, order = log_probs.softmax(-1).sort(-1, descending=True)
        beyond = ordered.cumsum(-1) - ordered >= top_p
        log_probs = log_probs.masked_fill(beyond.scatter(-1, order, beyond), -torch.inf)
    if min_p > 0:
        log_probs = log_probs.masked_fill(log_probs < math.log(min_p), -torch.inf)
    return log_probs

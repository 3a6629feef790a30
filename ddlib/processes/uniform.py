"""Uniform noise."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from ddlib.processes.argument_checks import check_schedule
from ddlib.processes.broadcasting import elapsed
from ddlib.processes.interpolating import Interpolating
from ddlib.processes.mixture import Mixture
from ddlib.schedules import Cosine, Geometric, Linear, Schedule


class Uniform(Interpolating):
    r"""Uniform noise, each token jumps to a uniformly drawn token: UDLM and SEDD-uniform.

    :math:`q_t(\cdot|x) = \alpha_t x + (1 - \alpha_t)/V`. There is no mask: S = V. See Schiff et
    al., 2024, for UDLM and Lou et al., 2024, for SEDD-uniform.

    Args:
        vocab_size: number of tokens V, at least 2.
        schedule: the schedule alpha.
    """

    schedule: Schedule

    def __init__(self, vocab_size: int, schedule: Schedule) -> None:
        check_schedule(schedule)
        if vocab_size == 1:
            raise ValueError(
                "vocab_size is 1, must be at least 2: a single token has no other to jump to"
            )
        super().__init__(vocab_size, masked=False, uniform=True)
        self.schedule = schedule

    def small_copy(self, vocab_size: int) -> Self:
        return type(self)(vocab_size, self.schedule)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(2, Cosine()), cls(5, Linear()), cls(4, Geometric())]

    def mixture(self, t: Tensor) -> Mixture:
        return self._after(self.schedule.hazard(t))

    def mixture_between(self, s: Tensor, t: Tensor) -> Mixture:
        return self._after(elapsed(self.schedule, s, t))

    def mixing_rates(self, t: Tensor) -> tuple[Tensor, Tensor]:
        rate = self.schedule.rate(t)
        return rate / self.vocab_size, torch.zeros_like(rate)

    def _after(self, hazard: Tensor) -> Mixture:
        return Mixture(
            torch.exp(-hazard), -torch.expm1(-hazard) / self.vocab_size, torch.zeros_like(hazard)
        )

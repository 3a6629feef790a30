"""Corrector with a forward step followed by a reverse step."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch

from ddlib.samplers.ancestral import Ancestral
from ddlib.samplers.base import Guarantees, SamplingContext
from ddlib.samplers.correctors.base import Corrector
from ddlib.typing import Times, Tokens
from ddlib.utils.validation import check_flag, check_number


class ForwardBackward(Corrector):
    r"""Forward step by :math:`q_{u|t}`, then a reverse step by :math:`q(z_t | z_u, p)`: Campbell et
    al. (2022).

    :math:`u = \min(1, t + amount\, h)` after a step of length h. It supports every process. Each
    token keeps its distribution exactly, however large the amount. The joint distribution of a
    sequence has an error from tokens drawn at once, which vanishes as the number of steps grows. In
    a masked process a token is remasked with probability :math:`1 - \alpha_u / \alpha_t`.

    Args:
        amount: length of the forward step, in units of h, from 0.001 to 1000; 1 redraws the last
            step.
        force_transition: as of the predictor, see ``Ancestral``.

    Raises:
        TypeError, ValueError: another amount.
    """

    def __init__(self, amount: float = 1.0, force_transition: bool = False) -> None:
        self.amount = check_number("amount", amount, 0.001, 1000, "in [0.001, 1000]")
        self.force_transition = check_flag("force_transition", force_transition)

    @property
    def guarantees(self) -> Guarantees:
        return replace(
            super().guarantees,
            supports_joint_draws=True,
            forces_transitions=self.force_transition,
        )

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(3.0)]  # large enough for errors to be detected

    def correct(self, run: SamplingContext, z: Tokens, t: Times, h: Times) -> Tokens:
        u = (t + self.amount * h).clamp_max(1.0)
        noised = torch.where(run.free, run.process.sample_forward(z, t, u, run.generator), z)
        return Ancestral(self.force_transition).back(run, noised, u, t)

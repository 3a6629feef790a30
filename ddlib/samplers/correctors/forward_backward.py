"""A corrector that noises a little and takes the noise away again."""

from collections.abc import Sequence
from typing import Self

import torch

from ddlib.samplers.ancestral import Ancestral
from ddlib.samplers.base import SamplingContext
from ddlib.samplers.correctors.base import Corrector
from ddlib.typing import Times, Tokens
from ddlib.utils.validation import check_number


class ForwardBackward(Corrector):
    r"""Forward by :math:`q_{u|t}`, back by :math:`q(z_t | z_u, p)`, for any process: Campbell et al. (2022).

    :math:`u = \min(1, t + amount\, h)` after a step of length h. Every token keeps its law exactly, however large the
    amount; the joint law of a text up to what is drawn at once, which vanishes as the steps grow many. A mask model
    masks a word with probability :math:`1 - \alpha_u / \alpha_t`.

    Args:
        amount: how far, in steps, from 0.001 to 1000; 1 undoes one step and makes it anew.

    Raises:
        TypeError, ValueError: another amount.
    """

    def __init__(self, amount: float = 1.0) -> None:
        self.amount = check_number("amount", amount, 0.001, 1000, "in [0.001, 1000]")

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(3.0)]  # so much that a mistake shows

    def correct(self, run: SamplingContext, z: Tokens, t: Times, h: Times) -> Tokens:
        u = (t + self.amount * h).clamp_max(1.0)
        noised = torch.where(run.free, run.process.sample_forward(z, t, u, run.generator), z)
        return Ancestral().back(run, noised, u, t)

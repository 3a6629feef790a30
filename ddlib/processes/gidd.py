"""Generalised interpolating discrete diffusion."""

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor

from ddlib.processes.interpolating import Interpolating
from ddlib.processes.mixture import Mixture
from ddlib.utils.validation import check_number


class GIDD(Interpolating):
    r"""Mask and uniform noise in a proportion that varies in time (von Rütte et al., 2025).

    With :math:`c_t = B t^{g/2} (1-t)^{g/2}`, :math:`C_t = 1 + V c_t` and :math:`V B = 2^g p_u / (1
    - p_u)`, a position keeps its token with probability :math:`(1-t)/C_t`, is the mask with
    :math:`t/C_t`, and each token with :math:`c_t/C_t` (theory section 5). At t = 1/2 the share of
    uniform noise is exactly ``p_uniform``.

    Args:
        vocab_size: number of tokens V; the mask is state V.
        p_uniform: in [0, 1); 0 is masked diffusion.
        gamma: exponent g in (0, 2]; larger values would make rates negative.

    Raises:
        ValueError: p_uniform outside [0, 1) or gamma outside (0, 2].
    """

    training_weighting = "clip:2"

    def __init__(self, vocab_size: int, p_uniform: float, gamma: float = 1.0) -> None:
        check_number("p_uniform", p_uniform, 0, 1 - 1e-6, "in [0, 1), at most 1 - 1e-6")
        check_number("gamma", gamma, 1e-3, 2, "in (0, 2]: larger values make rates negative")
        super().__init__(vocab_size, masked=True, uniform=p_uniform > 0)
        self.p_uniform = p_uniform
        self.gamma = gamma
        self.scale = 2**gamma * p_uniform / (1 - p_uniform) / vocab_size

    def small_copy(self, vocab_size: int) -> Self:
        return type(self)(vocab_size, self.p_uniform, self.gamma)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(5, 0.0), cls(5, 0.2), cls(4, 0.5, gamma=2.0)]

    def mixture(self, t: Tensor) -> Mixture:
        c = self._c(t)
        total = 1 + self.vocab_size * c
        return Mixture((1 - t) / total, c / total, t / total)

    def mixture_between(self, s: Tensor, t: Tensor) -> Mixture:
        total = self._total(t)
        survive = torch.where(
            s < 1, (1 - t) / torch.where(s < 1, 1 - s, 1.0), 1.0
        )  # 1 at s = t = 1
        uniform = self._c(t) - self._c(s) * survive
        return Mixture(
            survive * self._total(s) / total,
            uniform.clamp_min(0) / total,
            (t - s * survive) / total,
        )

    def mixing_rates(self, t: Tensor) -> tuple[Tensor, Tensor]:
        leave = 1 / ((1 - t) * self._total(t))
        return self._c(t) / t * leave * (self.gamma / 2 + t * (1 - self.gamma)), leave

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(vocab_size={self.vocab_size}, p_uniform={self.p_uniform}, "
            f"gamma={self.gamma})"
        )

    def _c(self, t: Tensor) -> Tensor:
        return self.scale * (t * (1 - t)) ** (self.gamma / 2)

    def _total(self, t: Tensor) -> Tensor:
        return 1 + self.vocab_size * self._c(t)

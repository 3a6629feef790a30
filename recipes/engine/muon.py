"""Muon optimizer, which orthogonalises a matrix's momentum before the step."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor


class Muon(torch.optim.Muon):
    """``torch.optim.Muon`` with AdamW's learning rates and float32 products where these are no
    slower.

    torch's version rounds to bfloat16 on every processor. A CPU without instructions for it
    computes such products 20 to 30 times slower than float32's: more than half of the time of a
    step of a small network.

    As in torch's fused optimizers, gradients are divided by the attribute ``grad_scale``, and
    weights and momenta stay as they are where ``found_inf`` is 1; both are numbers on the device.

    Args:
        weights: matrices.
        lr: learning rate of AdamW, whose root mean square an update has (Liu et al. 2025, arXiv
            2502.16982).
        weight_decay: decay of the weights in each step, times ``lr``.

    Raises:
        ValueError: weights that are not matrices; a negative ``lr`` or ``weight_decay``.
    """

    def __init__(self, weights: list[Tensor], lr: float, weight_decay: float) -> None:
        super().__init__(weights, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")
        self.found_inf = torch.zeros((), device=weights[0].device)
        self.grad_scale = torch.ones((), device=weights[0].device)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step of all weights that have a gradient.

        Matrices of one shape are orthogonalised together.
        """
        loss = None if closure is None else torch.enable_grad()(closure)()
        broken = self.found_inf > 0
        for group in self.param_groups:
            ahead = dict[torch.Size, dict[Tensor, Tensor]]()
            decay = 1 - (~broken).double() * (group["lr"] * group["weight_decay"])
            for weight in group["params"]:
                if weight.grad is not None:
                    ahead.setdefault(weight.shape, {})[weight] = self._momentum(
                        weight, weight.grad, group
                    )
            for shape, some in ahead.items():
                stack = torch.stack([*some.values()])
                turned = orthogonal(
                    stack, group["ns_coefficients"], group["ns_steps"], group["eps"]
                )
                for weight, direction in zip(some, turned, strict=True):
                    weight.mul_(decay)
                    weight.add_(
                        torch.where(broken, 0.0, direction),
                        alpha=-0.2 * group["lr"] * max(shape) ** 0.5,
                    )
        return loss

    def _momentum(self, weight: Tensor, gradient: Tensor, group: dict[str, Any]) -> Tensor:
        state = self.state[weight]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(gradient)
        # a momentum that moves towards itself stays as it is
        gradient = torch.where(
            self.found_inf > 0, state["momentum_buffer"], gradient / self.grad_scale
        )
        momentum = state["momentum_buffer"].lerp_(gradient, 1 - group["momentum"])
        return gradient.lerp(momentum, group["momentum"]) if group["nesterov"] else momentum


def orthogonal(
    matrices: Float[Tensor, "k m n"],
    coefficients: tuple[float, float, float],
    steps: int,
    eps: float,
) -> Float[Tensor, "k m n"]:
    """Return U V' of each matrix U S V', by Newton-Schulz steps x <- a x + (b y + c y y) x, y = x
    x'.

    Singular values end at roughly 1. The steps are those of Jordan et al. (2024,
    https://kellerjordan.github.io/posts/muon): in bfloat16 on a GPU, else in float32.
    """
    a, b, c = coefficients
    x = matrices.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        y = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(y, y, y, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x

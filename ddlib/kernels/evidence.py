"""Uniform noise: the network's law enters by log(1 + ratio p(.)) at x, at z and summed over the words.

A token's divergence and its derivatives by these three numbers cost nothing; the derivatives by the logits follow in
one pass over them.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ddlib.kernels.block import Divergence, Rows
from ddlib.processes.mixing import Mixing, log1p_exp


class Evidence(Divergence):
    """The divergence of a process that keeps a word or redraws it."""

    def __init__(self, process: Mixing) -> None:
        self.process = process

    def __call__(self, logits: Float[Tensor, "n K"], rows: Rows, derive: bool) -> Float[Tensor, "n"]:
        x, z = rows.x[:, None], self.process.word_at(rows.z[:, None])
        ratio = self.process.log_ratio(rows.t).to(logits.dtype)[:, None]
        y = logits.sub_(logits.logsumexp(1, keepdim=True) - ratio)  # log(ratio p)
        y_x, y_z = y.gather(1, x), y.gather(1, z)
        with torch.set_grad_enabled(derive):
            found = (log1p_exp(y_x), log1p_exp(y_z), log1p_exp(y).sum(1, keepdim=True))
            at_x, at_z, total = (one.detach().requires_grad_(derive) for one in found)
            value = self.process.divergence(at_x, at_z, total, x, rows.z[:, None], rows.t)
            if not derive:
                return value.squeeze(1)
            by_x, by_z, by_all = torch.autograd.grad(value.sum(), (at_x, at_z, total))
        # d log(1 + ratio p(v)) / d log p(v) = sigmoid(y_v)
        by_x, by_z, share = by_x * y_x.sigmoid(), by_z * y_z.sigmoid(), y.sigmoid()
        slope = by_x + by_z + by_all * share.sum(1, keepdim=True)
        y.sub_(ratio).exp_().mul_(-slope).add_(share.mul_(by_all))
        y.scatter_add_(1, x, by_x).scatter_add_(1, z, by_z)
        return value.detach().squeeze(1)

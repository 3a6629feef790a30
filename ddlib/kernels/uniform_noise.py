"""Losses for uniform noise.

The divergence depends on the model's distribution only through log p(x), log p(z) and the sum of
log(1 + ratio p(.)) over all tokens but x. The divergence of a row and its derivatives with respect
to these three numbers are cheap; the derivatives with respect to the logits follow in one pass over
the logits.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from ddlib.kernels.fused import Divergence, FlatBatch, Reader
from ddlib.processes.interpolating import Interpolating
from ddlib.processes.mixture import log1p_exp


class Evidence(Divergence):
    """Divergence of a process that keeps a token or resamples it."""

    def __init__(self, process: Interpolating) -> None:
        self.process = process

    def __call__(
        self,
        logits: Float[Tensor, "n K"],
        rows: FlatBatch,
        derive: bool,
        read: Reader | None = None,
    ) -> Float[Tensor, "n"]:
        x = rows.x[:, None]
        z = self.process.states_as_tokens(rows.z[:, None])
        ratio = self.process.log_ratio(rows.t).to(logits.dtype)[:, None]
        # largest first: its sum with the logarithm would round away the distance of p(x) from 1
        log_p = logits.sub_(logits.amax(1, keepdim=True))
        scratch = log_p.exp()
        log_p.sub_(scratch.sum(1, keepdim=True).log_())
        if read is not None:
            read(log_p.exp())
        torch.add(log_p, ratio, out=scratch)
        others = log1p_exp(scratch, out=scratch).scatter_(1, x, 0.0).sum(1, keepdim=True)
        with torch.set_grad_enabled(derive):
            terms = (log_p.gather(1, x), log_p.gather(1, z), others)
            log_px, log_pz, others = (term.detach().requires_grad_(derive) for term in terms)
            value = self.process.divergence(log_px, log_pz, others, x, rows.z[:, None], rows.t)
            if not derive:
                return value.squeeze(1)
            by_x, by_z, by_others = torch.autograd.grad(value.sum(), (log_px, log_pz, others))
        # d log(1 + ratio p(v)) / d log p(v)
        share = torch.add(log_p, ratio, out=scratch).sigmoid_().scatter_(1, x, 0.0)
        slope = by_x + by_z + by_others * share.sum(1, keepdim=True)
        # d log p(v) / d logit w is 1 - p(w) for v = w, else -p(w): the sum of all slopes times -p,
        # plus the slope of each logit
        log_p.exp_().mul_(-slope).add_(share.mul_(by_others))
        log_p.scatter_add_(1, x, by_x).scatter_add_(1, z, by_z)
        return value.detach().squeeze(1)

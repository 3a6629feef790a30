"""Values of the terms of estimators over noise, each (B, L) nats at a noised sequence."""

from collections.abc import Callable

import torch
from torch import Tensor

import ddlib as dd
from recipes.estimators.noise import Noised


def integrand(noised: Noised) -> Tensor:
    """Return the integrand of the bound in continuous time (theory section 1)."""
    return dd.nelbo(noised.model.process, noised.logits, noised.x, noised.z, noised.t)


def clip_weights(high: float) -> Callable[[Noised], Tensor]:
    """Return the integrand with the weights that GIDD and HDLM train with, clipped at ``high``."""
    weighting = dd.weightings.Clip(high)

    def value(noised: Noised) -> Tensor:
        return dd.training_loss(
            noised.model.process,
            noised.logits,
            noised.x,
            noised.z,
            noised.t,
            weighting,
            reduction="none",
        )

    return value


def divergence(noised: Noised) -> Tensor:
    """Return the divergence of a step in discrete time (D3PM, arXiv 2107.03006)."""
    return noised.model.process.step_divergence(
        noised.logits, noised.x, noised.z, noised.t, noised.s
    )


def reconstruction(noised: Noised) -> Tensor:
    """Return -log p(x | z_t), the end term at the data; 0 without a call where no token moves."""
    stays = noised.model.process.likelihood(noised.x, noised.x, noised.t) >= 1
    if bool(stays[noised.counted].all()):
        return torch.zeros(noised.x.shape, dtype=torch.float64, device=noised.x.device)
    return dd.reconstruction(noised.model.process, noised.logits, noised.x, noised.z, noised.t)


def prior(noised: Noised) -> Tensor:
    """Return the divergence of q_t(.|x) from the prior, the end term at the noise."""
    return noised.model.process.prior_kl(noised.x, torch.ones_like(noised.t))


def masked_cross_entropy(noised: Noised) -> Tensor:
    """Return -log p(x|z) at masks over their probability: the mean of a masked position times L."""
    process = noised.model.process
    nats = -noised.logits.log_softmax(-1).gather(-1, noised.x[..., None]).squeeze(-1)
    share = process.likelihood(noised.z, noised.x, noised.t)
    return torch.where(noised.z >= process.vocab_size, nats / share, 0.0)


def released_hdlm(noised: Noised) -> Tensor:
    r"""Return the validation number of HDLM's released code for xi < 1.

    With :math:`r_c = \log u_1(c|p) / K(c|x)` the theorem (theory section 2; docs/concepts/elbo.md)
    has :math:`r_z - \log p(x)` at a cluster z, and :math:`-\sum_c K(c|x)\, r_c` at the mask. The
    released code lacks two terms (docs/errata.md): :math:`r_z` at wrong clusters, and wrong
    clusters in the sum at the mask.
    """
    process = noised.model.process
    edge = process.hierarchy.maps[0]
    right = edge.parents[noised.x]
    log_p = noised.logits.log_softmax(-1)
    nats = -log_p.gather(-1, noised.x[..., None]).squeeze(-1)
    xi = edge.row(noised.x).gather(-1, right[..., None]).squeeze(-1)
    mass = process.hierarchy.level_probs(log_p.exp())[1].gather(-1, right[..., None]).squeeze(-1)
    ratio = mass.log() - xi.log()
    cluster = noised.z - process.vocab_size
    at_cluster = nats + torch.where(cluster == right, ratio, 0.0)
    terms = torch.where(process.level_of(noised.z) == 1, at_cluster, -xi * ratio)
    return process.loss_weight(noised.x, noised.z, noised.t) * terms

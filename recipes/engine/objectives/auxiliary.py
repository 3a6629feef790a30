"""The bound, and the cross-entropy of a second head over clusters, as in the HDLM paper."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

import ddlib as dd
from ddlib import parts
from ddlib.processes import unsqueeze_times
from recipes.config import Recipe, at_least
from recipes.engine.model_protocols import ClusterHead, able
from recipes.engine.network import Network
from recipes.engine.objectives.bound import Bound
from recipes.engine.objectives.noising import NoisyBatch


@dataclass(kw_only=True, repr=False)
class Auxiliary(Bound):
    """Bound plus ``weight`` times -log c(k(x) | z, t) of a second head, where the finest cluster is
    not visible.

    Args:
        weight: weight of the cross-entropy.
    """

    weight: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least(0, weight=self.weight)

    def check(self, recipe: Recipe) -> None:
        super().check(recipe)
        if "num_clusters" not in parts.keys("backbones", recipe.model["kind"]):
            raise ValueError(
                f"loss.kind=auxiliary: not with {recipe.model['kind']}, which has no head over "
                "clusters (no argument num_clusters)"
            )
        if recipe.data.packed:
            raise ValueError("loss.kind=auxiliary: not with data.packed")

    @property
    def network_values(self) -> Mapping[str, Any]:
        return {"num_clusters": parts.RUN}

    def check_network(self, model: nn.Module, recipe: Recipe) -> None:
        super().check_network(model, recipe)
        able(model, ClusterHead, "loss.kind=auxiliary", "features_with_clusters")

    def loss(self, noisy: NoisyBatch, network: Network, scale: Tensor) -> tuple[Tensor, Tensor]:
        with network.autocast(noisy.z.device):
            features, clusters = network.call(network.model.features_with_clusters, noisy)
            lost = network.lost(features)
            if lost is not None:
                return lost
            total, losses = self.losses(features, noisy, network, scale)
        nats = cluster_loss(self.setting.process, clusters.float(), noisy)
        term = torch.where(noisy.mask, nats, 0.0)
        term = term * unsqueeze_times(noisy.measure).to(term.dtype)
        return total + scale * self.weight * term.sum(), losses + self.weight * term.detach()

    def terms(self) -> list[str]:
        return [*super().terms(), f"{self.weight:g} x that of clusters added"]


def cluster_loss(
    process: dd.processes.ForwardProcess, logits: Float[Tensor, "B L K"], noisy: NoisyBatch
) -> Float[Tensor, "B L"]:
    """Return -log c(k(x) | z, t) of the second head in nats per token, where the finest cluster is
    not visible.
    """
    cluster = process.hierarchy.maps[0].parents[noisy.x]
    nats = F.cross_entropy(logits.flatten(0, 1), cluster.flatten(), reduction="none").view_as(
        noisy.x
    )
    return torch.where(process.level_of(noisy.z) >= 2, nats, 0.0)

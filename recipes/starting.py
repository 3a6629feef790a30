"""A network that starts where the statistics of its text lead: for runs too short to find them out."""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib_models import DiT


@torch.no_grad()
def start_from_text(
    model: DiT, hierarchy: Hierarchy, counts: Int[Tensor, " V"], vectors: Float[Tensor, "V dim"]
) -> None:
    """Lets an untrained network begin at the frequencies of the words, with embeddings of their neighbourhoods.

    Words start at ``vectors``, a cluster at the mean of its members, the mask at the mean of all, each weighted by how
    often it occurs. The gates of the blocks, which adaLN-zero shuts, start half open: a short run would spend itself
    opening them.

    Args:
        model: to be changed.
        hierarchy: of the process; the states of one without clusters are words and the mask.
        counts: how often each word occurs.
        vectors: unit vectors of the model's width.
    """
    often = counts.float() + 0.5
    model.head.bias[: len(often)] = (often / often.sum()).log()
    vectors, mass, first = 0.3 * vectors.shape[1] ** 0.5 * vectors, counts.float(), 0
    for edge in hierarchy.maps:
        model.embedding.weight[first : first + len(vectors)] = vectors
        first += len(vectors)
        total = torch.zeros(edge.num_parents).index_add(0, edge.parents, mass)
        sums = torch.zeros(edge.num_parents, vectors.shape[1]).index_add(0, edge.parents, mass[:, None] * vectors)
        vectors, mass = sums / total.clamp_min(1)[:, None], total
    model.embedding.weight[first : first + 1] = vectors
    for block in model.blocks:
        for gate in block.modulation.bias.chunk(6)[2::3]:
            gate.fill_(0.3)

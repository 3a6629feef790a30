"""Which rows need which columns: one answer for every kind of process."""

from collections.abc import Sequence
from functools import partial, singledispatch
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ddlib.kernels import gpu
from ddlib.kernels import sibling_loss as siblings
from ddlib.kernels import subset_logsumexp as ranges
from ddlib.kernels.autograd_fallback import Dense
from ddlib.kernels.cluster_mass import Statistics
from ddlib.kernels.tile import Block, Part, Rows
from ddlib.kernels.uniform_noise import Evidence
from ddlib.objective.training import training_loss
from ddlib.parameterization.logits import Parameterization, tree_of
from ddlib.parameterization.tree_softmax import Children
from ddlib.processes import ForwardProcess, Hierarchical
from ddlib.processes.interpolating import Interpolating
from ddlib.weightings import Weighting, weighted


class Asked(NamedTuple):
    """What the loss is to be: arguments as ``training_loss``."""

    weighting: Weighting | None = None
    mode: str = "standard"
    edge_weights: Sequence[float] | None = None
    parameterization: Parameterization = "cavity"

    def weight(self, process: ForwardProcess, rows: Rows) -> Float[Tensor, "N"]:
        """Of each token, as training has it."""
        x, z = rows.x[:, None], rows.z[:, None]
        weight = weighted(self.weighting, process, process.loss_weight(x, z, rows.t), x, z, rows.t)
        return weight[:, 0].clone()  # a plan may change it in place, and a rule may give what it keeps


class Plan(NamedTuple):
    """Blocks, and by what the divergence of each token is multiplied."""

    blocks: list[Part]
    weight: Float[Tensor, "N"]


@singledispatch
def plan(process: ForwardProcess, rows: Rows, asked: Asked, dtype: torch.dtype) -> Plan:
    """The plan for a batch whose hidden states have ``dtype``.

    This one serves any process: its own loss, all columns for all rows.
    """
    everyone = torch.arange(len(rows.x), device=rows.x.device)
    return Plan([_dense(process, everyone, asked)], torch.ones_like(rows.t, dtype=torch.float64))


@plan.register
def _hierarchical(process: Hierarchical, rows: Rows, asked: Asked, dtype: torch.dtype) -> Plan:
    z, hard = rows.z[:, None], asked.mode == "hard"
    answers = {"weighted_divergence", "" if asked.mode == "standard" else f"{asked.mode}_weighted_divergence"} - {""}
    if any(getattr(type(process), name) is not getattr(Hierarchical, name) for name in answers):
        return plan.dispatch(ForwardProcess)(process, rows, asked, dtype)  # a subclass with a bound of its own
    weight = asked.weight(process, rows)
    shares = partial(_shares, process, asked.edge_weights) if asked.mode == "edges" else None
    hierarchy, level, blocks, served = process.hierarchy, process.level_of(z)[:, 0], list[Part](), 0
    plain = next((i for i, edge in enumerate(hierarchy.maps) if edge.spread is not None), hierarchy.depth)
    children = tree_of(process, asked.parameterization)
    if children is not None:
        return _child_plan(process, children, plain, rows, asked, dtype, level, weight)
    within = asked.parameterization == "posterior"  # such a distribution is one of the tokens under the state
    if plain and gpu.usable(z.device, dtype) and not (hard and within) and shares is None:
        from ddlib.kernels.gpu.tree_plan import Ranged  # imports Triton

        blocks, served = [Ranged(hierarchy, plain, hard)], plain
    for i in range(served + 1, hierarchy.depth + 1):
        index = (level == i).nonzero()[:, 0]
        if i <= plain and (shares is None or i == 1):
            # the cavity and the posterior are then the same distribution among the tokens under z
            blocks += ranges.blocks(hierarchy, i, rows, index, hard, within)
            if shares is not None:
                weight[index] = weight[index] * shares(rows.take(index))[:, 0]
        elif i <= plain or (not within and not (hard and i > 1)):
            blocks.append(Block(index, None, Statistics(hierarchy, shares)))
        else:
            weight[index] = 1.0
            blocks.append(_dense(process, index, asked))
    return Plan(blocks, weight)


def _shares(process: Hierarchical, edge_weights: Sequence[float] | None, rows: Rows) -> Tensor:
    return process.edge_shares(rows.z[:, None], rows.t, edge_weights)[:, 0]


def _child_plan(
    process: Hierarchical,
    children: Children,
    plain: int,
    rows: Rows,
    asked: Asked,
    dtype: torch.dtype,
    level: Tensor,
    weight: Tensor,
) -> Plan:
    """Where maps are plain the distribution of the children, elsewhere the distribution of tokens that it tells."""
    levels = list[int]()
    for found in children.levels_of(process.hierarchy)[: plain + 1]:
        if found is None:
            break  # a level of the noise that is none of the tree's
        levels.append(found)
    hard, blocks = asked.mode == "hard", list[Part]()
    if asked.mode == "edges":  # on CUDA too: the Triton kernels know no shares
        blocks += siblings.parts(children, levels, rows, level, hard, _shares(process, asked.edge_weights, rows))
    elif gpu.usable(level.device, dtype):
        from ddlib.kernels.gpu.siblings import Grouped  # imports Triton

        blocks.append(Grouped(children, tuple(levels), level, hard))
    else:
        blocks += siblings.parts(children, levels, rows, level, hard)
    if len(levels) <= process.hierarchy.depth:
        index = (level >= len(levels)).nonzero()[:, 0]
        weight[index] = 1.0
        blocks.append(_dense(process, index, asked))
    return Plan(blocks, weight)


@plan.register
def _mixing(process: Interpolating, rows: Rows, asked: Asked, dtype: torch.dtype) -> Plan:
    own = type(process).weighted_divergence is Interpolating.weighted_divergence and asked.mode == "standard"
    if not own or not process.uniform or asked.parameterization != "cavity":
        return plan.dispatch(ForwardProcess)(process, rows, asked, dtype)
    everyone = torch.arange(len(rows.x), device=rows.x.device)
    return Plan([Block(everyone, None, Evidence(process))], asked.weight(process, rows))


def _dense(process: ForwardProcess, index: Tensor, asked: Asked) -> Block:
    """Some tokens by the process's own loss on all logits."""
    children = tree_of(process, asked.parameterization)
    return Block(index, None if children is None else children.rows, Dense(partial(_loss, process, asked)))


def _loss(process: ForwardProcess, asked: Asked, logits: Tensor, x: Tensor, z: Tensor, t: Tensor) -> Tensor:
    return training_loss(process, logits, x, z, t, **asked._asdict(), reduction="none")

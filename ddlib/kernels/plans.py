"""Which rows need which columns: one answer for every kind of process."""

from collections.abc import Sequence
from functools import partial, singledispatch
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from ddlib.children import Children
from ddlib.denoiser import Parameterization, child_logits
from ddlib.kernels import gpu, ranges, siblings
from ddlib.kernels.block import Block, Part, Rows
from ddlib.kernels.dense import Dense
from ddlib.kernels.evidence import Evidence
from ddlib.kernels.statistics import Statistics
from ddlib.processes import ForwardProcess, Hierarchical
from ddlib.processes.mixing import Mixing
from ddlib.training import changed_weight, training_loss


class Asked(NamedTuple):
    """What the loss is to be: arguments as ``training_loss``."""

    weight_clip: tuple[float, float] | None = None
    mode: str = "standard"
    level_weights: Sequence[float] | None = None
    parameterization: Parameterization = "cavity"


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
    own = type(process).weighted_divergence is Hierarchical.weighted_divergence
    own = own and (not hard or type(process).hard_weighted_divergence is Hierarchical.hard_weighted_divergence)
    if not own:
        return plan.dispatch(ForwardProcess)(process, rows, asked, dtype)  # a subclass with a bound of its own
    weight = process.loss_weight(rows.x[:, None], z, rows.t)
    weight = changed_weight(process, weight, z, asked.weight_clip, asked.level_weights)[:, 0]
    hierarchy, level, blocks, served = process.hierarchy, process.level_of(z)[:, 0], list[Part](), 0
    plain = next((i for i, edge in enumerate(hierarchy.maps) if edge.spread is not None), hierarchy.depth)
    children = child_logits(process, asked.parameterization)
    if children is not None:
        return _child_plan(process, children, plain, rows, asked, dtype, level, weight)
    within = asked.parameterization == "posterior"  # such a law is one of the words under the state
    if plain and gpu.usable(z.device, dtype) and not (hard and within):
        from ddlib.kernels.gpu.ranged import Ranged  # imports Triton

        blocks, served = [Ranged(hierarchy, plain, hard)], plain
    for i in range(served + 1, hierarchy.depth + 1):
        index = (level == i).nonzero()[:, 0]
        if i <= plain:  # the cavity and the posterior are then the same law among the words under z
            blocks += ranges.blocks(hierarchy, i, rows, index, hard, within)
        elif asked.parameterization == "cavity" and not (hard and i > 1):
            blocks.append(Block(index, None, Statistics(hierarchy)))
        else:
            weight[index] = 1.0
            blocks.append(_dense(process, index, asked))
    return Plan(blocks, weight)


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
    """Where maps are plain the law of the children, elsewhere the law of words that it tells."""
    levels = list[int]()
    for found in children.levels_of(process.hierarchy)[: plain + 1]:
        if found is None:
            break  # a level of the noise that is none of the tree's
        levels.append(found)
    hard, blocks = asked.mode == "hard", list[Part]()
    if gpu.usable(level.device, dtype):
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
def _mixing(process: Mixing, rows: Rows, asked: Asked, dtype: torch.dtype) -> Plan:
    own = type(process).weighted_divergence is Mixing.weighted_divergence and asked.mode == "standard"
    if not own or not process.uniform or asked.parameterization != "cavity" or asked.level_weights is not None:
        return plan.dispatch(ForwardProcess)(process, rows, asked, dtype)
    z = rows.z[:, None]
    weight = changed_weight(process, process.loss_weight(rows.x[:, None], z, rows.t), z, asked.weight_clip, None)
    everyone = torch.arange(len(rows.x), device=rows.x.device)
    return Plan([Block(everyone, None, Evidence(process))], weight[:, 0])


def _dense(process: ForwardProcess, index: Tensor, asked: Asked) -> Block:
    """Some tokens by the process's own loss on all logits."""
    children = child_logits(process, asked.parameterization)
    return Block(index, None if children is None else children.rows, Dense(partial(_loss, process, asked)))


def _loss(process: ForwardProcess, asked: Asked, logits: Tensor, x: Tensor, z: Tensor, t: Tensor) -> Tensor:
    return training_loss(process, logits, x, z, t, **asked._asdict(), reduction="none")

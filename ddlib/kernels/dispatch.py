"""Partition of a batch by the output columns that the loss needs.

A process class names its rule.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ddlib.hierarchies import Map
from ddlib.kernels import gpu, sibling_loss, subset_logsumexp
from ddlib.kernels.cluster_mass import Statistics
from ddlib.kernels.component_loss import ComponentLoss
from ddlib.kernels.fused import Block, Dense, FlatBatch, LossPart
from ddlib.kernels.uniform_noise import Evidence
from ddlib.objective.training import LossOptions
from ddlib.parameterization.logits import layout_of
from ddlib.parameterization.tree_softmax import Children
from ddlib.processes import ForwardProcess, Hierarchical
from ddlib.processes.interpolating import Interpolating
from ddlib.typing import Times, Tokens
from ddlib.utils.agreement import holds
from ddlib.weightings import Weighting, is_bound, loss_weights


class LossPlan(NamedTuple):
    """Blocks, and the factor of each row's divergence."""

    blocks: list[LossPart]
    weight: Float[Tensor, "N"]


Rule = Callable[[Any, FlatBatch, LossOptions, torch.dtype], LossPlan]
"""Function that returns the plan for a batch; its process is of the class that states the rule."""

RULES: dict[str, Rule] = {}
"""Rules by the name that a process class states in ``fused``."""
FIXED_RULES: dict[str, Rule] = {}
"""Those whose sizes do not depend on the states."""

_LOSSES = ("weighted_divergence", "integrand", "integrand_parts")
"""Methods of a process that ``training_loss`` evaluates in every mode."""


def plan(
    process: ForwardProcess,
    x: Tokens,
    z: Tokens,
    t: Times,
    options: LossOptions,
    dtype: torch.dtype,
    whole: bool = False,
) -> LossPlan:
    """Return the plan for a batch whose hidden states have ``dtype``.

    The plan of a process of several components has that of each of them, at its positions; child
    logits are those of one tree over all positions. With ``whole`` the sizes of the plan do not
    depend on the states.
    """
    components = process.components
    if isinstance(layout_of(process, options.parameterization), Children):
        return _of_one(process, FlatBatch.of(x, z, t), options, dtype, whole)
    if len(components) == 1:
        return _of_one(components[0].process, FlatBatch.of(x, z, t), options, dtype, whole)
    row = torch.arange(x.numel(), device=x.device).view_as(x)
    parts = list[LossPart]()
    weight = torch.zeros(x.numel(), dtype=torch.float64, device=x.device)
    for k, place in process.places(z):
        component = components[k]
        index = place.take(row).flatten()
        states = place.take(z) - component.first_state
        rows = FlatBatch.of(place.take(x), states, place.take(t))
        weighting = options.weighting
        if weighting is not None:
            weighting = _WeightingOfComponent(weighting, process, component.first_state)
        own = replace(options, weighting=weighting)
        blocks, factors = _of_one(component.process, rows, own, dtype, whole)
        parts.append(ComponentLoss(process, k, index, rows, blocks))
        weight = weight.index_copy(0, index, factors)
    return LossPlan(parts, weight)


class _WeightingOfComponent(Weighting):
    """Weighting of a process at the positions of a component, whose states count from 0."""

    def __init__(self, weighting: Weighting, process: ForwardProcess, first_state: int) -> None:
        self.weighting = weighting
        self.process = process
        self.first_state = first_state

    @property
    def bound(self) -> bool:
        return is_bound(self.weighting)

    def __call__(
        self,
        process: ForwardProcess,
        weight: Float64[Tensor, "B L"],
        x: Tokens,
        z: Tokens,
        t: Times,
    ) -> Float64[Tensor, "B L"]:
        return self.weighting(self.process, weight, x, z + self.first_state, t)


def _of_one(
    process: ForwardProcess,
    rows: FlatBatch,
    options: LossOptions,
    dtype: torch.dtype,
    whole: bool,
) -> LossPlan:
    """Return the plan for rows of one process, by the rule of its class.

    It does not hold for a subclass that overrides the loss and does not state ``fused`` again.
    """
    rules = FIXED_RULES if whole else RULES
    losses = list(_LOSSES)
    if options.name != "standard":
        losses.append(f"{options.name}_weighted_divergence")
    stated = holds(type(process), "fused", *losses)
    rule = rules.get(process.fused, _general) if stated else _general
    return rule(process, rows, options, dtype)


def _general(
    process: ForwardProcess, rows: FlatBatch, options: LossOptions, dtype: torch.dtype
) -> LossPlan:
    """Plan for any process: its own loss, with all columns for all rows."""
    index = torch.arange(len(rows.x), device=rows.x.device)
    return LossPlan([_dense(process, index, options)], torch.ones_like(rows.t, dtype=torch.float64))


def _hierarchical(
    process: Hierarchical, rows: FlatBatch, options: LossOptions, dtype: torch.dtype
) -> LossPlan:
    z = rows.z[:, None]
    hard = options.name == "hard"
    if not all(isinstance(edge, Map) for edge in process.hierarchy.maps):
        return _general(process, rows, options, dtype)  # other kernels have no fused loss
    weight = _training_weight(process, rows, options)
    shares = partial(_shares, process, options.edge_weights) if options.name == "edges" else None
    hierarchy = process.hierarchy
    level = process.level_of(z)[:, 0]
    blocks = list[LossPart]()
    served = 0
    plain = next((i for i, edge in enumerate(hierarchy.maps) if not edge.plain), hierarchy.depth)
    layout = layout_of(process, options.parameterization)
    if isinstance(layout, Children):
        return _child_plan(process, layout, plain, rows, options, dtype, level, weight)
    # a posterior is supported on the tokens under the state
    within = options.parameterization == "posterior"
    if plain and gpu.usable(z.device, dtype) and not (hard and within):
        from ddlib.kernels.gpu.tree_plan import Ranged  # imports Triton

        served = plain if shares is None else 1  # a state of the first level has one edge below it
        blocks = [Ranged.of(hierarchy, served, hard, rows)]
    if plain and shares is not None:
        weight = torch.where(level == 1, weight * shares(rows)[:, 0], weight)
    for i in range(served + 1, hierarchy.depth + 1):
        index = (level == i).nonzero()[:, 0]
        if i <= plain:
            # cavity and posterior are proportional among the tokens under z
            blocks += subset_logsumexp.blocks(hierarchy, i, rows, index, hard, within, shares)
        elif not within and not (hard and i > 1):
            blocks.append(Block(index, None, Statistics(hierarchy, shares)))
        else:
            weight[index] = 1.0
            blocks.append(_dense(process, index, options))
    return LossPlan(blocks, weight)


def _shares(process: Hierarchical, edge_weights: Sequence[float] | None, rows: FlatBatch) -> Tensor:
    _, z, t = rows.sequences()
    return process.edge_shares(z, t, edge_weights).flatten(0, 1)


def _child_plan(
    process: Hierarchical,
    children: Children,
    plain: int,
    rows: FlatBatch,
    options: LossOptions,
    dtype: torch.dtype,
    level: Tensor,
    weight: Tensor,
) -> LossPlan:
    """Plan for child logits: sibling losses where maps are plain, elsewhere the process's own loss
    on token logits.
    """
    levels = list[int]()
    for tree_level in children.levels_of(process.hierarchy)[: plain + 1]:
        if tree_level is None:
            break  # this level of the process is not a level of the tree
        levels.append(tree_level)
    hard = options.name == "hard"
    blocks = list[LossPart]()
    if options.name == "edges":  # on CUDA too: the Triton kernels do not support edge weights
        blocks += sibling_loss.parts(
            children, levels, rows, level, hard, _shares(process, options.edge_weights, rows)
        )
    elif gpu.usable(level.device, dtype):
        from ddlib.kernels.gpu.siblings import Grouped  # imports Triton

        blocks.append(Grouped.of(children, levels, rows, level, hard))
    else:
        blocks += sibling_loss.parts(children, levels, rows, level, hard)
    if len(levels) <= process.hierarchy.depth:
        index = (level >= len(levels)).nonzero()[:, 0]
        weight[index] = 1.0
        blocks.append(_dense(process, index, options))
    return LossPlan(blocks, weight)


def _uniform(
    process: Interpolating, rows: FlatBatch, options: LossOptions, dtype: torch.dtype
) -> LossPlan:
    """Plan for noise that resamples tokens uniformly: the evidence of the state, with all columns
    for all rows.
    """
    if not process.uniform or options.name != "standard" or options.parameterization != "cavity":
        return _general(process, rows, options, dtype)
    index = torch.arange(len(rows.x), device=rows.x.device)
    return LossPlan(
        [Block(index, None, Evidence(process))], _training_weight(process, rows, options)
    )


FIXED_RULES["uniform"] = _uniform
RULES |= FIXED_RULES | {"hierarchical": _hierarchical}


def _dense(process: ForwardProcess, index: Tensor, options: LossOptions) -> Block:
    """Return a block that evaluates the process's own loss on all logits of some rows."""
    columns = layout_of(process, options.parameterization).rows
    return Block(index, columns, Dense(partial(options.per_token, process)))


def _training_weight(
    process: ForwardProcess, rows: FlatBatch, options: LossOptions
) -> Float[Tensor, "N"]:
    """Compute the training weight of each row."""
    x, z, t = rows.sequences()
    weight = loss_weights(options.weighting, process, process.loss_weight(x, z, t), x, z, t)
    # a copy: a plan changes it in place, and a weighting may return a cached tensor
    return weight.flatten().clone()

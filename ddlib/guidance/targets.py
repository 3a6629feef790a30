"""Distributions that a guidance steers: over tokens, over the children of each state, or over the
next state.
"""

from dataclasses import dataclass
from typing import cast

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ddlib.hierarchies import Hierarchy
from ddlib.parameterization.logits import Parameterization, cavity_logits, check_columns, layout_of
from ddlib.parameterization.tree_softmax import Children
from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.typing import Times, Tokens
from ddlib.utils.precision import float32_or_wider


@dataclass(frozen=True)
class TokenTarget:
    """Distributions over clean tokens in cavity form, i.e. without the evidence of the position
    itself.
    """

    process: ForwardProcess
    parameterization: Parameterization
    """Meaning of the logits of a part."""
    z: Tokens
    t: Times

    @property
    def network_time(self) -> Times:
        """The times passed to a network."""
        return self.t

    @property
    def columns(self) -> int:
        """Number of choices: tokens, or the first states."""
        return self.process.vocab_size

    def choice_logits(self, logits: Float[Tensor, "B L K"]) -> Float[Tensor, "B L n"]:
        """Convert the logits of a part to unnormalised log-probabilities of the choices."""
        return cavity_logits(self.process, logits, self.z, self.t, self.parameterization)

    def reach(self) -> Bool[Tensor, "B L n"]:
        """Return which choices each position can reach."""
        return self.process.token_evidence(self.z, self.t) > 0

    def first_state(self) -> Int64[Tensor, "B L"]:
        """Return the state of choice 0 at each position; those of the others follow it."""
        components = self.process.components
        firsts = torch.tensor([each.first_state for each in components], device=self.z.device)
        return firsts[self.process.component_of(self.z)]

    def _uniform(self) -> Float[Tensor, "B L V"]:
        """Distribution over the tokens of each position."""
        shape = (*self.z.shape, self.process.vocab_size)
        logits = torch.zeros(shape, dtype=torch.float64, device=self.z.device)
        return self.process.restrict_logits(logits, self.z).softmax(-1)


@dataclass(frozen=True)
class ChildTarget(TokenTarget):
    """Distributions over the children of each state, (B, L, S - 1), of a process whose levels are
    plain.
    """

    @property
    def columns(self) -> int:
        return self.process.num_states - 1

    def choice_logits(self, logits: Float[Tensor, "B L K"]) -> Float[Tensor, "B L n"]:
        """Return the log-mass of each state but the root.

        Child logits of the same tree are returned unchanged.
        """
        hierarchy = cast(LevelProcess, self.process).hierarchy
        layout = layout_of(self.process, self.parameterization)
        if (
            isinstance(layout, Children)
            and layout.parameterization == "cavity"
            and _has_tree(layout, hierarchy)
        ):
            check_columns(self.process, layout, logits, self.z.shape)
            return float32_or_wider(logits)
        levels = [super().choice_logits(logits)]
        for edge in hierarchy.maps[:-1]:
            levels.append(edge.log_push(levels[-1]))
        return torch.cat(levels, -1)

    def reach(self) -> Bool[Tensor, "B L n"]:
        """Return which states are children of each state, whatever the time.

        Ordered samplers descend at times at which the window of the edge may not act, and the rate
        is 0.
        """
        hierarchy = cast(LevelProcess, self.process).hierarchy
        reach_by_level = []
        level = hierarchy.level_of(self.z)
        for i, edge in enumerate(hierarchy.maps):
            child = edge.parents == hierarchy.local(self.z, i + 1)[..., None]
            # a mask has all as children
            every = torch.ones_like(child) if i + 1 == hierarchy.depth else child
            reach_by_level.append((level == i + 1)[..., None] & every)
        return torch.cat(reach_by_level, -1)


@dataclass(frozen=True)
class StepTarget(TokenTarget):
    """Distributions over the states at an earlier time, (B, L, S) float64.

    A state of probability 0 stays.
    """

    s: Times

    @property
    def columns(self) -> int:
        return self.process.num_states

    @property
    def network_time(self) -> Times:
        # times of a step are float64, a network takes the default dtype
        return self.t.to(torch.get_default_dtype())

    def choice_logits(self, logits: Float[Tensor, "B L K"]) -> Float[Tensor, "B L n"]:
        cavity = super().choice_logits(logits).to(torch.float64).softmax(-1)
        return self.process.posterior(cavity, self.z, self.t, self.s).log()

    def first_state(self) -> Int64[Tensor, "B L"]:
        return torch.zeros_like(self.z)

    def reach(self) -> Bool[Tensor, "B L n"]:
        return self.process.posterior(self._uniform(), self.z, self.t, self.s) > 0


def _has_tree(children: Children, hierarchy: Hierarchy) -> bool:
    """Return whether the tree of the child logits is the hierarchy of the process."""
    levels = tuple(range(hierarchy.depth + 1))
    return children.tree.depth == hierarchy.depth and children.levels_of(hierarchy) == levels

"""Product of processes with levels, which jump at times that depend on no network."""

from collections.abc import Callable, Mapping, Sequence
from typing import cast

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import pad

from ddlib.config.part import record_maker
from ddlib.processes.base import ForwardProcess, identity
from ddlib.processes.broadcasting import quotient
from ddlib.processes.level_process import LevelProcess
from ddlib.processes.product import Product
from ddlib.processes.product_fields import Fields
from ddlib.typing import Sharpen, Times, Tokens
from ddlib.utils.random import Generator


class LevelProduct(Product, LevelProcess):
    """Product of processes with levels: positions jump at times that depend on no network.

    ``Product`` returns it, with the same arguments. Numbers of levels may differ: a field of fewer
    has its mask in a lower one.
    """

    def __init__(
        self, processes: Mapping[str, ForwardProcess], fields: Fields | None = None
    ) -> None:
        super().__init__(processes, fields)
        record_maker(self, Product)
        tops = [len(each.levels) - 1 for each in self.every]
        self._tops = torch.tensor(tops, device=self.device)

    @classmethod
    def _takes(cls, processes: object) -> bool:
        values = processes.values() if isinstance(processes, Mapping) else ()
        return bool(values) and all(isinstance(each, LevelProcess) for each in values)

    @property
    def _chains(self) -> list[LevelProcess]:
        return [cast(LevelProcess, each) for each in self.every]

    def occupancies(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n levels"]:
        """Share of the positions in each level, (..., levels), at times of any shape."""
        return self._mean([each.occupancies(t) for each in self._chains])

    def weights(self, t: Float[Tensor, "*n"]) -> Float64[Tensor, "*n levels"]:
        """Mean loss weight of the positions in each level, (..., levels)."""
        fluxes = self._mean([each.occupancies(t) * each.weights(t) for each in self._chains])
        return quotient(fluxes, self.occupancies(t))

    def _mean(self, values: Sequence[Tensor]) -> Tensor:
        """Mean over positions of values (..., levels) of each field."""
        width = len(self.levels)
        fields = zip(self.component_shares, values, strict=True)
        means = [share * pad(value, (0, width - value.shape[-1])) for share, value in fields]
        return torch.stack(means).sum(0)

    def level_transition(self, s: Times, t: Times) -> Float64[Tensor, "*n levels levels"]:
        """Transition matrices of the levels of each position, (B, L, n + 1, n + 1); of a single
        group those of the sequence, (B, n + 1, n + 1).
        """
        width = len(self.levels)
        identity_matrix = torch.eye(width, dtype=torch.float64, device=self.device)

        def widen(matrix: Tensor) -> Tensor:
            size = matrix.shape[-1]
            result = identity_matrix.expand(*matrix.shape[:-2], width, width).clone()
            result[..., :size, :size] = matrix
            return result

        return self._at_positions(lambda each: widen(each.level_transition(s, t)), t)

    def _joint(self, t: Times, s: Times) -> Float64[Tensor, "*n levels levels"]:
        width = len(self.levels)

        def widen(joint: Tensor) -> Tensor:
            missing = width - joint.shape[-1]
            return pad(joint, (0, missing, 0, missing))

        return self._at_positions(lambda each: widen(each._joint(t, s)), t)

    def max_remask_prob(self, t: Times, s: Times) -> Float64[Tensor, "*n levels"]:
        """Largest ``lift`` of each edge of each position, (B, L, n); of a single group (B, n)."""
        width = len(self.levels) - 1

        def widen(probs: Tensor) -> Tensor:
            return pad(probs, (0, width - probs.shape[-1]))

        return self._at_positions(lambda each: widen(each.max_remask_prob(t, s)), t)

    def _at_positions(self, function: Callable[[LevelProcess], Tensor], t: Times) -> Tensor:
        """Return a function of the times of a group for each position."""
        values = [function(cast(LevelProcess, each)) for each in self._leaders]
        if len(values) == 1:
            return values[0]
        rows = len(t)
        field = self.fields_of((rows, self._fields.shape[-1]))
        group = self._group_of_field[field]
        row = torch.arange(rows, device=t.device)[:, None]
        index = (group, row) if t.ndim == 1 else (group, row, torch.arange(t.shape[1])[None])
        return torch.stack(values)[index]

    def sample_level(
        self, z: Tokens, t: Times, s: Times, generator: Generator = None, lift: Tensor | None = None
    ) -> Tokens:
        own = self._state_in_group[z]
        result = torch.zeros_like(z)
        for _, each, at in self._by_group.places(self._field_of_state[z], draws=True):
            chance = None if lift is None else at.take(lift)[..., : len(each.levels) - 1]
            times = at.take(t), at.take(s)
            at.write(result, each.sample_level(at.take(own), *times, generator, chance))
        return result

    def ascend(self, z: Tokens, level: Tokens, generator: Generator = None) -> Tokens:
        """Draw the ancestors of ``z``; those above the mask of a field are the mask."""
        field = self._field_of_state[z]
        below = level.minimum(self._tops[field])
        return self._from_group(self._at("ascend", z, z, below, generator, draws=True), field)

    def descend(
        self,
        logits: Float[Tensor, "*n V"],
        z: Int64[Tensor, "*n"],
        target: Int64[Tensor, "*n"],
        u: Float64[Tensor, "*n"],
        *,
        force: bool = False,
        sharpen: Sharpen = identity,
    ) -> Int64[Tensor, "*n"]:
        own = self._at("descend", z, logits, z, target, u, force=force, sharpen=sharpen)
        return self._from_group(own, self._field_of_state[z])

    def sample_jump_times(
        self, shape: Sequence[int], generator: Generator, device: torch.device
    ) -> tuple[Float64[Tensor, "B L n"], Tokens]:
        field = self.fields_of(shape)
        top = len(self.levels) - 1
        entries = torch.full((*shape, top), 2.0, dtype=torch.float64, device=device)
        own = torch.zeros(tuple(shape), dtype=torch.int64, device=device)
        for _, each, at in self._by_field.places(field, draws=True):
            times, states = each.sample_jump_times(at.take(field).shape, generator, device)
            never = pad(times, (0, top - times.shape[-1]), value=2.0)
            at.write(entries, never)
            at.write(own, states)
        return entries, own + self._starts[field]

    def subtree_logits_suffice(self, level: int, target: int, force: bool = False) -> bool:
        deep = [each for each in self._chains if level < len(each.levels)]
        return all(each.subtree_logits_suffice(level, target, force) for each in deep)

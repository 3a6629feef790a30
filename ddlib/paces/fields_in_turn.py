"""Pace of sequences with fields: the positions of one field after those of another."""

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.paces.base import Pace
from ddlib.utils.validation import require


class FieldsInTurn(Pace):
    r"""Fields that move in turn: those that are generated first condition the others.

    With n turns, and :math:`k_l` the turn of the field of position l in ``order``,

    .. math:: t_l(u) = \mathrm{clip}(n u - (n - 1 - k_l),\ 0,\ 1)

    A field may have any number of positions. Where no fields share a turn, the bound is the sum
    over fields of the bound of each given those before it.

    Args:
        fields: name of the field of each position, (L,), as in ``dd.processes.Product``.
        order: names of the fields, that which is generated first before the others; fields in a
            tuple move together. Each field occurs once.

    Raises:
        TypeError: a string in place of a sequence.
        ValueError: a name in ``order`` that is not a field or occurs twice, a field that ``order``
            lacks; when times are computed, sequences of another length than L.

    Example:
        >>> pace = FieldsInTurn(["age", "city", "age"], ["age", "city"])
        >>> pace.times(torch.tensor([0.25]).double(), torch.zeros(1, 3).double()).tolist()
        [[0.0, 0.5, 0.0]]
    """

    def __init__(self, fields: Sequence[str], order: Sequence[str | Sequence[str]]) -> None:
        for argument, names in (("fields", fields), ("order", order)):
            if isinstance(names, str):
                raise TypeError(f"{argument} is {names!r}, must be a sequence of names of fields")
        self.fields = tuple(fields)
        self.order = tuple(turn if isinstance(turn, str) else tuple(turn) for turn in order)
        turns = [(turn,) if isinstance(turn, str) else turn for turn in self.order]
        turn_of: dict[str, int] = {}
        for number, names in enumerate(turns):
            for name in names:
                require(
                    name in self.fields,
                    f"order has {name!r}, must be a field: "
                    f"{', '.join(map(repr, dict.fromkeys(self.fields)))}",
                )
                require(name not in turn_of, f"order has {name!r} twice, must have each field once")
                turn_of[name] = number
        for name in self.fields:
            require(name in turn_of, f"order lacks the field {name!r}, must have every field")
        self._turns = [turn_of[name] for name in self.fields]

    def parts(self, length: int) -> int:
        require(
            length == len(self.fields),
            f"sequences have length {length}, must have that of fields, {len(self.fields)}",
        )
        return len(self.order)

    def times(
        self, u: Float64[Tensor, "B"], chance: Float64[Tensor, "B L"]
    ) -> Float64[Tensor, "B L"]:
        return (self._place(u, chance) - self._rests(u)).clamp(0, 1)

    def speeds(
        self, u: Float64[Tensor, "B"], chance: Float64[Tensor, "B L"]
    ) -> Float64[Tensor, "B L"]:
        # segments are half open, so that the fields of one turn move at a time
        number = len(self.order)
        segment = self._place(u, chance).floor().clamp_max(number - 1)
        return number * (segment == self._rests(u)).to(u.dtype)

    def _place(self, u: Tensor, chance: Tensor) -> Float64[Tensor, "B 1"]:
        return self.parts(chance.shape[1]) * u[:, None]

    def _rests(self, u: Tensor) -> Float64[Tensor, "L"]:
        """Return the number of segments in which each position is data."""
        turns = torch.tensor(self._turns, dtype=u.dtype, device=u.device)
        return len(self.order) - 1 - turns

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(["a", "b"], ["b", "a"]), cls(["a", "b", "c", "a"], [["a", "c"], "b"])]

"""Fields of a product: positions, alphabets and states, and calls of their processes."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self, cast

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor, nn
from torch.nn.functional import pad

from ddlib.processes.base import LEVELS, Component, ForwardProcess
from ddlib.processes.places import Partition, Place
from ddlib.processes.product_arguments import check_processes, field_numbers, flatten, group
from ddlib.typing import Logits, Tokens
from ddlib.utils.validation import check_devices, due, refuse

Fields = Int64[Tensor, "*n"] | Sequence[int] | Sequence[str]


class Fielded(ForwardProcess):
    """Base class of ``Product``: fields, their positions, and the numbers of their states.

    Arguments as there.
    """

    def __init__(
        self, processes: Mapping[str, ForwardProcess], fields: Fields | None = None
    ) -> None:
        names = check_processes(processes)
        numbers = field_numbers(names, fields)
        parts, numbers = _flatten(processes, numbers)
        every = list(parts.values())
        sizes = [each.vocab_size for each in every]
        states = sum(each.num_states for each in every)
        # by its name: the base that follows in a product with levels takes a hierarchy
        ForwardProcess.__init__(self, max(sizes), states, every[0].device)
        check_devices(**{f"field {name}": each._place for name, each in parts.items()})
        self.declare(processes=parts, fields=numbers)
        self.names = tuple(parts)
        self.processes = nn.ModuleList(every)
        leaders, groups = group(every)
        self._leaders = [every[k] for k in leaders]
        self._tabulate(sizes, groups)
        self._locate(torch.zeros(1, dtype=torch.int64) if numbers is None else numbers)

    def _tabulate(self, sizes: Sequence[int], groups: Sequence[int]) -> None:
        """Tabulate fields, groups and levels, by field and by state."""
        device = self.device
        every = self.every
        self._sizes = torch.tensor(sizes, device=device)
        self._have_one_size = len(set(sizes)) == 1
        self._group_of_field = torch.tensor(groups, device=device)
        states = torch.tensor([each.num_states for each in every], device=device)
        self._starts = states.cumsum(0) - states
        self._field_of_state = torch.arange(len(every), device=device).repeat_interleave(states)
        widest = torch.tensor([each.vocab_size for each in self._leaders], device=device)
        # other states follow the tokens of the widest field of the group
        self._gap = widest[self._group_of_field] - self._sizes
        own = self._own(torch.arange(self.num_states, device=device))
        beyond = own >= self._sizes[self._field_of_state]
        self._state_in_group = own + torch.where(beyond, self._gap[self._field_of_state], 0)
        levels = [each.level_of(torch.arange(each.num_states, device=device)) for each in every]
        self._level_of_state = torch.cat(levels)
        token = torch.arange(self.vocab_size, device=device)
        first_tokens = self._sizes.cumsum(0) - self._sizes
        self._columns = first_tokens[:, None] + token.minimum(self._sizes[:, None] - 1)
        no_token = token >= self._sizes[:, None]
        self._no_token = no_token
        self._log_allowed = torch.where(no_token, -torch.inf, 0.0)

    def _locate(self, fields: Int64[Tensor, "*n"]) -> None:
        """Set the field of each position."""
        self._fields = fields.to(self.device)
        one_each = torch.arange(len(self.processes), device=self.device)
        self._by_field = Partition(self.every, one_each, self._fields)
        self._by_group = Partition(self._leaders, self._group_of_field, self._fields)

    def at_fields(self, fields: Fields) -> Self:
        """Return the product of the same processes at other positions, (L,) or (B, L)."""
        numbers = field_numbers(self.names, fields, complete=False)
        view: Self = nn.Module.__new__(type(self))
        vars(view).update(vars(self))
        view._modules = dict(self._modules)
        view.declare(fields=numbers)
        assert numbers is not None
        view._locate(numbers)
        return view

    def at_positions(self, positions: slice) -> Self:
        return self if len(self.processes) == 1 else self.at_fields(self._fields[..., positions])

    # ---- fields and their states

    @property
    def closed_form(self) -> bool:
        """Whether the processes of all fields have a closed form."""
        return all(each.closed_form for each in self.every)

    @property
    def modes(self) -> tuple[str, ...]:
        """Modes of ``training_loss`` that the processes of all fields have."""
        first, *others = (each.modes for each in self.every)
        return tuple(mode for mode in first if all(mode in modes for modes in others))

    @property
    def couplings(self) -> tuple[str, ...]:
        """Couplings of levels that the processes of all fields take."""
        own = [each.couplings for each in self.every]
        return tuple(levels for levels in LEVELS if all(levels in each for each in own))

    @property
    def every(self) -> list[ForwardProcess]:
        """The process of each field."""
        return list(self.processes)  # type: ignore[arg-type] # processes

    @property
    def sizes(self) -> list[tuple[int, int]]:
        """Numbers of states and of tokens of each field, such as a network takes."""
        return [(each.num_states, each.vocab_size) for each in self.every]

    @property
    def components(self) -> tuple[Component, ...]:
        fields = zip(self.every, self._starts.tolist(), self.names, strict=True)
        return tuple(Component(each, first, f"field {name!r}, ") for each, first, name in fields)

    def component_of(self, z: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        return _look_up(self._field_of_state, z)

    def places(self, z: Int64[Tensor, "B L"]) -> Iterator[tuple[int, Place]]:
        for k, _, place in self._by_field.places(self._field_of_state[z]):
            yield k, place

    def fields_of(self, shape: Sequence[int]) -> Int64[Tensor, "B L"]:
        """Return the number of the field of each position, (B, L).

        Raises:
            ValueError: sequences of another length, or of another number.
        """
        if len(self.processes) == 1:
            return self._fields.new_zeros(()).expand(*shape)
        want = tuple(self._fields.shape)
        if tuple(shape)[-len(want) :] != want:
            rule = f"must have that of the fields of {self!r}, {want}"
            raise ValueError(f"the batch has shape {tuple(shape)}, {rule}")
        return self._fields.expand(*shape)

    def tokens_as_states(self, x: Tokens) -> Tokens:
        return x + self._starts[self.fields_of(x.shape)]

    def states_as_tokens(self, z: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        return self._own(z).minimum(self._sizes[self._field_of_state[z]] - 1)

    def level_of(self, z: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        return self._level_of_state[z]

    @property
    def levels(self) -> tuple[int, ...]:
        return tuple(torch.bincount(self._level_of_state).tolist())

    def restrict_logits(self, logits: Float[Tensor, "B L K"], z: Tokens) -> Logits:
        wide = logits.shape[-1] > self.vocab_size
        if self._have_one_size and not wide:
            return logits
        field = self._field_of_state[z]
        if wide:
            logits = logits.gather(-1, self._columns[field])
        here = self._fields if self._by_field.is_usual(field) else field
        # one pass, and none in the backward pass, where gradients of impossible tokens are 0
        return logits + self._log_allowed[here].to(logits.dtype)

    def _own(self, z: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        """Return the states of the fields' processes, given those of the product."""
        return z - self._starts[self._field_of_state[z]]

    def _from_group(self, own: Tokens, field: Int64[Tensor, "B L"]) -> Tokens:
        """Return the states of the product, given those of the groups."""
        beyond = own >= self._sizes[field]
        return own - torch.where(beyond, self._gap[field], 0) + self._starts[field]

    def _spread(self, k: int, values: Tensor) -> Tensor:
        """Return values (..., S_k) of the states of a field among those of all states, else 0."""
        before = int(self._starts[k])
        return pad(values, (before, self.num_states - before - values.shape[-1]))

    def _evaluate(self, name: str, z: Tokens, *arguments: Any, **options: Any) -> Any:
        """Evaluate a method of each group, given states of the product among the arguments."""
        own = _look_up(self._state_in_group, z)
        changed = [own if value is z else value for value in arguments]
        return self._by_group.evaluate(name, self.component_of(z), *changed, **options)

    def _at(self, name: str, z: Tokens, *arguments: Any, **options: Any) -> Tensor:
        return cast(Tensor, self._evaluate(name, z, *arguments, **options))

    def _pair(self, name: str, z: Tokens, *arguments: Any, **options: Any) -> tuple[Tensor, Tensor]:
        return cast(tuple[Tensor, Tensor], self._evaluate(name, z, *arguments, **options))

    def _of_fields(self, name: str, field: Tensor, *arguments: Any, **options: Any) -> Tensor:
        """Evaluate a method of each field."""
        return cast(Tensor, self._by_field.evaluate(name, field, *arguments, **options))

    # ---- checks

    def check_inputs(
        self,
        *,
        x: Tensor | None = None,
        z: Tensor | None = None,
        t: Tensor | None = None,
        s: Tensor | None = None,
        p: Tensor | None = None,
    ) -> None:
        super().check_inputs(x=x, z=z, t=t, s=s, p=p)
        tokens = x if z is None else z
        if len(self.processes) == 1 or tokens is None or not due(tokens):
            return
        field = self.fields_of(tokens.shape) if z is None else self.component_of(z)
        want = self._fields.shape
        if z is not None and z.shape[-len(want) :] == want:
            right = self._fields.expand(z.shape)
            self._refuse("z", z, field != right, right, self._starts, "states")
        if x is not None:
            self._refuse("x", x, x >= _look_up(self._sizes, field), field)
        if p is not None:
            mass = torch.where(self._no_token[field], p, 0.0).sum(-1)
            self._refuse("the last token of p", self._sizes[field] + 0 * field, mass > 0.01, field)

    def _refuse(
        self,
        name: str,
        values: Tensor,
        wrong: Bool[Tensor, "B L"],
        field: Tensor,
        starts: Tensor | None = None,
        what: str = "tokens",
    ) -> None:
        """Raise ValueError for the first value that is wrong in its field."""
        if not bool(wrong.any()):
            return
        b, i = (int(v) for v in wrong.nonzero()[0])
        k = int(field[b, i])
        size = self.every[k].num_states if what == "states" else int(self._sizes[k])
        first = 0 if starts is None else int(starts[k])
        refuse(
            f"{name}[{b}, {i}] = {int(values[b, i])} in field {self.names[k]!r}, must be one of "
            f"its {what}, in [{first}, {first + size})"
        )


def _look_up(table: Int64[Tensor, "N"], index: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
    """Return ``table[index]``, in a third of its time."""
    return table.index_select(0, index.flatten()).view(index.shape)


def _flatten(
    processes: Mapping[str, ForwardProcess], numbers: Tensor | None
) -> tuple[dict[str, ForwardProcess], Tensor | None]:
    """Replace products by their fields."""
    parts: dict[str, dict[str, ForwardProcess]] = {}
    inner: dict[str, Tensor | None] = {}
    for name, process in processes.items():
        parts[name] = {name: process}
        inner[name] = None
        if isinstance(process, Fielded):
            fields = zip(process.names, process.every, strict=True)
            parts[name] = {f"{name}.{field}": each for field, each in fields}
            inner[name] = process.arguments()["fields"]
    return flatten(parts, inner, numbers)

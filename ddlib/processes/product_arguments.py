"""Fields of a product: checked arguments, nested products, and fields that are evaluated
together.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ddlib.config.plain import describe
from ddlib.processes.base import ForwardProcess, check_process
from ddlib.utils.validation import require


def check_processes(processes: Mapping[str, ForwardProcess]) -> tuple[str, ...]:
    """Return the names of fields, or raise TypeError or ValueError."""
    if not isinstance(processes, Mapping):
        raise TypeError(f"processes is {processes!r}, must be a mapping of names to processes")
    require(len(processes) > 0, "processes is empty, must have at least one field")
    for name, process in processes.items():
        if not isinstance(name, str):
            raise TypeError(f"processes has the name {name!r}, must be a string")
        check_process(process)
    return tuple(processes)


def field_numbers(names: Sequence[str], fields: Any, complete: bool = True) -> Tensor | None:
    """Return the numbers of the fields of positions, (L,) or (B, L), checked; None for a single
    field without.

    Args:
        names: of the fields.
        fields: numbers or names.
        complete: whether every field must have a position.
    """
    listed = ", ".join(map(repr, names))
    if fields is None:
        rule = f"must be the field of each position: there are {len(names)}, {listed}"
        require(len(names) == 1, f"fields is None, {rule}")
        return None
    if not isinstance(fields, Tensor):
        if isinstance(fields, str) or not isinstance(fields, Sequence):
            raise TypeError(f"fields is {fields!r}, must be the field of each position, (L,)")
        known = {name: k for k, name in enumerate(names)}
        for i, field in enumerate(fields):
            require(
                not isinstance(field, str) or field in known,
                f"fields[{i}] is {field!r}, must be one of {listed}",
            )
        fields = torch.tensor([known[v] if isinstance(v, str) else v for v in fields])
    if fields.dtype != torch.int64:
        raise TypeError(f"fields has dtype {fields.dtype}, must be torch.int64: field numbers")
    rule = "must be (L,) or (B, L), not empty"
    shape = tuple(fields.shape)
    require(len(shape) in (1, 2) and fields.numel() > 0, f"fields has shape {shape}, {rule}")
    wrong = (fields < 0) | (fields >= len(names))
    if bool(wrong.any()):
        raise ValueError(
            f"fields{wrong.nonzero()[0].tolist()} is {int(fields[wrong][0])}, a position without a "
            f"field: must be in [0, {len(names)}), for {listed}"
        )
    counts = torch.bincount(fields.flatten(), minlength=len(names)).tolist()
    missing = [name for name, count in zip(names, counts, strict=True) if not count]
    if complete and missing:
        raise ValueError(f"field {missing[0]!r} has no position in fields, must have at least one")
    return fields


def flatten(
    parts: Mapping[str, Mapping[str, ForwardProcess]],
    inner: Mapping[str, Tensor | None],
    numbers: Tensor | None,
) -> tuple[dict[str, ForwardProcess], Tensor | None]:
    """Return the processes of nested products by name, and the field of each position.

    Args:
        parts: the processes of each member, only itself for another process.
        inner: field of each of its positions, in their order; None where there is one field.
        numbers: member of each position; None for one member.
    """
    processes: dict[str, ForwardProcess] = {}
    result = None if numbers is None else torch.zeros_like(numbers)
    for k, (name, members) in enumerate(parts.items()):
        first = len(processes)
        processes |= members
        if numbers is None or result is None:
            return processes, inner[name]
        where = numbers == k
        fields = inner[name]
        if fields is None:
            result[where] = first
            continue
        count = where.sum(-1).flatten()
        require(
            bool((count == fields.shape[-1]).all()),
            f"field {name!r} is a product of {fields.shape[-1]} positions, and has {int(count[0])} "
            "in fields: must be equal",
        )
        result[where] = first + fields.expand(*numbers.shape[:-1], -1).flatten()
    return processes, result


def group(every: Sequence[ForwardProcess]) -> tuple[list[int], list[int]]:
    """Return the field whose process each group is evaluated by, and the group of each field.

    Equal processes are one group, and so are those that differ in the number of tokens alone, if
    their values do not depend on it (``ForwardProcess.widened``).
    """
    top = max(each.vocab_size for each in every)
    keys = []
    for each in every:
        learned = [id(parameter) for parameter in each.parameters()]
        keys.append(json.dumps([describe(each.widened(top)), learned]))
    order = list(dict.fromkeys(keys))
    fields = range(len(every))
    leaders = [
        max((k for k in fields if keys[k] == key), key=lambda k: every[k].vocab_size)
        for key in order
    ]
    return leaders, [order.index(key) for key in keys]

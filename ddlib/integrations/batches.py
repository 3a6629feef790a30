"""Collator of noisy batches for any training loop: it pads, and draws times and noise by key."""

from collections.abc import Iterable, Mapping, Sequence
from copy import copy, deepcopy
from typing import Any, Self

import torch
from jaxtyping import Int64
from torch import Tensor
from torch.utils.data import default_collate

from ddlib.config import difference
from ddlib.config.plain import describe
from ddlib.integrations.positions import POSITION
from ddlib.objective.given import hold_given
from ddlib.paces import Pace, Together
from ddlib.processes import ForwardProcess
from ddlib.times import TimeDensity
from ddlib.typing import GivenTokens, PaddingMask, Tokens
from ddlib.utils.random import KeyedGenerator
from ddlib.utils.validation import check_count, check_given, require, warn_once

_STEP = 1024
"""Sequences of a step in a loop that does not state them."""
READ = ("input_ids", "attention_mask", "given", POSITION)
"""Entries of an item that are not arguments of the network."""


_BITS = {torch.float32: torch.int32, torch.float64: torch.int64}
_FLOATS = {bits: dtype for dtype, bits in _BITS.items()}


class Targets(dict[str, Any]):
    """Labels of a noisy batch: all that ``DiffusionLoss`` takes besides the logits,
    ``sequence_bounds`` the network.

    ``x``, ``z``, ``mask`` and ``given`` (B, L), ``t`` and ``measure`` as ``paces.Draw`` has them,
    ``position`` (B,) if known, and ``conditions``, the network's other arguments by name.

    ``t`` and ``measure`` are read as floats, ``labels["t"]``, and stored as the integers of the
    same bits. So they are exact in loops that cast all float tensors of a batch, as Lightning does
    with "bf16-true", where a time above 0.998 would become 1.
    """

    def __init__(self, *args: Any, **entries: Any) -> None:
        super().__init__(*args, **entries)
        for name in ("t", "measure"):
            if name in self:
                stored: Tensor = super().__getitem__(name)
                self[name] = stored.view(_BITS.get(stored.dtype, stored.dtype))

    def __getitem__(self, name: str) -> Any:
        stored = super().__getitem__(name)
        return read_floats(name, stored) if name in ("t", "measure") else stored

    def ne(self, ignored: int) -> Tensor:
        """Return True at tokens that have a loss, as ``labels.ne(-100)``, by which the Trainer of
        transformers counts.
        """
        return self["mask"] & ~self["given"]


class DiffusionCollator:
    """Data collator: pads token ids, draws times and noise, and returns the network's inputs and
    the ``labels``.

    The noise of an item that has a ``position`` is a function of ``seed`` and position alone: that
    of ``KeyedGenerator(seed, position // batch_size, position)``. Items without one, e.g. of a
    streamed dataset, have noise from torch's global generator, which differs with the number of
    workers.

    Items have ``input_ids`` and may have an ``attention_mask``, and ``given``, True at tokens of
    the context, which are not noised and have no loss, such as the prompt of an answer. All other
    entries are collated and become arguments of the network, in training and in evaluation, such as
    ``label`` of a conditional ``DiT``. Padding is at the end, is noised and is an input of the
    network, as ``pad_token_id``; it counts in no loss.

    Args:
        process: the forward process. The collator keeps a copy, on the CPU.
        batch_size: sequences in one step of the optimizer, over all processes and accumulated
            batches. Times are stratified within a step. None: ``DiffusionTrainer`` and
            ``DiffusionDataModule`` set theirs; 1024 in other loops.
        seed: seed of times and noise.
        pad_token_id: the token at padded positions.
        pad_to_multiple_of: lengths are padded to a multiple of it; ``torch.compile`` then sees
            fewer shapes.
        density: density of the times; None is uniform.
        pace: order and times of the positions; None is one time for all.
        input_names: the network's arguments for states and times.

    Example:
        >>> import ddlib as dd
        >>> collate = DiffusionCollator(dd.presets.mdlm(9), batch_size=2)
        >>> items = [{"input_ids": [1, 2, 3], "position": 0}, {"input_ids": [4], "position": 1}]
        >>> batch = collate(items)
        >>> sorted(batch), batch["labels"]["mask"].tolist()
        (['labels', 't', 'z'], [[True, True, True], [True, False, False]])
    """

    def __init__(
        self,
        process: ForwardProcess,
        *,
        batch_size: int | None = None,
        seed: int = 0,
        pad_token_id: int = 0,
        pad_to_multiple_of: int = 1,
        density: TimeDensity | None = None,
        pace: Pace | None = None,
        input_names: tuple[str, str] = ("z", "t"),
    ) -> None:
        self.process: ForwardProcess = deepcopy(process).to("cpu")
        self.batch_size = None if batch_size is None else check_count("batch_size", batch_size)
        self.seed = seed
        self.pad_token_id = pad_token_id
        self.pad_to_multiple_of = pad_to_multiple_of
        self.density = density
        self.pace = Together() if pace is None else pace
        self.input_names = input_names
        last = process.vocab_size - 1
        require(
            0 <= pad_token_id <= last,
            f"pad_token_id is {pad_token_id}, must be a token, in [0, {last}]",
        )

    def for_step(self, size: int) -> Self:
        """Return a copy for steps of ``size`` sequences.

        Raises:
            ValueError: the collator was made for steps of another size.
        """
        require(
            self.batch_size in (None, size),
            f"batch_size of the DiffusionCollator is {self.batch_size}, must be {size}, the "
            "sequences of one step "
            "over all processes and accumulated batches: omit it",
        )
        collator = copy(self)
        collator.batch_size = size
        return collator

    def __call__(self, features: Sequence[Any]) -> dict[str, Any]:
        """Collate items of a dataset: mappings, or token ids alone.

        Raises:
            TypeError, ValueError: an item whose ids are not one sequence of integers, with other
                entries than the first one, or with the name of an entry that is returned, such as
                ``labels``.
        """
        items = [item if isinstance(item, Mapping) else {"input_ids": item} for item in features]
        first = items[0]
        for item in items:
            alike = item.keys() == first.keys()
            require(
                alike,
                f"items have {_join_names(first)} and {_join_names(item)}, must have the same "
                "entries",
            )
        x, mask, given = self.pad(items)
        position = None
        if POSITION in first:
            places = [item[POSITION] for item in items]
            position = _tensor(POSITION, places, "integers, of Positions")
        _check_order(position)
        z, t, measure = self.noise(x, position)
        z, t = hold_given(self.process.tokens_as_states(x), z, t, given)
        conditions = default_collate(
            [{name: item[name] for name in item if name not in READ} for item in items]
        )
        labels = Targets(
            x=x, z=z, t=t, mask=mask, given=given, measure=measure, conditions=conditions
        )
        if position is not None:
            labels[POSITION] = position
        inputs = dict(zip(self.input_names, (z, t), strict=True)) | {"labels": labels}
        for name in conditions:
            require(
                name not in inputs,
                f"an item has {name!r}, which the collator returns: leave it out, or rename it; a "
                "class is 'label', "
                "the argument of the network",
            )
        return {**conditions, **inputs}

    def pad(self, items: Sequence[Mapping[str, Any]]) -> tuple[Tokens, PaddingMask, GivenTokens]:
        """Return the token ids (B, L), the mask, True at real tokens, and True at given tokens.

        Raises:
            TypeError, ValueError: an item whose ids are not one sequence of integers; marks of
                another length or with other values than 0 and 1; a token given at padding.
        """
        rows = [_ids(item) for item in items]
        length = -(-max(map(len, rows)) // self.pad_to_multiple_of) * self.pad_to_multiple_of
        x = torch.full((len(rows), length), self.pad_token_id)
        mask = torch.zeros(x.shape, dtype=torch.bool)
        given = torch.zeros(x.shape, dtype=torch.bool)
        for row, (ids, item) in enumerate(zip(rows, items, strict=True)):
            x[row, : len(ids)] = ids
            mask[row, : len(ids)] = _marks(item, "attention_mask", len(ids), True)
            given[row, : len(ids)] = _marks(item, "given", len(ids), False)
        check_given(x, mask, given)
        if min(map(len, rows)) < length and bool((x[mask] == self.pad_token_id).any()):
            warn_once(
                "padding",
                f"pad_token_id is {self.pad_token_id}, which is also a token of the data: padding "
                "is an input of the "
                "network, where it looks like data; use a token that the data lacks, in a process "
                "with one more token",
            )
        return x, mask, given

    def noise(
        self, x: Tokens, position: Int64[Tensor, "B"] | None = None
    ) -> tuple[Tokens, Tensor, Tensor]:
        """Return states (B, L), times and their weights; see ``ddlib.paces.Draw``."""
        if position is None:
            return self._draw(x, None)
        # times are stratified among the rows of one generator, so each step has its own
        steps = position // (self.batch_size or _STEP)
        rows = [(steps == step).nonzero()[:, 0] for step in steps.unique()]
        keyed = [
            (part, KeyedGenerator(self.seed, int(steps[part[0]]), position[part])) for part in rows
        ]
        parts = [self._draw(x[part], generator) for part, generator in keyed]
        # from the order of steps to that of the batch
        back = torch.cat(rows).argsort()
        z, t, measure = (torch.cat(each)[back] for each in zip(*parts, strict=True))
        return z, t, measure

    def _draw(self, x: Tokens, generator: KeyedGenerator | None) -> tuple[Tokens, Tensor, Tensor]:
        t, measure, *_ = self.pace.draw(x.shape[0], x.shape[1], generator, density=self.density)
        return self.process.sample(x, t, generator), t, measure


def read_floats(name: str, stored: Tensor) -> Tensor:
    """Return times or their weights, which ``Targets`` stores as integers.

    Args:
        name: "t" or "measure".
        stored: the integers, or floats.

    Raises:
        TypeError: floats in half precision.
    """
    values = stored.view(_FLOATS.get(stored.dtype, stored.dtype))
    if values.dtype not in _BITS:
        raise TypeError(
            f"{name} of the labels has dtype {values.dtype}, must be float32 or float64: rounded, "
            "a time may become 1, where losses diverge; pass on the labels of the "
            "DiffusionCollator, and leave half precision to an autocast region"
        )
    return values


def check_process(holder: object, process: ForwardProcess) -> None:
    """Raise ValueError if a collator or a loss has another process: noise, loss and bound then do
    not belong together.

    A holder without a process, such as a function, is not checked.
    """
    expected = getattr(holder, "process", process)
    if change := difference(describe(expected), describe(process)):
        raise ValueError(f"the {type(holder).__name__} is for another process: {change}")


def _check_order(position: Int64[Tensor, "B"] | None) -> None:
    """Warn once of items without positions, and of positions in an order that is not that of
    training.
    """
    if position is None:
        warn_once(
            "no positions",
            "items have no position, so their noise is that of torch's global generator, which "
            "depends on the number "
            "of workers: wrap a dataset that has a length in Positions; ignore this for a stream",
        )
    elif int((position.diff() < 0).sum()) > 1:  # once where a sampler goes on at the first one
        warn_once(
            "positions shuffled",
            f"positions of a batch are {position[:8].tolist()}, must ascend: times are stratified "
            "over a step, whose "
            "positions follow each other; do not shuffle Positions, which are shuffled already",
        )


def _join_names(item: Iterable[str]) -> str:
    return ", ".join(map(str, item))


def _marks(item: Mapping[str, Any], name: str, length: int, default: bool) -> Tensor | bool:
    """Return the entry of an item that marks its tokens; ``default`` for all without it."""
    if name not in item:
        return default
    values = _tensor(name, item[name], "0 and 1 (L,), one for each of input_ids")
    require(
        values.shape == (length,),
        f"{name} has shape {tuple(values.shape)}, must be ({length},), one for each of input_ids",
    )
    marks = values.bool()
    require(
        bool((values == marks).all()),
        f"{name} is {values.tolist()!s:.60}, must hold 0 and 1",
    )
    return marks


def _ids(item: Mapping[str, Any]) -> Int64[Tensor, "n"]:
    """Return the token ids of an item."""
    require(
        "input_ids" in item, f"an item has {_join_names(item)}, must have input_ids, the token ids"
    )
    ids = _tensor("input_ids", item["input_ids"], "integers (L,), the token ids of a sequence")
    if ids.numel() and (ids.is_floating_point() or ids.is_complex()):
        raise TypeError(f"input_ids has dtype {ids.dtype}, must be integers: token ids")
    require(
        ids.ndim == 1,
        f"input_ids has shape {tuple(ids.shape)}, must be (L,): flatten a picture, ids.reshape(-1)",
    )
    return ids.long()


def _tensor(name: str, values: Any, rule: str) -> Tensor:
    """Return an entry of an item as a tensor; raise TypeError where torch finds no numbers."""
    try:
        if isinstance(values, tuple):  # such as an item of a TensorDataset
            raise TypeError
        return torch.as_tensor(values)
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"{name} is {values!r:.60}, must be {rule}") from None

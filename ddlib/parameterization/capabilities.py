"""Capabilities of a denoiser: one frozen record, read once in each call of the library."""

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import CellType, FunctionType
from typing import Self, TypeVar

import torch
from torch import Tensor, nn

from ddlib.paces import Pace
from ddlib.parameterization.logits import Parameterization, TokenLogits
from ddlib.parameterization.tree_softmax import Children, has_tree
from ddlib.processes import ForwardProcess
from ddlib.typing import (
    BlockDenoiser,
    GuidedDenoiser,
    OwnTimes,
    SparseDenoiser,
    SplitDenoiser,
    TakesMemory,
    WindowDenoiser,
    implements,
)
from ddlib.utils.validation import refuse, require, warn_once

Output = TypeVar("Output")

_EMPTY = CellType()  # a closure variable without a value yet


@dataclass(frozen=True)
class Capabilities:
    """Capabilities of a denoiser, as its attributes and the protocols of ``ddlib.typing`` state
    them.

    ``dd.sample``, ``dd.likelihood`` and ``dd.bound`` read them once. Nothing after that reads an
    attribute of the denoiser to find out what it supports.
    """

    name: str
    """Name in messages."""
    parameterization: Parameterization
    """Meaning of its logits: the attribute of that name, "cavity" without one."""
    states_meaning: bool
    """True if it has the attribute ``parameterization``."""
    own_times: bool
    """True if it takes a time per position (``typing.OwnTimes``)."""
    num_states: int
    """Number of states that it takes (attribute ``num_states``); 0 if it states none."""
    undrawn: tuple[int, ...]
    """Ids below the process's ``vocab_size`` that are no tokens (attribute ``undrawn``)."""
    processes: tuple[ForwardProcess, ...]
    """Process that it is made for (attribute ``process``); empty if it states none."""
    block_size: int
    """Number of positions of a block; 0 without blocks."""
    caches_blocks: bool
    """True for a ``typing.BlockDenoiser``, which can cache its computations for earlier blocks."""
    caches_windows: bool
    """True for a ``typing.WindowDenoiser``, which can evaluate a window with cached values around
    it.
    """
    is_split: bool
    """True for a ``typing.SplitDenoiser``, whose output layer can be restricted to some logits."""
    is_sparse: bool
    """True for a ``typing.SparseDenoiser``, whose features can be restricted to some positions."""
    tree: tuple[Tensor, ...] | None
    """Parents of the tree whose children it predicts; None unless it is a
    ``typing.ChildDenoiser``.
    """
    field_sizes: tuple[tuple[int, int], ...]
    """Numbers of states and of tokens of each field that it takes (attribute of that name); empty
    if it states none.
    """
    takes_memory: bool
    """True for a ``typing.TakesMemory``, whose features can depend on those of the previous
    call.
    """
    has_step_distribution: bool
    """True for a ``typing.GuidedDenoiser`` that defines the distribution of the next state
    directly.
    """
    shifts_rows: bool
    """True if rows begin at different columns (attribute ``shifts_rows``), behind padding; also of
    a part of a guidance.
    """
    modules: tuple[nn.Module, ...]
    """Modules that it is, has as attributes, closes over or refers to as global variables;
    processes and submodules excluded.
    """
    parts: Mapping[str, object]
    """Evaluated parts of a guidance, by argument name; empty for other denoisers."""

    @classmethod
    def of(cls, denoiser: object) -> Self:
        """Read the capabilities of a denoiser ``(z, t) -> logits``.

        Raises:
            TypeError: it cannot be called.
        """
        if not callable(denoiser):
            raise TypeError(
                f"denoiser is a {type(denoiser).__name__}, must be callable, (z, t) -> logits"
            )
        stated: Parameterization | None = getattr(denoiser, "parameterization", None)
        made_for = getattr(denoiser, "process", None)
        evaluated = getattr(denoiser, "evaluated_parts", {})
        is_split = implements(denoiser, SplitDenoiser)
        parts = dict(evaluated) if isinstance(evaluated, Mapping) else {}
        steers = implements(denoiser, GuidedDenoiser) and bool(
            getattr(denoiser, "has_step_distribution", True)
        )
        return cls(
            name=str(getattr(denoiser, "__qualname__", type(denoiser).__qualname__)),
            parameterization="cavity" if stated is None else stated,
            states_meaning=stated is not None,
            own_times=implements(denoiser, OwnTimes) and bool(denoiser.own_times),
            num_states=int(getattr(denoiser, "num_states", None) or 0),
            undrawn=tuple(getattr(denoiser, "undrawn", ())),
            processes=(made_for,) if isinstance(made_for, ForwardProcess) else (),
            block_size=int(getattr(denoiser, "block_size", None) or 0),
            caches_blocks=implements(denoiser, BlockDenoiser),
            caches_windows=implements(denoiser, WindowDenoiser),
            is_split=is_split,
            is_sparse=is_split and implements(denoiser, SparseDenoiser),
            tree=tuple(denoiser.tree or ()) if is_split and has_tree(denoiser) else None,
            field_sizes=tuple(getattr(denoiser, "field_sizes", ())),
            takes_memory=implements(denoiser, TakesMemory) and bool(denoiser.takes_memory),
            has_step_distribution=steers,
            shifts_rows=bool(getattr(denoiser, "shifts_rows", False))
            or any(cls.of(part).shifts_rows for part in parts.values()),
            modules=tuple(_modules(denoiser)),
            parts=parts,
        )

    def meaning(self, parameterization: Parameterization | None) -> Parameterization:
        """Return the meaning of the logits: as the denoiser states it, else as passed.

        Raises:
            ValueError: the denoiser states another one than is passed, or states none and calls a
                network that states another than "cavity".
        """
        if parameterization is None:
            self._check_inner()
            return self.parameterization
        require(
            not self.states_meaning or parameterization == self.parameterization,
            f"parameterization is {parameterization!r}, and the denoiser {self.name} states "
            f"{self.parameterization!r}, must be the same: omit the argument",
        )
        return parameterization

    def check_layout(self, layout: Children | TokenLogits) -> None:
        """Raise ValueError if the logits are those of the children of another tree than the
        denoiser's.
        """
        if isinstance(layout, Children) and self.tree is not None:
            layout.check(self.tree)

    def _check_inner(self) -> None:
        """Raise ValueError if a function or module without the attribute ``parameterization`` holds
        a network whose logits are no cavity logits: whether it converts them is not known.
        """
        if self.states_meaning:
            return
        for module in self.modules:
            for part in module.modules():
                stated = getattr(part, "parameterization", None) or "cavity"
                require(
                    stated == "cavity",
                    f"the denoiser {self.name} does not state its parameterization, and calls "
                    f"{type(part).__name__}, which states {stated!r}: pass parameterization, as "
                    f"{stated!r} if the logits are returned as they are",
                )

    def check_process(self, process: ForwardProcess) -> None:
        """Raise ValueError if the denoiser, or a part of a guidance, states another number of
        states, other sizes of fields or another process.

        Args:
            process: process that it is called for.
        """
        require(
            self.num_states in (0, process.num_states),
            f"the denoiser {self.name} has num_states={self.num_states}, the process "
            f"{process.num_states}: must be equal",
        )
        sizes = tuple(
            (each.process.num_states, each.process.vocab_size) for each in process.components
        )
        require(
            self.field_sizes in ((), sizes),
            f"the denoiser {self.name} has fields with {list(self.field_sizes)} states and "
            f"tokens, the process {list(sizes)}: must be equal, in this order",
        )
        for made_for in self.processes:
            require(
                made_for is process or repr(made_for) == repr(process),
                f"the denoiser {self.name} is made for {made_for!r}, must be made for the process "
                f"that it is called for, {process!r}",
            )
        for part in self.parts.values():
            Capabilities.of(part).check_process(process)

    def check_tokens(self, name: str, tokens: Tensor, given: Tensor) -> None:
        """Raise ValueError if an id that the denoiser never draws is given.

        Args:
            name: name of the tokens in the message.
            tokens: (B, L) ids.
            given: (B, L) bool, True where they count.
        """
        undrawn = torch.tensor(self.undrawn, device=tokens.device)
        wrong = given & torch.isin(tokens, undrawn)
        if bool(wrong.any()):
            row, position = (int(i) for i in wrong.nonzero()[0])
            refuse(
                f"{name} holds the id {int(tokens[row, position])} at position {position} of row "
                f"{row}, which is not a token for the denoiser {self.name}, must be a token, or "
                "the mask's state where one is drawn: special.states converts ids of a tokenizer"
            )

    def check_time_input(self, clean: int, caller: str) -> None:
        """Raise TypeError unless the denoiser takes a time per position and, if required, the clean
        sequence.

        Args:
            clean: number of positions of a block, if the denoiser takes the clean sequence too; 0
                if it does not.
            caller: name of the caller in error messages.
        """
        if not self.own_times:
            raise TypeError(self.lacking_times(caller))
        if clean and self.block_size != clean:
            raise TypeError(
                f"at_once is True with {caller}, and the denoiser {self.name} has block_size "
                f"{self.block_size or None}, must be {clean}: a block may depend on its noisy "
                "states and on the clean "
                "tokens of earlier blocks only"
            )

    def lacking_times(self, caller: str) -> str:
        """Return the message for a denoiser, or a part of a guidance, with one time per sequence.

        Args:
            caller: name of the caller.
        """
        parts = {name: Capabilities.of(part) for name, part in self.parts.items()}
        lacking = [
            f"{name} of {self.name}, {part.name},"
            for name, part in parts.items()
            if not part.own_times
        ]
        lacks = lacking[0] if lacking else f"denoiser {self.name}"
        return (
            f"{caller} has one time per position, and the {lacks} takes one time per sequence: a "
            "network that takes t (B, L) must have the attribute own_times = True, as "
            "ddlib_models.DiT does"
        )

    def check_blocks(self, pace: Pace | None, length: int) -> None:
        """Warn once of a pace at which a denoiser with blocks, or a part of a guidance, gets noise
        in the blocks before a position.

        Args:
            pace: order of the positions; None for one time for all.
            length: positions of a sequence.
        """
        for part in self.parts.values():
            Capabilities.of(part).check_blocks(pace, length)
        block = length if pace is None else pace.block or length
        if length > self.block_size > 0 and self.block_size % block:
            warn_once(
                f"blocks of {self.name} at {pace!r}",
                f"pace is {pace!r}, and the denoiser {self.name} has blocks of {self.block_size}: "
                "it was trained with "
                "clean tokens in the blocks before a position, which here are noise. Use pace="
                f"Blocks({self.block_size}), or a divisor of its size",
            )

    @property
    def in_training(self) -> bool:
        """True if any part of the modules is in train mode now."""
        return any(part.training for module in self.modules for part in module.modules())

    @contextmanager
    def evaluating(self, device: torch.device, caller: str) -> Iterator[None]:
        """Warn, once per model, of a module in train mode that behaves as in training in the calls.

        It does so if it draws from torch's global state, as dropout does, or writes to its buffers,
        as batch normalisation does. This is detected by behaviour, not by the type of the modules:
        a module in train mode that does neither computes the same as in eval mode.
        """
        if torch.compiler.is_compiling() or not self.in_training:
            yield
            return
        before = _random_state(device), self._writes()
        yield
        drew = not torch.equal(before[0], _random_state(device))
        wrote = before[1] != self._writes()
        if drew or wrote:
            does = (
                "draws random numbers, as dropout"
                if drew
                else "writes to its buffers, as batch normalisation"
            )
            warn_once(
                ("train mode", weakref.ref(self.modules[0])),
                f"{caller}: the denoiser {self.name} is in train mode and {does} does; its result "
                "is not that of the "
                "trained network: call model.eval() before, and model.train() after",
            )

    def check_states(
        self, process: ForwardProcess, z: Tensor, call: Callable[[Tensor], object]
    ) -> None:
        """Raise ValueError if a call that failed on states z (B, L) succeeds on tokens 0: the
        denoiser lacks states.
        """
        if succeeds(lambda: call(torch.zeros_like(z))):
            size = process.num_states
            raise ValueError(
                f"the denoiser {self.name} fails on states that it must take: z holds states in "
                f"[0, {size}), the "
                f"{process.vocab_size} tokens first, so a network must have num_states={size}, "
                "such as "
                f"nn.Embedding({size}, dim)"
            )

    def at_rows(self, kept: Tensor, call: Callable[[Tensor], Output]) -> Output:
        """Evaluate the denoiser at some rows of a batch.

        Args:
            kept: (B,) bool, True at these rows.
            call: evaluates the denoiser at the rows of such a tensor.

        Raises:
            ValueError: it fails on these rows and not on all: it uses the number of the row.
        """
        try:
            return call(kept)
        except (RuntimeError, ValueError, IndexError) as error:
            some = not bool(kept.all())
            is_named = "WholeBatch" in str(error)
            if some and not is_named and succeeds(lambda: call(torch.ones_like(kept))):
                raise ValueError(
                    f"the denoiser {self.name} fails on {int(kept.sum())} of {len(kept)} sequences "
                    "and not on all of "
                    "them: sequences without a jump in a step are left out of the batch, so a "
                    "condition per row, "
                    "such as a label, requires dd.sample(..., controls=[dd.controls.WholeBatch()])"
                ) from error
            raise

    def check_graph(self, values: Tensor, caller: str) -> None:
        """Warn once if the result of a network in eval mode keeps its autograd graph.

        A result with a graph is correct and required for training on a bound: in train mode there
        is no warning.
        """
        if not values.requires_grad or torch.compiler.is_compiling() or not self.modules:
            return
        if not any(module.training for module in self.modules):
            warn_once(
                "graph",
                f"{caller}: the denoiser {self.name} is in eval mode and its result keeps the "
                "autograd graph, and "
                "with it the memory of the forward pass: call it under torch.no_grad(), or ignore "
                "this where it is "
                "differentiated",
            )

    def _writes(self) -> int:
        """Number of writes to buffers."""
        buffers = [buffer for module in self.modules for buffer in module.buffers()]
        return sum(0 if buffer.is_inference() else buffer._version for buffer in buffers)


def warn_of_alias(denoiser: object, reference: object) -> None:
    """Warn once of a reference that is the denoiser itself or shares all of its parameters, and
    changes with it.
    """
    shared = denoiser is reference
    if isinstance(denoiser, nn.Module) and isinstance(reference, nn.Module):
        own = {id(parameter) for parameter in denoiser.parameters()}
        shared = shared or own == {id(parameter) for parameter in reference.parameters()} != set()
    if shared and torch.is_grad_enabled():
        warn_once(
            "alias",
            "reference has the parameters of the denoiser and changes with it, so that it differs "
            "by 0 at every step: it must be a copy, copy.deepcopy(denoiser)",
        )


def succeeds(call: Callable[[], object]) -> bool:
    """Return whether a call raises no error; for calls after an error, to find its cause."""
    try:
        call()
    except Exception:
        return False
    return True


def _modules(denoiser: object, depth: int = 3) -> Iterator[nn.Module]:
    """Yield the modules that a callable is, has as attributes or closes over.

    Processes and submodules excluded.
    """
    if isinstance(denoiser, nn.Module):
        if not isinstance(denoiser, ForwardProcess):
            yield denoiser
    elif depth and denoiser is not None:
        cells = getattr(denoiser, "__closure__", None) or ()
        names = getattr(getattr(denoiser, "__code__", None), "co_names", ())
        variables = getattr(denoiser, "__globals__", {})
        held = [
            getattr(denoiser, "__self__", None),
            getattr(denoiser, "func", None),
        ]  # of methods and partials
        held += [cell.cell_contents for cell in cells if cell != _EMPTY]
        used = [variables[name] for name in names if name in variables]
        held += [one for one in used if isinstance(one, (nn.Module, FunctionType))]
        held += getattr(denoiser, "__dict__", {}).values()
        for one in held:
            for part in one if isinstance(one, (list, tuple)) else [one]:
                if callable(part):
                    yield from _modules(part, depth - 1)


def _random_state(device: torch.device) -> Tensor:
    """State of torch's global generator on a device."""
    return (
        torch.get_rng_state()
        if device.type == "cpu"
        else torch.get_device_module(device).get_rng_state(device)
    )

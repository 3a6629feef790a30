"""Denoiser that is evaluated only at the rows and positions that change."""

import copy
from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol, Self, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ddlib.parameterization.capabilities import Capabilities
from ddlib.parameterization.logits import Parameterization, layout_of, to_cavity
from ddlib.parameterization.tree_softmax import Children
from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.samplers.runtime.logit_processors import LogitProcessors
from ddlib.samplers.runtime.output_layer import FullOutput, Head
from ddlib.typing import Denoiser, GuidedDenoiser, Logits, SplitDenoiser, Times, Tokens

_HELD = 1 << 24
"""Number of logits in memory at a time."""


@runtime_checkable
class Call(Protocol):
    """Call of a denoiser: features of a ``SplitDenoiser``, logits of another."""

    def __call__(
        self, z: Tokens, t: Times, positions: Tensor | None = None, **options: Any
    ) -> Float[Tensor, "B n K"]:
        """Compute the output at some positions (B, n) of a ``SparseDenoiser``, or at all.

        ``options`` are the cache or the memory that the denoiser takes.
        """
        ...


class FullContext:
    """Model input without a context: the tokens of the sampler are the full sequence."""

    first: int = 0
    """Position in the sequence of the sampler's first token."""

    repeatable: bool = True
    """True if equal states and times have equal outputs."""

    def without_values(self) -> "FullContext":
        """Return the same context without values of the network."""
        return self

    def states(self, z: Tokens) -> Int64[Tensor, "B n"]:
        """Return the sequences that contain the tokens.

        Unknown positions hold numbers that are not tokens.
        """
        return z

    def output(
        self,
        call: Call,
        z: Tokens,
        t: Times,
        rows: Tensor | None = None,
        positions: Tensor | None = None,
    ) -> Float[Tensor, "B n K"]:
        """Evaluate the denoiser at the tokens of the sampler.

        Args:
            call: the call of the denoiser.
            z: (B, L) states.
            t: (B,) times, or (B, L).
            rows: bool, True at the rows of the batch that z and t are; None for all.
            positions: (B, n), at which a ``SparseDenoiser`` is evaluated; None for all.
        """
        return call(z, t, positions)


class Evaluation(NamedTuple):
    """Output of the denoiser at some positions, with the states and times that it depends on."""

    z: Int64[Tensor, "B L"]
    t: Times
    output: Float[Tensor, "N K"]
    """Features of a split denoiser, logits of another."""
    slot: Int64[Tensor, "B L"]
    """Row of each position in the output; -1 where the denoiser was not evaluated."""

    def holds(self, z: Tokens, t: Times, where: Bool[Tensor, "B L"]) -> bool:
        """Return whether it has the output at these positions, for equal states and times."""
        return (
            torch.equal(self.t, t)
            and torch.equal(self.z, z)
            and not bool((where & (self.slot < 0)).any())
        )


class Model:
    """Denoiser as samplers evaluate it: checked logits of the cavity distribution, float32 or
    float64.

    A call ``(z, t) -> logits`` evaluates every position. ``at`` evaluates selected positions: the
    denoiser runs only on the sequences that contain them, and only their logits are used and
    checked. With a ``SplitDenoiser`` no other logits are computed. The last output is kept, and
    returned for positions that it has at equal states and times.

    Args:
        process: the forward process.
        denoiser: ``(z, t) -> logits``, split or not.
        parameterization: meaning of the logits, as in ``nelbo``; None for the one that the denoiser
            states.
        compact: whether sequences without a selected position are left out of the batch.
        logit_processors: forbidden tokens and repetition penalty; None for neither.
        context: context of the tokens in the model input; by default the tokens alone.

    Raises:
        ValueError: an unknown parameterization, an output layer for another vocabulary or tree.
    """

    def __init__(
        self,
        process: ForwardProcess,
        denoiser: Denoiser,
        parameterization: Parameterization | None = "cavity",
        compact: bool = False,
        logit_processors: LogitProcessors | None = None,
        context: FullContext | None = None,
    ) -> None:
        self.process = process
        self.denoiser = denoiser
        self.compact = compact
        self.logit_processors = logit_processors
        self.capabilities = Capabilities.of(denoiser)
        self.capabilities.check_process(process)
        self.parameterization = self.capabilities.meaning(parameterization)
        self.context = FullContext() if context is None else context
        self.layout = layout_of(process, self.parameterization)
        self.capabilities.check_layout(self.layout)
        self.head = FullOutput(process, self.layout)
        if self.capabilities.is_split:
            self.head = Head(
                process,
                cast(SplitDenoiser, denoiser),
                self.layout,
                self.capabilities.tree is not None,
            )
        self.tree_levels = [-1] * len(process.levels)
        """Level of the output's tree for each level of the process, -1 where there is none."""
        if isinstance(self.layout, Children) and isinstance(process, LevelProcess):
            levels = self.layout.levels_of(process.hierarchy)
            self.tree_levels = [-1 if level is None else level for level in levels]
        self.first_state = 0
        """Number, among the states of the sequences, of the process's state 0."""
        self._trains = self.capabilities.in_training
        self._last: Evaluation | None = None
        self._descents: dict[tuple[bool, bool], Tensor] = {}

    def within(self, context: FullContext) -> Self:
        """Return a model of the same denoiser whose input has another context."""
        model = copy.copy(self)
        model.context = context
        model._last = None
        return model

    def step_log_probs(
        self, z: Tokens, t: Times, s: Times, rows: Bool[Tensor, "B"]
    ) -> Float[Tensor, "n L S"]:
        """Compute log-probabilities of z_s at some rows, not normalised, of a denoiser that defines
        them.
        """
        step = cast(GuidedDenoiser, self.denoiser).step_distribution
        return self.capabilities.at_rows(rows, lambda i: step(z[i], t[i], s[i]))

    def __call__(self, z: Tokens, t: Times) -> Logits:
        """Compute the logits over tokens at every position, (B, L, V)."""
        last = self._last
        if last is not None and last.holds(z, t, torch.ones_like(z, dtype=torch.bool)):
            output = last.output[last.slot.flatten()]
        else:
            output = self._run(z, t.to(torch.get_default_dtype())).flatten(0, 1)
        rows = self.head.all_logits(output).view(*z.shape, -1)
        logits = to_cavity(self.process, self.layout, rows, z, t)
        change = self.logit_processors
        return (
            logits
            if change is None
            else change.everywhere(logits, self.context.states(z), self.context.first)
        )

    def at(self, z: Tokens, t: Times, where: Bool[Tensor, "B L"]) -> Iterator["Predictions"]:
        """Evaluate the model at selected positions; no network call if there are none.

        Args:
            z: (B, L) states.
            t: (B,) times, or (B, L).
            where: (B, L) bool, the selected positions.

        Yields:
            predictions at chunks of N positions.
        """
        if not bool(where.any()):
            return
        _, _, output, slot = self._evaluate(z, t, where)
        whole = z[:, :0] if self.logit_processors is None else self.context.states(z)
        for part, here in self._parts(z, where):
            for chunk in here.nonzero().split(max(1, _HELD // self.process.vocab_size)):
                b, i = chunk.unbind(1)
                times = t[b] if t.ndim == 1 else t[b, i]
                rows = part.head.narrow(output[slot[b, i]])
                own = z[b, i] - part.first_state
                yield Predictions(part, rows, b, i, own, times, whole[b])

    def _parts(
        self, z: Tokens, where: Bool[Tensor, "B L"]
    ) -> Iterator[tuple["Model", Bool[Tensor, "B L"]]]:
        """Yield the models of the components that selected positions have, and these positions."""
        number = len(self.process.components)
        if number == 1:
            yield self._of_component(0), where
            return
        component = self.process.component_of(z)
        for k in range(number):
            here = where & (component == k)
            if bool(here.any()):
                yield self._of_component(k), here

    def _of_component(self, number: int) -> "Model":
        """Return a model whose process, states and logits are those of a component."""
        process, first_state, _ = self.process.components[number]
        if process is self.process:
            return self
        model = copy.copy(self)
        model.process = process
        model.first_state = first_state
        model.layout = layout_of(process, self.parameterization)
        model.head = self.head.of_component(number, model.layout)
        model.tree_levels = [-1] * len(process.levels)
        model._descents = {}
        return model

    def _evaluate(self, z: Tokens, t: Times, where: Bool[Tensor, "B L"]) -> Evaluation:
        """Evaluate the denoiser at selected positions, at least one, or return its last output if
        it has them.
        """
        if self._last is not None and self._last.holds(z, t, where):
            return self._last
        self._last = None  # so that its memory is free for the next
        times = t.to(torch.get_default_dtype())
        rows = where.any(-1) if self.compact else torch.ones_like(where[:, 0])
        known = rows[:, None].expand_as(where)
        positions = None
        if self._is_sparse:  # the selected positions first; others pad the shorter rows
            known = where
            positions = where.int().argsort(dim=1, descending=True, stable=True)
            positions = positions[:, : int(where.sum(1).max())]
        if bool(rows.all()):
            output = self._run(z, times, positions)
        else:
            output = self.capabilities.at_rows(
                rows,
                lambda i: self._run(z[i], times[i], None if positions is None else positions[i], i),
            )
        start = (rows.cumsum(0) - 1) * output.shape[1]
        slot = torch.where(known, start[:, None] + known.cumsum(1) - 1, -1)
        evaluation = Evaluation(z.clone(), t, output.flatten(0, 1), slot)
        self._last = evaluation if self.context.repeatable else None
        return evaluation

    def can_descend_tree(self, force: bool, single: bool) -> Bool[Tensor, "levels levels"]:
        """Return the pairs of levels, from (rows) and to (columns), with descents that need child
        logits only.

        There are none without child logits, or on an accelerator, where one kernel over all states
        is faster than several for every group of siblings.

        Args:
            force: whether tokens are kept inside their clusters.
            single: whether only descents by one level of the tree count.
        """
        if (force, single) not in self._descents:
            self._descents[force, single] = self._tree_descents(force, single)
        return self._descents[force, single]

    def _tree_descents(self, force: bool, single: bool) -> Bool[Tensor, "levels levels"]:
        process = self.process
        table = torch.zeros(len(process.levels), len(process.levels), dtype=torch.bool)
        if not isinstance(process, LevelProcess) or not self._narrows:
            return table
        for level, top in enumerate(self.tree_levels):
            for target, bottom in enumerate(self.tree_levels[:level]):
                steps = 0 if -1 in (top, bottom) else top - bottom
                if steps == 1 or (steps > 1 and not single):
                    table[level, target] = process.subtree_logits_suffice(level, target, force)
        return table

    def num_child_draws(self, force: bool) -> int:
        """Return the number of uniforms for the children below the first one in a descent of
        several edges; 0 where no such descent goes from child to child.
        """
        several = bool(self.can_descend_tree(force, single=False).any())
        return max(self.tree_levels) - 1 if several else 0

    def can_restrict_columns(self, level: int, force: bool) -> bool:
        """Return whether the logits of the tokens below a state of this level alone determine its
        token.

        False also where fewer columns are not faster, as in ``can_descend_tree``.
        """
        process = self.process
        if (
            isinstance(self.layout, Children)
            or not isinstance(process, LevelProcess)
            or not self._narrows
        ):
            return False
        return level < len(process.levels) - 1 and process.subtree_logits_suffice(level, 0, force)

    @property
    def _narrows(self) -> bool:
        """True if fewer logits may be faster; logit processors need all of them."""
        return self.process.device.type == "cpu" and self.logit_processors is None

    @property
    def _is_sparse(self) -> bool:
        """True if features are computed at selected positions alone, which is faster on a CPU."""
        return self.capabilities.is_sparse and self.process.device.type == "cpu"

    def _run(
        self, z: Tokens, t: Times, positions: Tensor | None = None, rows: Tensor | None = None
    ) -> Float[Tensor, "B n K"]:
        """Compute features or logits of some rows, at some positions of a ``SparseDenoiser``.

        A warning if the network is in training mode, a named error if it lacks states.
        """

        def call(z: Tokens) -> Tensor:
            return self.context.output(self._call, z, t, rows, positions)

        try:
            if self._trains:
                with self.capabilities.evaluating(z.device, "dd.sample or dd.likelihood"):
                    output = call(z)
            else:
                output = call(z)
        except IndexError:
            self.capabilities.check_states(self.process, z, call)
            raise
        self.head.check(output, z, (z if positions is None else positions).shape[1])
        return output

    def _call(self, z: Tokens, t: Times, positions: Tensor | None = None, **options: Any) -> Tensor:
        """Call the denoiser; one that is not split takes a cache by ``extend``."""
        denoiser: Any = self.denoiser
        z = z.clone()  # a denoiser may write into its input
        if positions is not None:
            return denoiser.features_at(z, t, positions, **options)
        if self.capabilities.is_split:
            return denoiser.features(z, t, **options)
        return denoiser.extend(z, t, **options) if options else denoiser(z, t)


class Predictions(NamedTuple):
    """Model output at N positions; logits are computed on demand."""

    network: Model
    output: Float[Tensor, "N K"]
    """Features of a split denoiser, logits of another."""
    b: Int64[Tensor, "N"]
    """Indices of their sequences."""
    i: Int64[Tensor, "N"]
    """Their positions in the sequences."""
    z: Int64[Tensor, "N"]
    """Their states, those of the process of ``network``."""
    t: Float[Tensor, "N"]
    """Their times."""
    states: Int64[Tensor, "N L"]
    """Sequences that contain them, for logit processors; (N, 0) without processors."""

    def as_states(self, own: Int64[Tensor, "N"]) -> Int64[Tensor, "N"]:
        """Return states of the sequences, given those of the process of ``network``."""
        return own + self.network.first_state

    def take(self, some: Tensor) -> "Predictions":
        """Select some of the positions."""
        return Predictions(self.network, *(column[some] for column in self[1:]))

    def within(self, where: Bool[Tensor, "B L"]) -> Iterator["Predictions"]:
        """Yield the predictions at those of the positions that are in ``where``, if any are."""
        here = where[self.b, self.i]
        if bool(here.any()):
            yield self.take(here)

    def token_logits(
        self, target: Int64[Tensor, "N"], force: bool = False
    ) -> Float[Tensor, "N 1 V"]:
        """Compute cavity logits over tokens, possibly -inf at irrelevant tokens, see
        ``subtree_logits_suffice``.

        Args:
            target: (N,) the level to which each position descends.
            force: whether tokens are kept inside their clusters.
        """
        network = self.network
        rows = network.head.logits(self.output, self.z, target, force)
        logits = to_cavity(network.process, network.layout, rows[:, None], self.z[:, None], self.t)
        if network.logit_processors is None:
            return logits
        return network.logit_processors(logits[:, 0], self.states, self.i + network.context.first)[
            :, None
        ]

    def family(
        self, level: int, parent: Int64[Tensor, "N"]
    ) -> tuple[Float[Tensor, "N K"], Int64[Tensor, "N K"]]:
        """Compute the child logits of one parent per position, padded with -inf, and the indices of
        the children.

        Args:
            level: level of the children in the tree of the output.
            parent: (N,) index of each position's parent in the level above.
        """
        return self.network.head.family(self.output, level, parent)

    def under(self) -> tuple[Float[Tensor, "N K"], Int64[Tensor, "N K"]]:
        """Compute the logits of the tokens below each state, padded with -inf, and the indices of
        the tokens.
        """
        return self.network.head.under(self.output, self.z)

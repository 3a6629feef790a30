"""Training states along the order of a sampler, with true tokens in place of drawn ones."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.paces import Draw
from ddlib.parameterization.logits import Parameterization
from ddlib.parameterization.tree_softmax import Children
from ddlib.processes import ForwardProcess, LevelProcess, identity
from ddlib.samplers.base import Sampler, SamplingContext, level_process
from ddlib.samplers.choices import finite_log
from ddlib.samplers.ordered import Ordered, model_time
from ddlib.samplers.runtime.model import Model, Predictions
from ddlib.typing import Denoiser, PaddingMask, Times, Tokens
from ddlib.utils.random import KeyedGenerator, rand
from ddlib.utils.validation import check_count, check_padding, check_shape, require
from ddlib.weightings import Constant

_ROWS, _HELD = 64, 1 << 22
"""Number of one-hot distributions, and of logits, in memory at a time."""
_AGES, _FIRST, _LATER = range(3)
"""Streams of random numbers: for the start, for new states after it, for the noise of the order."""


_RANDOM_NOISE = "for other processes train on random noise, with ddlib.training_loss"


def check_order(process: ForwardProcess, order: Sampler) -> None:
    """Raise unless rows of the process can descend in this order: the process starts at the mask
    alone.

    Raises:
        TypeError: a sampler without an order; a process without levels.
        ValueError: a process that does not start at the mask, or whose edges act in windows of
            time; an order whose choice depends on a time grid, or that edits tokens.
    """
    if not isinstance(order, Ordered):
        raise TypeError(
            f"order is {order!r}, must be a sampler that chooses the next position, such as "
            "Confidence() or "
            f"LeftToRight(); {_RANDOM_NOISE}"
        )
    if not isinstance(process, LevelProcess):
        raise TypeError(
            f"an order needs a process with levels, {process!r} has none; {_RANDOM_NOISE}"
        )
    if len(process.components) > 1:
        raise TypeError(f"an order needs the same tokens at all positions, {process!r} has fields")
    require(
        process.levels[-1] == 1 and process.exact_ends,
        f"an order needs a process with only masks at t = 1, {process!r} has others; "
        f"{_RANDOM_NOISE}",
    )
    require(
        all(schedule.support == (0, 1) for schedule in process.schedules),
        f"an order needs edges that act at all times, {process!r} has windows, where states of two "
        "stages have no loss "
        f"at one time; {_RANDOM_NOISE}",
    )
    require(
        order.guarantees.keeps_tokens,
        f"order is {order!r}, must keep drawn tokens: edit is only for sampling, omit it",
    )
    require(
        not order.guarantees.by_times,
        f"order is {order!r}, must choose without a time grid, which training does not have: omit "
        "per_step",
    )


class TrainingRows:
    r"""Rows of a batch that descend from noise to data along the order of a sampler, with true
    tokens.

    A network that is trained on random noise learns many contexts that samplers with an order never
    reach. Here a row of the batch is a sequence x with its current states z. One network call gives
    the loss at z and the scores by which the order chooses the positions that descend next. These
    take their true states (teacher forcing), and a finished row is replaced by a new sequence. No
    further call is needed. The minimiser of the loss at a state is unchanged; the states that are
    visited change (PUMA, arXiv 2602.10314, for masks; here for every hierarchy, theory section 18).
    As there, a new sequence begins with a few tokens at random positions: fewer than ``per_step``
    edges.

    A loop calls the network at ``z`` and ``t``, ``training_loss`` with ``draw`` and
    ``loss_options``, then
    ``step`` and ``replace``. Rows begin at states of different progress, spread evenly over the
    batch.

    Args:
        process: process with levels that starts at the mask.
        order: an ordered sampler, such as ``Confidence()`` or ``LeftToRight()``; its temperature is
            part of the order.
        x: (B, L) first sequences.
        mask: (B, L) bool, True at real tokens; padding is fixed from the beginning. None if all
            tokens are real.
        per_step: least number of edges that a row descends in a step; an order with a threshold
            selects more.
        parameterization: meaning of the network's logits, as in ``nelbo``.
        seed: seed of all random numbers, which depend on (seed, number of steps, row) alone.
        index: (B,) numbers of the rows in a batch that is divided over processes or micro-batches;
            default 0..B-1.
        total: number of rows of the whole batch; default B.

    Raises:
        TypeError: a sampler without an order, a process without levels.
        ValueError: a process that does not start at the mask; an order that needs a time grid; bad
            x, mask, per_step, index or total.

    Example:
        >>> import ddlib as dd
        >>> process, x = dd.presets.mdlm(5), torch.arange(8).view(2, 4) % 5
        >>> rows = dd.contrib.TrainingRows(process, dd.samplers.LeftToRight(), x)
        >>> for _ in range(3):
        ...     logits = torch.zeros(2, 4, 5)  # network(rows.z, rows.t)
        ...     drawn = rows.draw()
        ...     options = rows.loss_options()
        ...     loss = dd.training_loss(process, logits, rows.x, rows.z, drawn, **options)
        ...     finished = rows.step(logits)
        ...     rows.replace(finished, x[finished])
        >>> rows.z
        tensor([[0, 1, 2, 5],
                [4, 5, 5, 5]])
    """

    check = staticmethod(check_order)

    def __init__(
        self,
        process: ForwardProcess,
        order: Sampler,
        x: Tokens,
        mask: PaddingMask | None = None,
        *,
        per_step: int = 1,
        parameterization: Parameterization = "cavity",
        seed: int = 0,
        index: Int64[Tensor, "B"] | None = None,
        total: int | None = None,
    ) -> None:
        check_order(process, order)
        assert isinstance(order, Ordered) and isinstance(process, LevelProcess)
        process.check_inputs(x=x)
        check_padding(x, mask)
        self.process = process
        self.order = order
        self.parameterization = parameterization
        self.per_step = check_count("per_step", per_step)
        self.seed = check_count("seed", seed, 0)
        self.steps = 0
        self.index: Tensor = torch.arange(len(x), device=x.device) if index is None else index
        check_shape("index", self.index, (len(x),), "(B,), the number of each row")
        self.total = len(x) if total is None else check_count("total", total)
        self._network = Model(process, _not_called, parameterization)
        self._unique = all(
            process.subtree_logits_suffice(j, j - 1) for j in range(1, self._depth + 1)
        )
        self.x = x.clone()
        self.free = torch.ones_like(x, dtype=torch.bool) if mask is None else mask.clone()
        state = order.init(self._context(_AGES))
        self._memo = state.memo
        self.z = torch.where(self.free, state.z, x)
        self._t = state.t
        self._score = self._unknown()
        # rows of different progress, so that not all of them start from masks at once
        number = torch.div(self._edges * self.index, self.total, rounding_mode="floor")
        self._descend_at_random(number, self._context(_FIRST))
        self._current = self._context(_LATER)

    def draw(self, mode: str = "standard") -> Draw:
        """Return the argument t of ``training_loss`` for these states: times and weights.

        The weight of a row is the number of its edges over the number of those whose loss the mode
        sums. The sum over the positions of a row thus estimates the sum over all steps of its
        sequence. In "standard" its mean over the states of a sequence, one for each step in a
        random order, is an upper bound of -log p(x); for masks the ordinary bound. In the other
        modes it is a loss, not a bound, with one weight for all edges of a row.

        Args:
            mode: "standard": the loss of the next edge of every position that is not a token yet.
                "edges" and "hard": of all edges below it, as in ``training_loss``.
        """
        level = self.levels
        summed = (level > 0).sum(-1) if mode == "standard" else level.sum(-1)
        return Draw(self.t, self._edges.to(torch.float64) / summed.clamp_min(1))

    def loss_options(self, mode: str = "standard") -> dict[str, Any]:
        """Return the keyword arguments of ``training_loss`` for these states.

        Args:
            mode: as in ``draw``.
        """
        return dict(
            weighting=Constant(),
            mode=[1.0] * self._depth if mode == "edges" else mode,
            mask=self.free,
            parameterization=self.parameterization,
        )

    @property
    def t(self) -> Times:
        """Time of each row for the network, (B,), in the default dtype."""
        return self._t.to(torch.get_default_dtype())

    @property
    def levels(self) -> Int64[Tensor, "B L"]:
        """Number of edges that remain at each position, 0 at tokens and at padding."""
        return torch.where(self.free, self.process.level_of(self.z), 0)

    @property
    def observe(self) -> Callable[[Tensor | slice | None, Tensor, Tensor], None] | None:
        """Function that reads scores at ``z`` and ``t``, so that ``step`` computes them for other
        positions only.

        An argument of ``ddlib.Hidden``, which normalises the logits anyway. None for an
        order without scores, and for child logits, which are not read.
        """
        if not self.order.scoring.reads or isinstance(self.parameterization, Children):
            return None
        return self._observe

    @torch.no_grad()
    def _observe(
        self, columns: Tensor | slice | None, index: Int64[Tensor, "n"], probs: Float[Tensor, "n K"]
    ) -> None:
        """Read scores of some positions, given by their indices in the flattened batch.

        Args:
            columns: tokens of the distributions; None for all.
            index: (n,) indices of the positions.
            probs: (n, K) probabilities over these tokens.
        """
        b = index // self.z.shape[1]
        i = index % self.z.shape[1]
        all_columns = columns is None or columns == slice(None)
        if self._depth == 1 or (
            not all_columns and bool((self.process.level_of(self.z[b, i][:, None]) == 1).all())
        ):
            # of all tokens under the states
            score = self.order.scoring.of_probs(probs).to(torch.float64)
        elif all_columns:
            # finite, so that distributions over the tokens of an unlikely cluster have a sum
            part = Predictions(
                self._current.network,
                finite_log(probs),
                b,
                i,
                self.z[b, i],
                self._t[b],
                self.z[b, :0],
            )
            score = self.order.scores(self._current, [part], self.z, self.levels)[b, i]
        else:
            return
        self._score[b, i] = score

    @torch.no_grad()
    def step(self, output: Tensor, denoiser: Denoiser | None = None) -> Bool[Tensor, "B"]:
        """Descend at the positions that the order chooses, to their true states.

        Args:
            output: the network's logits at ``z`` and ``t``, (B, L, K); with a split denoiser its
                features, (B, L, D).
            denoiser: the split denoiser; None if ``output`` is logits.

        Returns:
            (B,) bool, True at rows without an open position, which ``replace`` takes next.

        Raises:
            ValueError: an output of another shape.
        """
        level = self.levels
        run = self._current
        noise = self.order.noise(run, self.z) + self.order.priority(self.z)
        score = self._score
        self._score = self._unknown()
        if self.order.scoring.reads:
            for part in self._predictions(output, denoiser, (level > 0) & score.isnan()):
                scores = self.order.scores(run, [part], self.z, level)
                score[part.b, part.i] = scores[part.b, part.i]
        score = score.nan_to_num(0.0)
        least = torch.full_like(self.index[:, None], self.per_step)
        moves = self.order.choose(score, level, least, noise)
        self.z = self._descend(
            moves, torch.where(moves, level - 1, self.process.level_of(self.z)), run
        )
        self._t = model_time(run, self.z, self._memo)
        self.steps = self.steps + 1
        self._current = self._context(_LATER)
        return (self.levels == 0).all(-1)

    def replace(
        self,
        rows: Bool[Tensor, "B"] | Int64[Tensor, "n"],
        x: Int64[Tensor, "m L"],
        mask: Bool[Tensor, "m L"] | None = None,
    ) -> None:
        """Put new sequences into some rows.

        Each begins with fewer than ``per_step`` edges descended, at random.

        Their number is uniform, so that states with any number of open edges occur. Without these
        tokens an untrained network scores all positions alike, and an order would start at the same
        positions in every sequence.

        Args:
            rows: (B,) bool or (n,) indices, the rows.
            x: (m, L) sequences, one for each of these rows.
            mask: (m, L) bool, True at real tokens; None if all are.

        Raises:
            TypeError, ValueError: bad x or mask; a number of sequences other than that of the rows.
        """
        rows = rows.nonzero()[:, 0] if rows.dtype == torch.bool else rows
        if len(rows) == 0 == len(x):
            return
        self.process.check_inputs(x=x)
        check_padding(x, mask)
        check_shape(
            "x",
            x,
            (len(rows), self.x.shape[1]),
            f"(m, L) = {(len(rows), self.x.shape[1])}, one for each row",
        )
        self.x[rows] = x
        self.free[rows] = torch.ones_like(x, dtype=torch.bool) if mask is None else mask
        self.z[rows] = torch.where(self.free[rows], self.process.num_states - 1, x)
        number = torch.zeros_like(self.index)
        run = self._context(_FIRST)
        share = rand((len(self.x),), run.generator, self.x.device)
        number[rows] = (share * self._edges.clamp_max(self.per_step)).long()[rows]
        self._descend_at_random(number, run)

    def state_dict(self) -> dict[str, Any]:
        """Return the progress of all rows.

        With ``load_state_dict`` training resumes with identical results.
        """
        return {"x": self.x, "z": self.z, "free": self.free, "steps": self.steps}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the result of ``state_dict``.

        Raises:
            ValueError: rows of another shape.
        """
        for name in ("x", "z", "free"):
            check_shape(
                f"state[{name!r}]",
                state[name],
                self.x.shape,
                f"that of the rows, {tuple(self.x.shape)}",
            )
        self.x, self.z, self.free = (
            state[name].to(self.x.device).clone() for name in ("x", "z", "free")
        )
        self.steps = int(state["steps"])
        self._score = self._unknown()
        self._current = self._context(_LATER)
        self._t = model_time(self._current, self.z, self._memo)

    @property
    def _depth(self) -> int:
        return len(self.process.levels) - 1

    @property
    def _edges(self) -> Int64[Tensor, "B"]:
        return self._depth * self.free.sum(-1)

    def _context(self, stream: int) -> SamplingContext:
        """Return the inputs of the sampler's methods, with random numbers of this step."""
        # a key of its own for every step k and stream: 2 k + 1 and 2 k + 2, and 0 at the start
        noise = KeyedGenerator(self.seed, self.steps * _LATER + stream, self.index, scattered=True)
        times = torch.tensor([1.0, 0.0], dtype=torch.float64, device=self.x.device)
        return SamplingContext(self.process, self._network, identity, times, self.free, noise)

    def _unknown(self) -> Float64[Tensor, "B L"]:
        return torch.full(self.x.shape, torch.nan, dtype=torch.float64, device=self.x.device)

    def _predictions(
        self, output: Tensor, denoiser: Denoiser | None, where: Bool[Tensor, "B L"]
    ) -> Iterator[Predictions]:
        """Yield the output at some positions as the samplers take it."""
        network = Model(self.process, denoiser or _not_called, self.parameterization)
        network.head.check(output, self.z, self.z.shape[1])
        for positions in where.nonzero().split(max(1, _HELD // self.process.vocab_size)):
            b, i = positions.unbind(1)
            yield Predictions(network, output[b, i], b, i, self.z[b, i], self._t[b], self.z[b, :0])

    def _descend_at_random(self, number: Int64[Tensor, "B"], run: SamplingContext) -> None:
        """Descend ``number`` random edges of each row, which has no token yet, and set the
        times.
        """
        depth = self._depth
        u = rand((*self.x.shape, depth), run.generator, self.x.device)
        u = u.masked_fill(~self.free[..., None], 2.0).flatten(1)
        down = (u.argsort(-1).argsort(-1) < number[:, None]).view(*self.x.shape, depth).sum(-1)
        for edge in range(depth):
            moves = down > edge
            self.z = self._descend(moves, self.process.level_of(self.z) - moves.long(), run)
        self._t = model_time(run, self.z, self._memo)

    def _descend(self, moves: Bool[Tensor, "B L"], target: Tokens, run: SamplingContext) -> Tokens:
        """Return the states with the true ones, or those drawn given the true tokens, where
        positions move.
        """
        if self._unique:
            return torch.where(moves, level_process(run).ascend(self.x, target), self.z)
        u = rand(self.z.shape, run.generator, self.z.device)
        result = self.z.clone()
        b, i = moves.nonzero().unbind(1)
        for part in torch.arange(len(b), device=b.device).split(_ROWS):
            at = b[part], i[part]
            token_log_probs = one_hot(self.x[at], self.process.vocab_size).to(torch.float64).log()
            # never forced: z may be a cluster without the true token
            result[at] = self.process.descend(token_log_probs, self.z[at], target[at], u[at])
        return result


def _not_called(z: Tensor, t: Tensor) -> Tensor:
    raise TypeError("the network of training rows is called by the training loop")

"""Rows of different lengths on which rules for lengths act, and the predictions that they use."""

from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ddlib.contrib.lengths.ragged import RaggedContext
from ddlib.parameterization.logits import posterior_logits
from ddlib.samplers.base import State
from ddlib.samplers.control import SamplingCall


class Outlook(NamedTuple):
    """Predictions of the network, as far as rules for lengths use them.

    Certain at positions that are tokens.
    """

    best: Float64[Tensor, "B L"]
    """Largest probability of a token."""
    end: Float64[Tensor, "B L"]
    """Probability of the end token."""
    is_end: Bool[Tensor, "B L"]
    """True where the end token is the likeliest."""

    def confidence(self, positions: int) -> Float64[Tensor, "B"]:
        """Return the confidence in the end token, in [0, 1].

        It is the sum of the probabilities of the end token at the last positions at which it is the
        likeliest, divided by their largest number, ``positions``.
        """
        # counted from the end of the row
        last = self.is_end & (self.is_end.flip(1).cumsum(1).flip(1) <= positions)
        return (self.end * last).sum(1) / positions


@dataclass(frozen=True)
class Canvas:
    """Rows of different lengths between two steps, in as many columns as the largest length."""

    run: SamplingCall
    """The call of ``sample``; its network takes each row without the columns behind its length."""
    state: State
    """States; the columns behind the length of a row hold ``fill``."""
    fill: int
    first: Int64[Tensor, "B"]
    """Number of given tokens at the beginning."""
    length: Int64[Tensor, "B"]
    """Number of positions of each row, the given tokens included."""
    closed: Bool[Tensor, "B L"]
    """True at positions that an ``Ending`` fixed."""
    done: Bool[Tensor, "B"]
    """True at rows that are finished, and whose length stays."""

    @property
    def full(self) -> Bool[Tensor, "B"]:
        """Return True at rows of the largest length."""
        return self.length >= self.state.z.shape[1]

    @property
    def column(self) -> Int64[Tensor, "L"]:
        """Return the number of each column."""
        return torch.arange(self.state.z.shape[1], device=self.state.z.device)

    @property
    def inside(self) -> Bool[Tensor, "B L"]:
        """Return True at the positions of each row behind its given tokens."""
        return (self.column >= self.first[:, None]) & (self.column < self.length[:, None])

    @property
    def masked(self) -> Bool[Tensor, "B L"]:
        """Return True at positions that are not tokens yet."""
        return self.inside & (self.state.z >= self.run.process.vocab_size)

    def insert(
        self, place: Int64[Tensor, "B"], count: Int64[Tensor, "B"], state: int | None = None
    ) -> Self:
        """Return a canvas with positions inserted, or removed from the end, up to the largest
        length.

        Args:
            place: (B,) the position before which new ones are inserted, such as the length of the
                row.
            count: (B,) their number; a negative one removes positions from the end.
            state: their state; None for the mask.
        """
        z = self.state.z
        size = self.state.z.shape[1]
        length = (self.length + count).clamp_max(size)
        more = count.clamp_min(0)[:, None]
        column = self.column
        new = (column >= place[:, None]) & (column < place[:, None] + more)
        source = torch.where(column < place[:, None] + more, column, column - more)
        inserted = self.run.process.num_states - 1 if state is None else state
        moved = torch.where(new, inserted, z.gather(1, source))
        moved = torch.where(column < length[:, None], moved, self.fill)
        closed = self.closed.gather(1, source) & ~new & (column < length[:, None])
        return replace(self, state=self.state._replace(z=moved), length=length, closed=closed).cut()

    def cut(self) -> Self:
        """Return the canvas with a network for the present lengths, which is not evaluated at
        finished rows.
        """
        network = self.run.network
        lengths = torch.where(self.done, 0, self.length)
        if isinstance(network.context, RaggedContext) and torch.equal(
            network.context.lengths, lengths
        ):
            return self
        context = RaggedContext(lengths, self.run.process.vocab_size, network.compact)
        return replace(self, run=replace(self.run, network=network.within(context)))

    def outlook(self, token: int) -> Outlook:
        """Evaluate the network; a step from the same states shares its call."""
        process = self.run.process
        network = self.run.network
        (z, t, _) = self.state
        is_end = self.inside & (z == token)
        best = torch.ones_like(z, dtype=torch.float64)
        end = is_end.to(torch.float64)
        for part in network.at(z, t, self.masked & ~self.done[:, None]):
            logits = part.token_logits(torch.zeros_like(part.z))
            probs = (
                posterior_logits(process, logits, part.z[:, None], part.t)[:, 0]
                .softmax(-1)
                .to(torch.float64)
            )
            best[part.b, part.i], likeliest = probs.max(-1)
            end[part.b, part.i] = probs[:, token]
            is_end[part.b, part.i] = likeliest == token
        return Outlook(best, end, is_end)

"""Stopping criteria: positions that are finished before the last step."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ddlib.parameterization.logits import posterior_logits
from ddlib.processes import ForwardProcess
from ddlib.samplers.base import SamplingContext, State
from ddlib.samplers.choices import entropy
from ddlib.samplers.control import Control, Needs, Processor, SamplingCall
from ddlib.samplers.controls.tokens import Forbidden, check_noise
from ddlib.typing import Tokens
from ddlib.utils.validation import check_count, check_flag, check_number, require


class Ending(Control):
    """Base class of stopping criteria.

    After every step but the last, selects finished positions, which are fixed like a prompt.
    """

    @property
    def needs(self) -> Needs:
        return Needs.ONE_SEQUENCE

    def begin(self, run: SamplingCall, state: State) -> tuple[SamplingCall, State, Any]:
        return run, state, (run.free, None)

    def after_step(
        self, run: SamplingCall, state: State, memo: Any, k: int
    ) -> tuple[SamplingCall, State, Any]:
        if k == run.steps - 1:
            return run, state, memo
        drawn, inner = memo
        tokens, done, inner = self.select_finished(run, state, drawn, inner)
        state = state._replace(z=torch.where(done & run.free, tokens, state.z))
        return replace(run, free=run.free & ~done), state, (drawn, inner)

    def after_block(
        self, run: SamplingCall, tokens: Tokens, free: Bool[Tensor, "B L"], end: int
    ) -> tuple[Tokens, Bool[Tensor, "B L"]]:
        closed = self.select_closed(tokens[:, :end], run.free[:, :end])[:, None]
        return torch.where(closed, self.finish(run, tokens), tokens), free & ~closed

    @abstractmethod
    def select_finished(
        self, run: SamplingContext, state: State, drawn: Tensor, memo: Any
    ) -> tuple[Tokens, Bool[Tensor, "B L"], Any]:
        """Select the finished positions and their tokens.

        Args:
            run: the call of ``sample``; ``run.free`` is True at positions that are not fixed yet.
            state: after a step, or before the first.
            drawn: (B, L) bool, False at the prompt. If a sequence is drawn block by block, L is the
                length of a block.
            memo: the memo of the last call, None at first.

        Returns:
            tokens (B, L), the positions at which they are fixed from now on (B, L) bool, and a
            memo.
        """

    def select_closed(self, tokens: Tokens, drawn: Bool[Tensor, "B L"]) -> Bool[Tensor, "B"]:
        """Select the sequences that end within these first tokens.

        The rest is not drawn but left to ``finish``.

        Called after every block of a sequence that is drawn block by block.

        Args:
            tokens: (B, n) tokens drawn so far.
            drawn: (B, n) bool, False at the prompt.
        """
        return torch.zeros_like(drawn[:, 0])


class EndOfText(Ending):
    """End-of-text token: stops a sequence after it, and is forbidden before a minimal length.

    The first drawn end-of-text token counts, not those of the prompt. All drawn positions after it
    are fixed to ``fill``, so the network is not evaluated there. If a state may still be noise, as
    every token under uniform noise, this happens after the last step.

    Args:
        token: the end-of-text token.
        least: minimal length: the token is not drawn at the first ``least`` positions of a row,
            prompt included.
        last: whether a sequence stops at the token; if False only ``least`` applies.
        fill: the token at the positions after the end; by default ``token``.

    Raises:
        TypeError, ValueError: numbers that are not tokens of the process.
    """

    def __init__(
        self, token: int, least: int = 0, last: bool = True, fill: int | None = None
    ) -> None:
        self.token = check_count("token", token, 0)
        self.least = check_count("least", least, 0)
        self.last = check_flag("last", last)
        require(
            last or fill is None,
            f"fill is {fill} and last is False: fill requires last=True, since other tokens may "
            "follow",
        )
        self.fill = self.token if fill is None else check_count("fill", fill, 0)
        self.declare(fill=fill)

    @property
    def needs(self) -> Needs:
        needs = super().needs | Needs.ONE_ALPHABET
        return needs | (Needs.TOKEN_DISTRIBUTIONS if self.least else Needs.NOTHING)

    def check(self, call: SamplingCall) -> None:
        for name, number in (("token", self.token), ("fill", self.fill)):
            size = call.process.vocab_size
            require(
                number < size, f"{name} of {self!r} is {number}, must be a token in [0, {size})"
            )
        if self.least:
            check_noise(call.process, [self.token], self)
        for other in call.controls:
            require(
                not (isinstance(other, Forbidden) and self.token in other.tokens),
                f"controls holds {self!r} and {other!r}, must not hold both: the end would never "
                "be drawn",
            )

    def select_finished(
        self, run: SamplingContext, state: State, drawn: Tensor, memo: Any
    ) -> tuple[Tokens, Bool[Tensor, "B L"], Any]:
        # no other token may have become the end until now, as under uniform noise or within a
        # cluster
        token = torch.full_like(state.z[:1, :1], self.token)
        sure = (run.process.token_evidence(token, state.t.max().reshape(1)) > 0).sum() == 1
        end, after = self._find_end((state.z == self.token) & sure & drawn)
        return torch.where(after, self.fill, state.z), end | after, None

    def finish(self, run: SamplingCall, tokens: Tokens) -> Tokens:
        _, after = self._find_end((tokens == self.token) & run.free)
        return torch.where(after & run.free, self.fill, tokens)

    def select_closed(self, tokens: Tokens, drawn: Bool[Tensor, "B L"]) -> Bool[Tensor, "B"]:
        return self._find_end((tokens == self.token) & drawn)[0].any(1)

    def logits(self, process: ForwardProcess, length: int) -> Sequence[Processor]:
        return [self._forbid] if self.least else []

    def _forbid(
        self, logits: Float[Tensor, "N V"], states: Int64[Tensor, "N L"], i: Int64[Tensor, "N"]
    ) -> Float[Tensor, "N V"]:
        token = torch.zeros(1, logits.shape[1], dtype=torch.bool, device=logits.device)
        token[0, self.token] = True
        return logits.masked_fill((i < self.least)[:, None] & token, -torch.inf)

    def _find_end(self, end: Tensor) -> tuple[Tensor, Tensor]:
        """Return the masks of the first end in each row and of the positions after it."""
        after = end.cumsum(1) - end.long() > 0
        return end & ~after & self.last, after & self.last


class Settled(Ending):
    """Convergence: a sequence is finished when its likeliest tokens no longer change and their
    entropy is low.

    It then ends with the likeliest token at every position, so stopping is greedy. This is the rule
    of DiffusionGemma, for every process: the likeliest tokens of p(x | z) have been the same
    ``steps`` times in a row, and the mean entropy of p(x | z) is low. The network is evaluated at
    all unfinished positions after every step. A step from the same states and times, as on a grid,
    shares that call.

    Args:
        entropy: the largest mean entropy, in nats per unfinished position.
        steps: required number of consecutive comparisons without a change.
    """

    breaks = Needs.INDEPENDENT_DRAWS

    def __init__(self, entropy: float = 0.005, steps: int = 1) -> None:
        self.entropy = check_number("entropy", entropy, 0, 1e6, "in [0, 1e6]")
        self.steps = check_count("steps", steps)

    @property
    def needs(self) -> Needs:
        return super().needs | Needs.TOKEN_DISTRIBUTIONS

    def select_finished(
        self, run: SamplingContext, state: State, drawn: Tensor, memo: Any
    ) -> tuple[Tokens, Bool[Tensor, "B L"], Any]:
        process = run.process
        (z, t, _) = state
        unsure = run.free & ((process.level_of(z) > 0) | process.replaceable(z))
        tokens = z.clone()
        entropies = torch.zeros(z.shape, dtype=torch.float64, device=z.device)
        for part in run.network.at(z, t, unsure):
            logits = part.token_logits(torch.zeros_like(part.z))
            own = part.network.process
            log_probs = posterior_logits(own, logits, part.z[:, None], part.t)[:, 0].log_softmax(-1)
            tokens[part.b, part.i] = part.as_states(log_probs.argmax(-1))
            entropies[part.b, part.i] = entropy(log_probs).to(entropies)
        before, count = (
            (tokens.new_full(z.shape, -1), tokens.new_zeros(len(z))) if memo is None else memo
        )
        count = torch.where((tokens == before).all(1), count + 1, 0)
        mean = entropies.sum(1) / unsure.sum(1).clamp_min(1)
        done = (count >= self.steps) & (mean <= self.entropy)
        return tokens, unsure & done[:, None], (tokens, count)

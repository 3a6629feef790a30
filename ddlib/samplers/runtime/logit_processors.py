"""Processors of logits before tokens are drawn.

Forbidden tokens, repetition penalty, temperature and truncation.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from numbers import Integral

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ddlib.hierarchies import Map
from ddlib.processes import ForwardProcess, unchanged
from ddlib.typing import Sharpen
from ddlib.utils.validation import check_count, check_number, require, visible

Veto = Callable[[Int64[Tensor, "N"]], tuple[int, Bool[Tensor, "N"]]]
"""Map from positions to a token and the mask of positions at which it is forbidden."""

Scheduled = float | Callable[[float], float]
"""Number, or function of the time, which runs from 1, noise, to 0."""


class LogitProcessors:
    """Forbidden tokens and repetition penalty.

    They act on the cavity distribution of tokens, which determines the distributions of clusters,
    so they apply to every sampler.

    Args:
        process: the forward process.
        forbidden: tokens that are never drawn.
        penalty: factor, at least 1, by which the probability of tokens elsewhere in the sequence is
            divided. Its logarithm is subtracted from the logits (the presence penalty of chat
            interfaces). The result does not depend on a constant added to the logits, unlike a
            factor of the logits (CTRL).
        vetoes: functions that forbid tokens at some positions.
        length: number of positions of a sequence; vetoes that forbid nothing at these are left out.

    Raises:
        TypeError, ValueError: forbidden tokens that are not tokens, or all tokens of a cluster; a
            penalty below 1.
    """

    def __init__(
        self,
        process: ForwardProcess,
        forbidden: Sequence[int],
        penalty: float,
        vetoes: Sequence[Veto],
        length: int,
    ) -> None:
        self.process = process
        self.penalty = check_number("repetition_penalty", penalty, 1, 1e30, "at least 1")
        self.forbidden = _forbidden(process, forbidden)
        self.vetoes = [veto for veto in vetoes if bool(veto(torch.arange(length))[1].any())]

    def __bool__(self) -> bool:
        """True if the logits change at all."""
        return self.penalty != 1 or bool(self.vetoes) or bool(self.forbidden.any())

    def __call__(
        self, logits: Float[Tensor, "N V"], states: Int64[Tensor, "N L"], i: Int64[Tensor, "N"]
    ) -> Float[Tensor, "N V"]:
        """Apply forbidden tokens and the penalty.

        Args:
            logits: (N, V) logits of N positions.
            states: (N, L) states of the sequences that contain them.
            i: (N,) their positions in the sequences.

        Returns:
            (N, V) logits, -inf at forbidden tokens.

        Raises:
            ValueError: all tokens that the logits allow are forbidden.
        """
        excluded = self.forbidden.to(logits.device)[None]
        for veto in self.vetoes:
            token, where = veto(i)
            single = torch.zeros_like(excluded[:1])
            single[0, token] = True
            excluded = excluded | (where[:, None] & single)
        if self.penalty != 1:
            logits = (
                logits
                - self._present(logits, states, i)
                * torch.tensor(self.penalty, dtype=logits.dtype).log()
            )
        left = logits.masked_fill(excluded, -torch.inf)
        if visible(left):
            empty = ~left.amax(-1).isfinite()
            require(
                not bool(empty.any()),
                "forbidden contains all tokens to which the network gives a positive probability "
                "at position "
                f"{i[empty][:1].tolist()}, must leave one",
            )
        return left

    def everywhere(
        self, logits: Float[Tensor, "B L V"], states: Int64[Tensor, "B n"], first: int = 0
    ) -> Float[Tensor, "B L V"]:
        """Apply it to L positions of each sequence, starting at position ``first``."""
        i = first + torch.arange(logits.shape[1], device=states.device)
        return torch.stack(
            [self(row, own.expand(len(i), -1), i) for row, own in zip(logits, states, strict=True)]
        )

    def _present(self, logits: Tensor, states: Tensor, i: Tensor) -> Float[Tensor, "N V"]:
        """Return 1 at tokens that are present at other positions of the sequence, else 0."""
        vocabulary = logits.shape[1]
        tokens = states.clamp_max(vocabulary).scatter(
            1, i[:, None], vocabulary
        )  # an extra column for other states
        return logits.new_zeros(len(logits), vocabulary + 1).scatter_(1, tokens, 1.0)[
            :, :vocabulary
        ]


def _forbidden(process: ForwardProcess, tokens: Sequence[int]) -> Bool[Tensor, "V"]:
    """Return the mask of forbidden tokens, checked."""
    excluded = torch.zeros(process.vocab_size, dtype=torch.bool, device="cpu")
    if not isinstance(tokens, Iterable):
        raise TypeError(f"forbidden is {tokens!r}, must be a list of token ids")
    for token in tokens:
        if isinstance(token, bool) or not isinstance(token, Integral):
            raise TypeError(f"forbidden holds {token!r}, must hold token ids")
        require(
            0 <= int(token) < process.vocab_size,
            f"forbidden holds {token}, must be tokens in [0, {process.vocab_size})",
        )
        excluded[int(token)] = True
    require(not bool(excluded.all()), "forbidden holds all tokens, must leave at least one")
    hierarchy = process.hierarchy
    if hierarchy is None:
        return excluded
    for level in range(1, hierarchy.depth):
        edge = hierarchy.between(0, level)
        if isinstance(edge, Map):
            left = torch.bincount(edge.parents.cpu()[~excluded], minlength=hierarchy.levels[level])
        else:
            left = edge.push((~excluded).to(edge.device, torch.float64)).cpu()
        empty = (left == 0).nonzero()[:, 0].tolist()
        require(
            not empty,
            f"forbidden holds all tokens of cluster {empty[:5]} of level {level}, must leave one "
            "in each: a "
            "sampler that keeps tokens in their cluster finds none for a state of this cluster",
        )
    return excluded


class Truncation:
    """Temperature, then top-k, top-p and min-p, for every distribution over tokens or clusters that
    is drawn from.

    Args:
        temperature: divisor of the logits; 0 is greedy. A number or a function of the time.
        top_p: keep the smallest set with at least this probability (Holtzman et al., 2020). A
            number or a function of the time.
        top_k: keep this many of the likeliest, and those that are as likely as the last of them;
            None for all.
        min_p: keep those that are at least this share as likely as the likeliest (arXiv
            2407.01082); 0 for all.

    Raises:
        TypeError, ValueError: an argument out of range; for functions, when they are evaluated.
    """

    def __init__(
        self,
        temperature: Scheduled = 1.0,
        top_p: Scheduled = 1.0,
        top_k: int | None = None,
        min_p: float = 0.0,
    ):
        self.temperature = temperature
        self.top_p = top_p
        self.top_k = None if top_k is None else check_count("top_k", top_k)
        self.min_p = check_number("min_p", min_p, 0, 1, "in [0, 1]")
        self.at(1.0)

    @property
    def idle(self) -> bool:
        """True if it changes nothing at any time."""
        return self.temperature == 1 and self.top_p == 1 and self.top_k is None and self.min_p == 0

    def at(self, t: float) -> Sharpen:
        """Return the function of log-probabilities at a time.

        ``unchanged`` if it changes nothing.
        """
        temperature = check_number(
            *_evaluated("temperature", self.temperature, t), 0, 1e6, "in [0, 1e6]"
        )
        top_p = check_number(*_evaluated("top_p", self.top_p, t), 1e-9, 1, "in (0, 1]")
        if temperature == 1 and top_p == 1 and self.top_k is None and self.min_p == 0:
            return unchanged
        return partial(
            _sharpen, temperature=temperature, top_p=top_p, top_k=self.top_k, min_p=self.min_p
        )


def _evaluated(name: str, value: Scheduled, t: float) -> tuple[str, float]:
    return (f"{name}({t:g})", value(t)) if callable(value) else (name, value)


def _sharpen(
    log_probs: Tensor, temperature: float, top_p: float, top_k: int | None, min_p: float
) -> Tensor:
    log_probs = log_probs - log_probs.amax(-1, keepdim=True)
    if temperature == 0:
        log_probs = torch.where(log_probs == 0, 0.0, -torch.inf)
    elif temperature != 1:
        log_probs = (log_probs.to(torch.float64) / temperature).to(log_probs.dtype)
    if top_k is not None and top_k < log_probs.shape[-1]:
        log_probs = log_probs.masked_fill(
            log_probs < log_probs.topk(top_k, -1).values[..., -1:], -torch.inf
        )
    if top_p < 1:
        ordered, order = log_probs.softmax(-1).sort(-1, descending=True)
        beyond = ordered.cumsum(-1) - ordered >= top_p
        log_probs = log_probs.masked_fill(beyond.scatter(-1, order, beyond), -torch.inf)
    if min_p > 0:
        log_probs = log_probs.masked_fill(log_probs < math.log(min_p), -torch.inf)
    return log_probs

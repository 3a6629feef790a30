"""Processors of logits before tokens are drawn: forbidden tokens, repetition penalty, temperature and truncation."""

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ddlib.processes import ForwardProcess, unchanged
from ddlib.typing import Sharpen
from ddlib.utils.validation import check_count, check_number, require, visible

Veto = Callable[[Int64[Tensor, "N"]], tuple[int, Bool[Tensor, "N"]] | None]
"""Of positions: a word that must not be drawn, and at which of them; None for no word."""

Scheduled = float | Callable[[float], float]
"""A number, or a function of the time, which runs from 1, noise, to 0."""


class LogitProcessors:
    """Acts on the cavity law of words, from which the laws of clusters follow: so it holds for every sampler.

    Args:
        process: the forward process.
        forbidden: words that are never drawn.
        penalty: a word that stands elsewhere in a text counts this many times less, at least 1. In terms of logits its
            logarithm is subtracted (the presence penalty of chat interfaces): a law does not change with the constant
            in its logits, as it does where repeated words' logits are multiplied (CTRL).
        vetoes: what they forbid at a position is not drawn there.

    Raises:
        TypeError, ValueError: forbidden words that are no words, or all of a cluster's; a penalty below 1.
    """

    def __init__(
        self, process: ForwardProcess, forbidden: Sequence[int], penalty: float, vetoes: Sequence[Veto]
    ) -> None:
        self.process = process
        self.penalty = check_number("repetition_penalty", penalty, 1, 1e30, "at least 1")
        self.forbidden = _forbidden(process, forbidden)
        self.vetoes = [veto for veto in vetoes if veto(torch.zeros(1, dtype=torch.int64)) is not None]

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return self.penalty != 1 or bool(self.vetoes) or bool(self.forbidden.any())

    def __call__(
        self, logits: Float[Tensor, "N V"], texts: Int64[Tensor, "N L"], i: Int64[Tensor, "N"]
    ) -> Float[Tensor, "N V"]:
        """The logits that are drawn by.

        Args:
            logits: (N, V) of positions.
            texts: (N, L) the states of the text that each stands in.
            i: (N,) where.

        Raises:
            ValueError: nothing is left that the network thinks possible.
        """
        out = self.forbidden.to(logits.device)[None]
        for veto in self.vetoes:
            word, where = veto(i) or (0, torch.zeros_like(i, dtype=torch.bool))
            one = torch.zeros_like(out[:1])
            one[0, word] = True
            out = out | (where[:, None] & one)
        if self.penalty != 1:
            logits = logits - self._standing(logits, texts, i) * torch.tensor(self.penalty, dtype=logits.dtype).log()
        left = logits.masked_fill(out, -torch.inf)
        if visible(left):
            empty = ~left.amax(-1).isfinite()
            require(
                not bool(empty.any()),
                f"forbidden words are all that the network thinks possible at position {i[empty][:1].tolist()}, "
                "must leave another",
            )
        return left

    def everywhere(
        self, logits: Float[Tensor, "B L V"], texts: Int64[Tensor, "B n"], first: int = 0
    ) -> Float[Tensor, "B L V"]:
        """The same for L positions of each of the texts, from the ``first`` on."""
        i = first + torch.arange(logits.shape[1], device=texts.device)
        return torch.stack([self(one, text.expand(len(i), -1), i) for one, text in zip(logits, texts, strict=True)])

    def _standing(self, logits: Tensor, texts: Tensor, i: Tensor) -> Float[Tensor, "N V"]:
        """1 at words that stand at other positions of a text, else 0."""
        vocabulary = logits.shape[1]
        words = texts.clamp_max(vocabulary).scatter(1, i[:, None], vocabulary)  # one more column for all that is none
        return logits.new_zeros(len(logits), vocabulary + 1).scatter_(1, words, 1.0)[:, :vocabulary]


def _forbidden(process: ForwardProcess, words: Sequence[int]) -> Bool[Tensor, "V"]:
    """Which words are forbidden."""
    out = torch.zeros(process.vocab_size, dtype=torch.bool)
    for word in words:
        if isinstance(word, bool) or not isinstance(word, int):
            raise TypeError(f"forbidden holds {word!r}, must be numbers of words")
        require(0 <= word < process.vocab_size, f"forbidden holds {word}, must be words in [0, {process.vocab_size})")
        out[word] = True
    require(not bool(out.all()), "forbidden holds all words, must leave some")
    hierarchy = process.hierarchy
    for level in range(1, 0 if hierarchy is None else hierarchy.depth):
        assert hierarchy is not None
        parents = hierarchy.between(0, level).parents.cpu()
        left = torch.bincount(parents[~out], minlength=hierarchy.levels[level])
        empty = (left == 0).nonzero()[:, 0].tolist()
        require(
            not empty,
            f"forbidden holds all words of cluster {empty[:5]} of level {level}, must leave one in each: "
            "a token in it could become no word",
        )
    return out


class Truncation:
    """Temperature, then top-k, top-p and min-p, of every law of words or clusters that is drawn from.

    Args:
        temperature: logits are divided by it; 0 is greedy. A number or a function of the time.
        top_p: keep the fewest members that hold this much probability (Holtzman et al., 2020); likewise.
        top_k: keep the likeliest so many, and those that are as likely as the last of them; None for all.
        min_p: keep members at least this share as likely as the likeliest (arXiv 2407.01082); 0 for all.

    Raises:
        TypeError, ValueError: one of them out of range; of functions, when they are asked.
    """

    def __init__(
        self, temperature: Scheduled = 1.0, top_p: Scheduled = 1.0, top_k: int | None = None, min_p: float = 0.0
    ):
        self.temperature, self.top_p = temperature, top_p
        self.top_k = None if top_k is None else check_count("top_k", top_k)
        self.min_p = check_number("min_p", min_p, 0, 1, "in [0, 1]")
        self.at(1.0)

    @property
    def idle(self) -> bool:
        """Whether it does nothing, at any time."""
        return self.temperature == 1 and self.top_p == 1 and self.top_k is None and self.min_p == 0

    def at(self, t: float) -> Sharpen:
        """What it does at a time; ``unchanged`` if nothing."""
        temperature = check_number(*_asked("temperature", self.temperature, t), 0, 1e6, ">= 0")
        top_p = check_number(*_asked("top_p", self.top_p, t), 1e-9, 1, "in (0, 1]")
        if temperature == 1 and top_p == 1 and self.top_k is None and self.min_p == 0:
            return unchanged
        return partial(_sharpen, temperature=temperature, top_p=top_p, top_k=self.top_k, min_p=self.min_p)


def _asked(name: str, knob: Scheduled, t: float) -> tuple[str, float]:
    return (f"{name}({t:g})", knob(t)) if callable(knob) else (name, knob)


def _sharpen(log_probs: Tensor, temperature: float, top_p: float, top_k: int | None, min_p: float) -> Tensor:
    log_probs = log_probs - log_probs.amax(-1, keepdim=True)
    if temperature == 0:
        log_probs = torch.where(log_probs == 0, 0.0, -torch.inf)
    elif temperature != 1:
        log_probs = (log_probs.to(torch.float64) / temperature).to(log_probs.dtype)
    if top_k is not None and top_k < log_probs.shape[-1]:
        log_probs = log_probs.masked_fill(log_probs < log_probs.topk(top_k, -1).values[..., -1:], -torch.inf)
    if top_p < 1:
        ordered, order = log_probs.softmax(-1).sort(-1, descending=True)
        beyond = ordered.cumsum(-1) - ordered >= top_p
        log_probs = log_probs.masked_fill(beyond.scatter(-1, order, beyond), -torch.inf)
    if min_p > 0:
        log_probs = log_probs.masked_fill(log_probs < math.log(min_p), -torch.inf)
    return log_probs

"""What samplers make of the words' law before anything follows from it: some words out, others less likely."""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ddlib.processes import ForwardProcess
from ddlib.utils.validation import check_number, require, visible

Veto = Callable[[Int64[Tensor, "N"]], tuple[int, Bool[Tensor, "N"]] | None]
"""Of positions: a word that must not be drawn, and at which of them; None for no word."""


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

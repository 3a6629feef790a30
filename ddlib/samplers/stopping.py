"""When a text, or a part of it, is finished before the last step."""

from abc import ABC, abstractmethod
from typing import Any

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ddlib.parameterization.logits import posterior_logits
from ddlib.processes import ForwardProcess
from ddlib.samplers.base import SamplingContext, State
from ddlib.samplers.confidence import entropy
from ddlib.typing import Tokens
from ddlib.utils.repr import shown
from ddlib.utils.validation import check_count, check_number, require


class Ending(ABC):
    """Is asked after every step which positions are finished; these stand from then on, as a prompt does."""

    def check(self, process: ForwardProcess) -> None:
        """Raises, before anything is drawn, if the process cannot be served."""
        return None

    @abstractmethod
    def finished(
        self, run: SamplingContext, state: State, drawn: Tensor, memo: Any
    ) -> tuple[Tokens, Bool[Tensor, "B L"], Any]:
        """Which positions are finished, and with which words.

        Args:
            run: the call of ``sample``; ``run.free`` says where nothing stands yet.
            state: after a step, or before the first.
            drawn: (B, L) bool, False where the prompt stands. Of a text that is drawn block by block all of these are
                of one block.
            memo: what it returned last, None at first.

        Returns:
            words (B, L), where they stand from now on (B, L), and a memo.
        """

    def trim(self, words: Tokens, drawn: Bool[Tensor, "B L"]) -> Tokens:
        """What becomes of the words of finished texts."""
        return words

    def closed(self, words: Tokens, drawn: Bool[Tensor, "B L"]) -> Bool[Tensor, "B"]:
        """Which texts end in these words, their first ones: what follows is left to ``trim``, and not drawn.

        Asked after every block of a text that is drawn block by block.
        """
        return torch.zeros_like(drawn[:, 0])

    def forbids(self, i: Int64[Tensor, "N"]) -> tuple[int, Bool[Tensor, "N"]] | None:
        """A word that must not be drawn at some of the positions ``i``, and at which; None for no word."""
        return None

    def __repr__(self) -> str:
        return shown(self, Ending)


class EndOfText(Ending):
    """Nothing follows the word that ends a text; and it does not end before its time.

    The first that is drawn counts, not those of the prompt. What is free behind it becomes ``fill`` and stands, so that
    the network is not asked about it. Where a state may still be noise, as any word of uniform noise, that waits for
    the last step.

    Args:
        word: the end of the text.
        least: it is not drawn among the first so many tokens of a row, those of the prompt included.
        last: whether nothing follows it; else only ``least`` holds.
        fill: what stands behind it; default: the same word again.

    Raises:
        TypeError, ValueError: no words of the process.
    """

    def __init__(self, word: int, least: int = 0, last: bool = True, fill: int | None = None) -> None:
        self.word, self.least = check_count("word", word, 0), check_count("least", least, 0)
        self.last = last
        require(last or fill is None, f"fill is {fill} and last is False: nothing is filled where more may follow")
        self.fill = self.word if fill is None else check_count("fill", fill, 0)

    def check(self, process: ForwardProcess) -> None:
        for name, word in (("word", self.word), ("fill", self.fill)):
            if word >= process.vocab_size:
                raise ValueError(f"{name} of {self!r} is {word}, must be a word in [0, {process.vocab_size})")

    def finished(
        self, run: SamplingContext, state: State, drawn: Tensor, memo: Any
    ) -> tuple[Tokens, Bool[Tensor, "B L"], Any]:
        sure = ~run.process.reachable_from_all_tokens(state.z)
        end, after = self._found((state.z == self.word) & sure & drawn)
        return torch.where(after, self.fill, state.z), end | after, None

    def trim(self, words: Tokens, drawn: Bool[Tensor, "B L"]) -> Tokens:
        _, after = self._found((words == self.word) & drawn)
        return torch.where(after & drawn, self.fill, words)

    def closed(self, words: Tokens, drawn: Bool[Tensor, "B L"]) -> Bool[Tensor, "B"]:
        return self._found((words == self.word) & drawn)[0].any(1)

    def forbids(self, i: Int64[Tensor, "N"]) -> tuple[int, Bool[Tensor, "N"]] | None:
        return (self.word, i < self.least) if self.least else None

    def _found(self, end: Tensor) -> tuple[Tensor, Tensor]:
        """The first end of each row, and what follows it."""
        after = end.cumsum(1) - end.long() > 0
        return end & ~after & self.last, after & self.last


class Settled(Ending):
    """A text is finished when the network is sure of all of it and does not change its mind any more.

    Its words are then the likeliest everywhere: a stop is greedy. The rule of DiffusionGemma, for every process: the
    likeliest words of p(x | z) were the same ``steps`` times in a row, and their entropies are small on average. To
    know it the network is asked about all unfinished positions after every step; a step that asks about the same time,
    as those on the grid do, shares that call.

    Args:
        entropy: the largest mean entropy, in nats per unfinished position.
        steps: how many times nothing has changed.
    """

    def __init__(self, entropy: float = 0.005, steps: int = 1) -> None:
        self.entropy = check_number("entropy", entropy, 0, 1e6, ">= 0")
        self.steps = check_count("steps", steps)

    def finished(
        self, run: SamplingContext, state: State, drawn: Tensor, memo: Any
    ) -> tuple[Tokens, Bool[Tensor, "B L"], Any]:
        process, (z, t, _) = run.process, state
        unsure = run.free & ((z >= process.vocab_size) | process.reachable_from_all_tokens(z))
        words, total = z.clone(), torch.zeros(z.shape, dtype=torch.float64, device=z.device)
        run.network.cache_last = True
        for said in run.network.at(z, t, unsure):
            logits = said.words(torch.zeros_like(said.z))
            law = posterior_logits(process, logits, said.z[:, None], said.t)[:, 0].log_softmax(-1)
            words[said.b, said.i] = law.argmax(-1)
            total[said.b, said.i] = entropy(law).to(total)
        before, times = (words.new_full(z.shape, -1), words.new_zeros(len(z))) if memo is None else memo
        times = torch.where((words == before).all(1), times + 1, 0)
        mean = total.sum(1) / unsure.sum(1).clamp_min(1)
        done = (times >= self.steps) & (mean <= self.entropy)
        return words, unsure & done[:, None], (words, times)

"""GIDD's way to mend finished words."""

from collections.abc import Sequence
from typing import Self

import torch

from ddlib.processes import ForwardProcess
from ddlib.samplers.base import SamplingContext
from ddlib.samplers.correctors.base import Corrector
from ddlib.typing import Times, Tokens
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import rand
from ddlib.utils.validation import check_count, check_number


class SelfCorrection(Corrector):
    """Replaces words by what the network would rather see there, one at a time, until it has no better idea.

    Of von Rütte et al. (2025, GIDD). It acts once, on the finished words: each step draws a candidate for every
    position, and the most probable of those that differ from what is there replaces it. A text is done when no
    candidate differs, or when the share of its words that are the network's first choice has not grown for ``patience``
    steps.

    This is a fixed-point iteration, not a draw: the words do not follow the law of the model afterwards, they lie
    nearer to its modes; look at the entropy beside the quality. ``Gibbs`` keeps the law. What the network says is read
    as the cavity, with a temperature of its own; that of ``sample``, and top-p, have no say here. Needs words that can
    be wrong, as those of GIDD and of uniform noise.

    Args:
        steps: at most so many, each with a network call on the texts that are not done.
        time: in (0, 1), what the network is told.
        temperature: of the candidates, above 0.
        patience: steps without a gain.

    Raises:
        TypeError, ValueError: an argument out of range; when sampling, a process whose words are never wrong.
    """

    exact_marginals = consistent_joint = False
    max_model_calls = 0

    def __init__(self, steps: int = 128, time: float = 0.01, temperature: float = 0.1, patience: int = 32) -> None:
        self.steps = check_count("steps", steps)
        self.time = check_number("time", time, 1e-9, 1 - 1e-9, "in (0, 1)")
        self.temperature = check_number("temperature", temperature, 1e-9, 1e6, "above 0")
        self.patience = check_count("patience", patience)
        self.max_finalize_calls = self.steps

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(steps=4)]

    def check(self, process: ForwardProcess) -> None:
        words = torch.arange(process.vocab_size, device=process.device)[None]
        if not bool(process.reachable_from_all_tokens(words).all()):
            raise TypeError(
                f"{type(self).__name__} needs words that every other may have become, those of {process!r} are never "
                "wrong in the forward process, so its network has no opinion of them; Remask takes them back, or Psi"
            )

    def correct(self, run: SamplingContext, z: Tokens, t: Times, h: Times) -> Tokens:
        """The states as they are."""
        return z

    def end(self, run: SamplingContext, words: Tokens) -> Tokens:
        t = torch.full((len(words),), self.time, dtype=torch.float64, device=words.device)
        going = run.free.any(1)
        best, idle = torch.full_like(t, -1.0), torch.zeros_like(going, dtype=torch.int64)
        for _ in range(self.steps):
            if not bool(going.any()):
                break
            u, asked = rand(words.shape, run.generator, words.device), run.free & going[:, None]
            candidate, gain, first = words.clone(), torch.full_like(u, -torch.inf), torch.zeros_like(u)
            for said in run.network.at(words, t, asked):
                logits = said.words(torch.zeros_like(said.z))[:, 0].to(torch.float64)
                log_probs = (logits / self.temperature).log_softmax(-1)
                drawn = draw_logits(log_probs, u[said.b, said.i])
                own = log_probs.gather(1, drawn[:, None])[:, 0]
                candidate[said.b, said.i] = drawn
                gain[said.b, said.i] = torch.where(drawn != said.z, own, -torch.inf)
                first[said.b, said.i] = (logits.argmax(-1) == said.z).to(u)
            share = first.sum(1) / run.free.sum(1).clamp_min(1)
            idle = torch.where(share > best, 0, idle + 1)
            best = best.maximum(share)
            most, where = gain.max(1, keepdim=True)
            going = going & (idle < self.patience) & (most[:, 0] > -torch.inf)
            mended = words.scatter(1, where, candidate.gather(1, where))
            words = torch.where(going[:, None], mended, words)
        return words

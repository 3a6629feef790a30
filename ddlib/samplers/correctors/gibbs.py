"""A corrector that draws single positions anew, given all others."""

from collections.abc import Sequence
from typing import Self

import torch
from jaxtyping import Bool
from torch import Tensor

from ddlib.processes import ForwardProcess
from ddlib.samplers.base import SamplingContext
from ddlib.samplers.correctors.base import Corrector
from ddlib.samplers.runtime.model import Predictions
from ddlib.typing import Times, Tokens
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import rand
from ddlib.utils.validation import check_count, require

_SELECT = ("random", "margin")


class Gibbs(Corrector):
    r"""Draws some positions anew: a word x from the cavity, its state from :math:`q_t(\cdot|x)`.

    That is the law of a position given the others (theory section 9). One position drawn at random keeps the joint law
    of a text, whatever the size of the steps. Several at once ("Hogwild") do not know of each other, and a choice that
    depends on the states is no Gibbs step: both are approximate, a lone token aside.

    The network knows the cavity only in states that every word may have become (``process.reachable_from_all_tokens``):
    all of uniform noise and GIDD, clusters with xi < 1 and the mask. A position that is in another state stays, and so
    does one that would be drawn into another; so the law of those states among themselves, given the rest, is kept
    (detailed balance). Words of a hierarchy stay therefore, and masks alone could become nothing else.

    Args:
        positions: how many, at least 1, of each text.
        select: "random", or "margin": those whose state is least likely beside the likeliest other one, drawn without
            replacement in proportion to the ratio of both (informed correctors, arXiv 2407.21243).

    Raises:
        TypeError, ValueError: positions below 1, another way to select; when sampling, a process with fewer than two
            such states.
    """

    def __init__(self, positions: int = 1, select: str = "random") -> None:
        self.positions = check_count("positions", positions)
        require(select in _SELECT, f"select is {select!r}, must be one of {', '.join(map(repr, _SELECT))}")
        self.select = select
        self.consistent_joint = self.exact_joint = self.positions == 1 and select == "random"

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(), cls(2, "margin")]

    def check(self, process: ForwardProcess) -> None:
        number = int(_known(process).sum())
        if number < 2:
            raise TypeError(
                f"{type(self).__name__} needs at least two states that every word may have become, {process!r} has "
                f"{number}: its words are never wrong in the forward process; Remask takes them back, or Psi"
            )

    def correct(self, run: SamplingContext, z: Tokens, t: Times, h: Times) -> Tokens:
        process = run.process
        noise, u = (rand(z.shape, run.generator, z.device) for _ in range(2))
        known = run.free & process.reachable_from_all_tokens(z)
        random = self.select == "random"
        asked = known & self._most(noise.masked_fill(~run.free, -1.0)) if random else known
        words, odds = torch.zeros_like(z), torch.full_like(noise, -torch.inf)
        for said in run.network.at(z, t, asked):
            logits = said.words(torch.zeros_like(said.z))
            words[said.b, said.i] = draw_logits(run.sharpen(logits[:, 0]), u[said.b, said.i])
            if not random:
                odds[said.b, said.i] = _odds(process, said, logits).to(odds)
        if not random:  # Gumbel noise: without replacement, in proportion
            asked = known & self._most(odds - (-noise.log()).log())
        proposed = process.sample(words, t, run.generator)
        return torch.where(asked & process.reachable_from_all_tokens(proposed), proposed, z)

    def _most(self, score: Tensor) -> Bool[Tensor, "B L"]:
        """The positions of each text with the highest scores."""
        best = score.topk(min(self.positions, score.shape[1]), dim=1).indices
        return torch.zeros_like(score, dtype=torch.bool).scatter(1, best, True)


def _known(process: ForwardProcess) -> Bool[Tensor, "n"]:
    """Which states every word may have become."""
    return process.reachable_from_all_tokens(torch.arange(process.num_states, device=process.device)[None])[0]


def _odds(process: ForwardProcess, said: Predictions, logits: Tensor) -> Tensor:
    """Log of how much likelier the likeliest other state is than the one that is there, (N,)."""
    law = process.predictive(logits.softmax(-1), said.t)[:, 0].masked_fill(~_known(process), 0.0)
    here = said.z[:, None]
    return law.scatter(1, here, 0.0).amax(1).log() - law.gather(1, here)[:, 0].log()

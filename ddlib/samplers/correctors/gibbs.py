"""Corrector that resamples single positions given all others."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import torch
from jaxtyping import Bool
from torch import Tensor

from ddlib.processes import ForwardProcess
from ddlib.samplers.base import Guarantees, SamplingContext
from ddlib.samplers.correctors.base import Corrector
from ddlib.samplers.runtime.model import Predictions
from ddlib.typing import Times, Tokens
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import rand
from ddlib.utils.validation import check_count, require

_SELECT = ("random", "margin")


class Gibbs(Corrector):
    r"""Gibbs sampling: at some positions draws a token x from the cavity distribution and its state
    from q_t(. | x).

    This is the conditional distribution of a position given the others (theory section 9). One
    position chosen at random keeps the joint distribution of a sequence, for steps of any size.
    Several positions at once ("Hogwild") are drawn independently, and a choice that depends on the
    states is not a Gibbs step. Both are approximate, except for sequences of one token.

    The model output is the cavity distribution only in states that are reachable from every token
    (``process.reachable_from_all_tokens``): all states of uniform noise and GIDD, clusters with xi
    < 1 and the mask. A position in another state keeps it, and so does a position whose proposal is
    another state. The conditional distribution restricted to these states is thus kept (detailed
    balance). Tokens of a hierarchy therefore never change, and a masked process has no other state
    for a mask.

    Args:
        positions: number of positions per sequence, at least 1.
        select: "random", or "margin": positions whose state is unlikely compared to the likeliest
            other one, drawn without replacement in proportion to the ratio of both (informed
            correctors, arXiv 2407.21243).

    Raises:
        TypeError, ValueError: positions below 1, another selection; when sampling, a process with
            fewer than two such states.
    """

    def __init__(self, positions: int = 1, select: str = "random") -> None:
        self.positions = check_count("positions", positions)
        require(
            select in _SELECT,
            f"select is {select!r}, must be one of {', '.join(map(repr, _SELECT))}",
        )
        self.select = select

    @property
    def guarantees(self) -> Guarantees:
        exact = self.positions == 1 and self.select == "random"
        return replace(super().guarantees, consistent_joint=exact, exact_joint=exact)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(), cls(2, "margin")]

    def check(self, process: ForwardProcess) -> None:
        for component in process.components:
            number = int(_reachable(component.process).sum())
            if number >= 2:
                continue
            raise TypeError(
                f"{type(self).__name__} needs at least two states that every token may have "
                f"become, {component!r} has "
                f"{number}: its tokens are never wrong in the forward process; use Remask or Psi, "
                "which mask them "
                "again"
            )

    def correct(self, run: SamplingContext, z: Tokens, t: Times, h: Times) -> Tokens:
        process = run.process
        noise, u = (rand(z.shape, run.generator, z.device) for _ in range(2))
        eligible = run.free & process.reachable_from_all_tokens(z)
        random = self.select == "random"
        chosen = eligible & self._most(noise.masked_fill(~run.free, -1.0)) if random else eligible
        tokens = torch.zeros_like(z)
        odds = torch.full_like(noise, -torch.inf)
        for part in run.network.at(z, t, chosen):
            logits = part.token_logits(torch.zeros_like(part.z))
            tokens[part.b, part.i] = draw_logits(run.sharpen(logits[:, 0]), u[part.b, part.i])
            if not random:
                odds[part.b, part.i] = _log_odds(part, logits).to(odds)
        if not random:  # Gumbel noise: without replacement, in proportion
            chosen = eligible & self._most(odds - (-noise.log()).log())
        proposed = process.sample(tokens, t, run.generator)
        return torch.where(chosen & process.reachable_from_all_tokens(proposed), proposed, z)

    def _most(self, score: Tensor) -> Bool[Tensor, "B L"]:
        """Select the positions of each sequence with the highest scores."""
        best = score.topk(min(self.positions, score.shape[1]), dim=1).indices
        return torch.zeros_like(score, dtype=torch.bool).scatter(1, best, True)


def _reachable(process: ForwardProcess) -> Bool[Tensor, "n"]:
    """Return the mask of the states that are reachable from all tokens."""
    return process.reachable_from_all_tokens(
        torch.arange(process.num_states, device=process.device)[None]
    )[0]


def _log_odds(part: Predictions, logits: Tensor) -> Tensor:
    """Compute the log of the ratio of probabilities, (N,).

    The likeliest other state over the present one.
    """
    process = part.network.process
    probs = process.predictive(logits.softmax(-1), part.t)[:, 0].masked_fill(
        ~_reachable(process), 0.0
    )
    here = part.z[:, None]
    return probs.scatter(1, here, 0.0).amax(1).log() - probs.gather(1, here)[:, 0].log()

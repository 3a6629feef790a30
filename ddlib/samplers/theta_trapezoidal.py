"""Two looks a step, for an error that falls as their square."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Self

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.processes.base import evidence
from ddlib.samplers.base import Sampler, SamplingContext, State, at, joint, level_process
from ddlib.samplers.runtime.model import Predictions
from ddlib.samplers.runtime.reverse_step import Uniforms, apply_predictions
from ddlib.typing import Logits, Times, Tokens
from ddlib.utils.validation import check_number


class ThetaTrapezoidal(Sampler):
    r"""Goes a part theta of the step, looks again, and goes on by what was said now and then, extrapolated.

    With :math:`u = t - \theta (t - s)`, both stages are exact steps of a single word:

        z* from q(z_u | z_t, p), then z_s from q(z_s | z*, x) with x from (a_1 P* - a_2 P)_+, normalised

    where P* and P are p(x | z*) at u by what the network says about (z*, u) and about (z_t, t), :math:`a_1 = 1 /
    (2 \theta (1 - \theta))` and :math:`a_2 = a_1 - 1`. One word follows its law in any number of steps; the joint law
    errs as 1 / steps^2, for every process, because rates are linear in p(x | z). This holds where
    :math:`a_1 P^* \ge a_2 P`: words that depend on each other strongly are cut off at 0, and the error falls as 1 /
    steps again. At theta = 1/2 the least is cut off.

    After the theta-trapezoidal method of Ren et al. (arXiv 2502.00234), which extrapolates the rates of a leap; here
    only what the network says is extrapolated, and nothing leaps within a position. Two calls a step. For processes
    with levels all jumps are drawn first: the network runs on sequences in which a position jumps, the second time on
    those with a jump in the second stage.

    Args:
        theta: in (0, 1), how far the second look is.

    Raises:
        TypeError, ValueError: theta outside (0, 1).
    """

    max_model_calls = 2
    order = 2

    def __init__(self, theta: float = 0.5) -> None:
        self.theta = check_number("theta", theta, 1e-6, 1 - 1e-6, "in (0, 1)")

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(), cls(0.3)]  # at 1/2 many wrong weights are right

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        process, z, t, s = run.process, state.z, at(run, k), at(run, k + 1)
        u = self.between(t, s)
        if isinstance(process, LevelProcess):
            target = process.sample_level(z, t, u, run.generator)
            return State(self._by_levels(run, z, t, s, torch.where(run.free, target, process.level_of(z))), s)
        before = run.predict(z, t)
        middle = process.sample_given_level(before, z, t, u, None, run.generator, sharpen=run.sharpen)
        z = torch.where(run.free, middle, z)  # the second look is at the prompt too
        logits = self.extrapolated(process, before, run.predict(z, u), z, u)
        return State(process.sample_given_level(logits, z, u, s, None, run.generator, sharpen=run.sharpen), s)

    def between(self, t: Times, s: Times) -> Times:
        """The time of the second look."""
        return t - self.theta * (t - s)

    def extrapolated(self, process: ForwardProcess, before: Logits, after: Logits, z: Tokens, u: Times) -> Logits:
        """Logits of the cavity law whose p(x | z) at ``u`` is (a_1 P* - a_2 P)_+.

        As a_1 - a_2 = 1, at least all of the mass of a law is left.

        Args:
            process: the forward process.
            before: P without the evidence of ``z``, (B, L, V) logits.
            after: P* without it.
            z: (B, L) states at ``u``.
            u: (B,) times.
        """
        a = 1 / (2 * self.theta * (1 - self.theta))
        known = evidence(process, z, u)[0].to(after.dtype)
        now, then = ((logits.log_softmax(-1) + known).softmax(-1) for logits in (after, before))
        law = (a * now - (a - 1) * then).clamp_min(0)
        return torch.where(law > 0, law.log() - known, -torch.inf)

    def kernel(
        self, process: ForwardProcess, predict: Callable[[Tokens, Times], Logits], texts: Tokens, t: Times, s: Times
    ) -> Float64[Tensor, "N N"]:
        u, number = self.between(t, s), len(texts)
        before, after = predict(texts, t), predict(texts, u)
        first = joint(process.posterior(before.softmax(-1), texts, t, u), texts)
        here, there = torch.arange(number).repeat_interleave(number), torch.arange(number).repeat(number)
        logits = self.extrapolated(process, before[here], after[there], texts[there], u[there])
        second = joint(process.posterior(logits.softmax(-1), texts[there], u[there], s[there]), texts)
        return (first[..., None] * second.view(number, number, number)).sum(1)

    def _by_levels(self, run: SamplingContext, z: Tokens, t: Times, s: Times, first: Tokens) -> Tokens:
        """Both stages, given the levels after the first; where a position goes does not depend on where it is."""
        process, u = level_process(run), self.between(t, s)
        some = torch.tensor([0, *accumulate(process.levels[:-1])], device=z.device)[first]  # a state of its level
        last = torch.where(run.free, process.sample_level(some, u, s, run.generator), first)
        moves, still = first != process.level_of(z), last != first
        heard = list(run.network.at(z, t, moves | still))
        going = (said.take(moves[said.b, said.i]) for said in heard if bool(moves[said.b, said.i].any()))
        middle, far = apply_predictions(run, going, z, u, first, False), Uniforms(z, run.generator)
        result, done, then = middle.clone(), 0, _all([said.take(still[said.b, said.i]) for said in heard])
        for said in run.network.at(middle, u, still):
            places = torch.arange(done, done + len(said.z), device=z.device)
            done += len(places)
            target = last[said.b, said.i]
            assert then is not None  # who moves in the second stage was asked about in the first
            words = then.take(places).words(target), said.words(target)
            logits = self.extrapolated(process, *words, said.z[:, None], said.t)
            result[said.b, said.i] = process.sample_given_level(
                logits, said.z[:, None], said.t, s[said.b], target[:, None], far.at(said.b, said.i), sharpen=run.sharpen
            )[:, 0]
        return result


def _all(parts: list[Predictions]) -> Predictions | None:
    """Chunks of what was said, in one; None if nothing was."""
    if not parts:
        return None
    return Predictions(
        parts[0].network, *(torch.cat(columns) for columns in zip(*(part[1:] for part in parts), strict=True))
    )

"""Theta-trapezoidal solver: two network calls per step, second-order accurate."""

from collections.abc import Callable, Sequence
from itertools import accumulate
from typing import Self

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.processes.base import evidence
from ddlib.samplers.base import (
    Guarantees,
    Sampler,
    SamplingContext,
    State,
    at,
    joint,
    level_process,
)
from ddlib.samplers.reverse_step import draw_noise, draw_states
from ddlib.samplers.runtime.model import Predictions
from ddlib.typing import Logits, Times, Tokens
from ddlib.utils.random import rand
from ddlib.utils.validation import check_number


class ThetaTrapezoidal(Sampler):
    r"""Two-stage solver: a step to an intermediate time, then a step with predictions extrapolated
    from both times.

    With :math:`u = t - \theta (t - s)`, both stages are exact steps of a single token:

        z* from q(z_u | z_t, p), then z_s from q(z_s | z*, x) with x from (a_1 P* - a_2 P)_+,
        normalised

    where P* and P are p(x | z*) at u, computed from the model output at (z*, u) and at (z_t, t),
    :math:`a_1 = 1 / (2 \theta (1 - \theta))` and :math:`a_2 = a_1 - 1`. A single token has its
    exact distribution for any number of steps. The error of the joint distribution falls as 1 /
    steps^2, for every process, because rates are linear in p(x | z). This requires :math:`a_1 P^*
    \ge a_2 P`. For strongly dependent tokens the difference is clamped at 0, and the error falls as
    1 / steps. At theta = 1/2 the least is clamped.

    It follows the theta-trapezoidal method of Ren et al. (arXiv 2502.00234), which extrapolates the
    rates of tau-leaping. Here only the model output is extrapolated, and each position takes exact
    steps. Two network calls per step. In a process with levels all jumps are drawn first: the
    network runs on sequences in which a position jumps, and the second time on those with a jump in
    the second stage.

    Args:
        theta: in (0, 1), the intermediate time as a fraction of the step.

    Raises:
        TypeError, ValueError: theta outside (0, 1).
    """

    order = 2

    def __init__(self, theta: float = 0.5) -> None:
        self.theta = check_number("theta", theta, 1e-6, 1 - 1e-6, "in (0, 1)")

    @classmethod
    def examples(cls) -> Sequence[Self]:
        return [cls(), cls(0.3)]  # at 1/2 several wrong weights equal the right ones

    @property
    def guarantees(self) -> Guarantees:
        return Guarantees(max_model_calls=2, supports_fields=False, movable_positions=True)

    def step(self, run: SamplingContext, state: State, k: int) -> State:
        process = run.process
        z = state.z
        t = at(run, k)
        s = at(run, k + 1)
        u = self.intermediate_time(t, s)
        if isinstance(process, LevelProcess):
            target = process.sample_level(z, t, u, run.generator)
            return State(
                self._by_levels(run, z, t, s, torch.where(run.free, target, process.level_of(z))), s
            )
        noise = process.draw_uniforms(z, run.generator)
        before = run.predict(z, t)
        middle = process.sample_posterior(before, z, t, u, noise, sharpen=run.sharpen)
        z = torch.where(run.free, middle, z)  # the second call takes the prompt too
        noise = process.draw_uniforms(z, run.generator)
        logits = self.extrapolate(process, before, run.predict(z, u), z, u)
        return State(process.sample_posterior(logits, z, u, s, noise, sharpen=run.sharpen), s)

    def intermediate_time(self, t: Times, s: Times) -> Times:
        """Compute the time u of the second network call."""
        return t - self.theta * (t - s)

    def extrapolate(
        self, process: ForwardProcess, before: Logits, after: Logits, z: Tokens, u: Times
    ) -> Logits:
        """Compute logits of the cavity distribution whose p(x | z) at ``u`` is (a_1 P* - a_2 P)_+,
        normalised.

        As a_1 - a_2 = 1, the total mass before normalisation is at least 1.

        Args:
            process: the forward process.
            before: (B, L, V) logits of P without the evidence of ``z``.
            after: (B, L, V) logits of P* without the evidence of ``z``.
            z: (B, L) states at ``u``.
            u: (B,) times.
        """
        a = 1 / (2 * self.theta * (1 - self.theta))
        log_evidence = evidence(process, z, u)[0].to(after.dtype)
        second, first = (
            (logits.log_softmax(-1) + log_evidence).softmax(-1) for logits in (after, before)
        )
        probs = (a * second - (a - 1) * first).clamp_min(0)
        # back to cavity form, without the evidence of z
        return torch.where(probs > 0, probs.log() - log_evidence, -torch.inf)

    def kernel(
        self,
        process: ForwardProcess,
        predict: Callable[[Tokens, Times], Logits],
        z: Tokens,
        t: Times,
        s: Times,
    ) -> Float64[Tensor, "N N"]:
        u = self.intermediate_time(t, s)
        number = len(z)
        before = predict(z, t)
        after = predict(z, u)
        first = joint(process.posterior(before.softmax(-1), z, t, u), z)
        start = torch.arange(number).repeat_interleave(number)
        middle = torch.arange(number).repeat(number)
        logits = self.extrapolate(process, before[start], after[middle], z[middle], u[middle])
        second = joint(process.posterior(logits.softmax(-1), z[middle], u[middle], s[middle]), z)
        return (first[..., None] * second.view(number, number, number)).sum(1)

    def _by_levels(
        self, run: SamplingContext, z: Tokens, t: Times, s: Times, first: Tokens
    ) -> Tokens:
        """Take both stages, given the levels ``first`` after the first.

        They do not depend on states within levels.
        """
        process = level_process(run)
        u = self.intermediate_time(t, s)
        # one per level
        members = torch.tensor([0, *accumulate(process.levels[:-1])], device=z.device)[first]
        last = torch.where(run.free, process.sample_level(members, u, s, run.generator), first)
        moves = first != process.level_of(z)
        moves_later = last != first
        noise = draw_noise(run, False)
        later_noise = rand(z.shape, run.generator, z.device)
        # the second stage extrapolates from predictions of the first call too
        predicted = list(run.network.at(z, t, moves | moves_later))
        moving = (
            part.take(moves[part.b, part.i])
            for part in predicted
            if bool(moves[part.b, part.i].any())
        )
        middle = draw_states(run, moving, z, first, noise, False)
        result = middle.clone()
        count = 0
        before = _all([part.take(moves_later[part.b, part.i]) for part in predicted])
        for part in run.network.at(middle, u, moves_later):
            rows = torch.arange(count, count + len(part.z), device=z.device)
            count += len(rows)
            target = last[part.b, part.i]
            # the first call has predictions at all positions of the second stage
            assert before is not None
            logits_of_stages = before.take(rows).token_logits(target), part.token_logits(target)
            logits = self.extrapolate(process, *logits_of_stages, part.z[:, None], part.t)[:, 0]
            result[part.b, part.i] = process.descend(
                logits, part.z, target, later_noise[part.b, part.i], sharpen=run.sharpen
            )
        return result


def _all(parts: list[Predictions]) -> Predictions | None:
    """Concatenate chunks of predictions; None without any."""
    if not parts:
        return None
    return Predictions(
        parts[0].network,
        *(torch.cat(columns) for columns in zip(*(part[1:] for part in parts), strict=True)),
    )

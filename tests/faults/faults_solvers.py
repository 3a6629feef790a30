"""Samplers with constant rates during a step, and samplers with two model calls per step (theory
section 9).
"""

import sys

import torch
from planting import fault

from ddlib.contrib import ThetaTrapezoidal
from ddlib.processes.broadcasting import each_time
from ddlib.samplers import Ancestral, Euler, State, TauLeaping
from ddlib.samplers.base import at
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import rand

LEVELLED = sys.modules["ddlib.processes.level_process"].LevelProcess
MIXING = sys.modules["ddlib.processes.interpolating"].Interpolating
LEAP = sys.modules["ddlib.samplers.rate_based"]


@fault("R sums Q_t(y, z) q_t(y|p) / q_t(z|p)", Euler, within=LEVELLED)
def the_exit_rate_is_that_of_the_forward_process(exit_rate, self, z, t, logits=None, sharpen=None):
    return each_time(lambda time: -self.rate_matrix(time).diagonal(), t).gather(1, z)


@fault("R sums Q_t(y, z) q_t(y|p) / q_t(z|p)", Euler, within=MIXING)
def the_ratio_of_marginals_in_the_rates_is_inverted(_apart, self, logits, z, t):
    others, here = _apart(logits, z, t)
    total = others.keep + others.token + others.mask
    return others._replace(keep=here, token=0 * here, mask=0 * here), total


@fault("a position jumps to another state", Euler, within=MIXING)
def destinations_include_the_present_state(
    sample_exit, self, logits, z, t, moves, generator=None, **options
):
    probs = self.predictive(logits.softmax(-1), t).log().flatten(0, 1)
    return torch.where(
        moves, draw_logits(probs, rand(z.shape, generator, z.device).flatten()).view_as(z), z
    )


@fault("destinations are drawn from q_t(.|p), not from p", TauLeaping, within=MIXING)
def destinations_are_drawn_from_p_in_place_of_the_marginal(
    sample_exit, self, logits, z, t, moves, generator=None, **options
):
    probs = logits.scatter(-1, z[..., None], -torch.inf).flatten(0, 1)
    return torch.where(
        moves, draw_logits(probs, rand(z.shape, generator, z.device).flatten()).view_as(z), z
    )


@fault("a jump of a hierarchy leads one level down", TauLeaping, within=LEAP)
def jumps_lead_to_tokens_in_place_of_the_next_level(move, run, z, t, to, force):
    return move(run, z, t, torch.where(to < run.process.level_of(z), 0, to), force)


@fault("exactly one event has the probability R h exp(-R h)", TauLeaping)
def the_probability_of_a_jump_is_that_of_no_event(chance, self, hits):
    return torch.exp(-hits)


@fault("R is evaluated at the start of the step")
def rates_are_evaluated_at_the_end_of_the_step(patch):
    right = LEVELLED.exit_rate

    class Broken(Euler):
        def step(self, run, state, k):
            with_next = lambda self, z, t, *rest: right(self, z, at(run, k + 1), *rest)  # noqa: E731
            patch.setattr(LEVELLED, "exit_rate", with_next)
            return super().step(run, state, k)

    return Broken()


@fault("the probability of a jump depends on the length of the step", Euler)
def inner_steps_use_the_time_t_as_their_length(step, self, run, state, k):
    if k in (0, run.steps - 1):
        return step(run, state, k)
    times = torch.cat([run.times[: k + 1], torch.zeros(2).to(run.times)])
    return State(step(type(run)(**{**vars(run), "times": times}), state, k).z, at(run, k + 1))


@fault("for sequences of independent positions the error is of order 1 / steps", Ancestral)
def the_declared_order_of_a_sampler_is_too_high(order, self):
    return 2


class Trapezoid(ThetaTrapezoidal):
    """Sampler with another extrapolation of p(x|z), in its draws and in its kernel."""

    def extrapolate(self, process, before, after, z, u):
        evidence = process.token_likelihood(z, u).log()
        now, then = ((logits + evidence).softmax(-1) for logits in (after, before))
        return self.mixed(now, then).clamp_min(1e-12).log() - evidence.clamp_min(-1e30)

    def mixed(self, now, then):
        raise NotImplementedError


fault("a_1 is the factor of the current prediction", Trapezoid)(
    the_two_predictions_are_exchanged_in_the_extrapolation=lambda mixed, self, now, then: (
        2 * then - now
    )
)
fault("a_1 - a_2 = 1 with a_1 = 1 / (2 theta (1 - theta))", Trapezoid)(
    the_extrapolation_ignores_the_first_prediction=lambda mixed, self, now, then: now
)


@fault("a_1 = 1 / (2 theta (1 - theta))", Trapezoid, 0.3)
def the_extrapolation_weight_is_correct_only_at_theta_one_half(mixed, self, now, then):
    a = 1 / (2 * self.theta**2)
    return a * now - (a - 1) * then


@fault("sample_given_level takes cavity probabilities", ThetaTrapezoidal)
def the_evidence_of_z_is_counted_twice(extrapolate, self, process, before, after, z, u):
    return extrapolate(process, before, after, z, u) + process.token_likelihood(z, u).log()


class Stages(ThetaTrapezoidal):
    """Sampler with both stages at every position.

    ``second`` returns states and times for the second stage.
    """

    def step(self, run, state, k):
        process = run.process
        z = state.z
        t = at(run, k)
        s = at(run, k + 1)
        u = self.intermediate_time(t, s)
        before = run.predict(z, t)
        middle = process.sample_given_level(before, z, t, u, None, run.generator)
        start, time = self.second(z, middle, t, u)
        logits = self.extrapolate(process, before, run.predict(start, time), start, time)
        return State(process.sample_given_level(logits, start, time, s, None, run.generator), s)

    def second(self, z, middle, t, u):
        return middle, u


fault("the second stage starts from the states at which the first ended", Stages)(
    the_second_stage_starts_at_z_t=lambda second, self, z, middle, t, u: (z, u)
)
fault("the second stage starts at the time at which the first ended", Stages)(
    the_second_stage_starts_at_time_t=lambda second, self, z, middle, t, u: (middle, t)
)


@fault("the second stage starts from the levels at which the first ended", ThetaTrapezoidal)
def the_second_stage_starts_from_the_levels_at_t(_by_levels, self, run, z, t, s, first):
    return _by_levels(run, z, t, s, run.process.level_of(z))

"""Theory section 9: steps by rates, and two looks a step."""

import sys

import torch
from planting import fault

from ddlib.processes import each_time
from ddlib.samplers import Ancestral, Euler, State, TauLeaping, ThetaTrapezoidal
from ddlib.samplers.base import at
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import rand

LEVELLED, MIXING = (
    sys.modules["ddlib.processes.level_process"].LevelProcess,
    sys.modules["ddlib.processes.interpolating"].Interpolating,
)
LEAP = sys.modules["ddlib.samplers.rate_based"]


@fault("R sums Q_t(y, z) q_t(y|p) / q_t(z|p)")
def rates_are_those_at_which_noise_leaves(patch):
    def exit_rate(self, z, t, logits=None, sharpen=None):
        return each_time(lambda time: -self.rate_matrix(time).diagonal(), t).gather(1, z)

    patch.setattr(LEVELLED, "exit_rate", exit_rate)
    return Euler()


@fault("R sums Q_t(y, z) q_t(y|p) / q_t(z|p)")
def the_score_stands_upside_down(patch):
    right = MIXING._apart

    def apart(self, logits, z, t):
        others, here = right(self, logits, z, t)
        total = others.keep + others.word + others.mask
        return others._replace(keep=here, word=0 * here, mask=0 * here), total

    patch.setattr(MIXING, "_apart", apart)
    return Euler()


@fault("a position jumps to another state")
def a_jump_may_lead_nowhere(patch):
    def sample_exit(self, logits, z, t, moves, generator=None, **options):
        law = self.predictive(logits.softmax(-1), t).log().flatten(0, 1)
        return torch.where(moves, draw_logits(law, rand(z.shape, generator, z.device).flatten()).view_as(z), z)

    patch.setattr(MIXING, "sample_exit", sample_exit)
    return Euler()


@fault("destinations are drawn from q_t(.|p), not from p")
def a_jump_leads_to_a_clean_word(patch):
    def sample_exit(self, logits, z, t, moves, generator=None, **options):
        law = logits.scatter(-1, z[..., None], -torch.inf).flatten(0, 1)
        return torch.where(moves, draw_logits(law, rand(z.shape, generator, z.device).flatten()).view_as(z), z)

    patch.setattr(MIXING, "sample_exit", sample_exit)
    return TauLeaping()


@fault("a jump of a hierarchy leads one level down")
def masks_jump_to_words_past_their_clusters(patch):
    right = LEAP.move
    patch.setattr(
        LEAP,
        "move",
        lambda run, z, t, s, to, force: right(run, z, t, s, torch.where(to < run.process.level_of(z), 0, to), force),
    )
    return TauLeaping()


@fault("one hit has the probability R h exp(-R h)")
def those_that_are_not_hit_jump(patch):
    class Broken(TauLeaping):
        def chance(self, hits):
            return torch.exp(-hits)

    return Broken()


@fault("R is that of the step's start")
def rates_are_those_of_the_next_time(patch):
    right = LEVELLED.exit_rate

    class Broken(Euler):
        def step(self, run, state, k):
            with_next = lambda self, z, t, *rest: right(self, z, at(run, k + 1), *rest)  # noqa: E731
            patch.setattr(LEVELLED, "exit_rate", with_next)
            return super().step(run, state, k)

    return Broken()


@fault("the chance to jump grows with the step")
def a_step_has_the_length_of_its_time(patch):
    class Broken(Euler):
        def step(self, run, state, k):
            if k in (0, run.steps - 1):
                return super().step(run, state, k)
            times = torch.cat([run.times[: k + 1], torch.zeros(2).to(run.times)])
            return State(super().step(type(run)(**{**vars(run), "times": times}), state, k).z, at(run, k + 1))

    return Broken()


@fault("texts of positions that jump on their own err as 1 / steps")
def a_sampler_says_more_of_its_order_than_is_true(patch):
    class Broken(Ancestral):
        order = 2

    return Broken()


def trapezoid(change):
    """With another extrapolation, ``change(a, now, then)``, of p(x|z); draws and kernel have it in common."""

    class Broken(ThetaTrapezoidal):
        def extrapolated(self, process, before, after, z, u):
            evidence = process.token_likelihood(z, u).log()
            now, then = ((logits + evidence).softmax(-1) for logits in (after, before))
            return change(self.theta, now, then).clamp_min(1e-12).log() - evidence.clamp_min(-1e30)

    return Broken


@fault("a_1 belongs to what is said now")
def what_was_said_first_counts_most(patch):
    return trapezoid(lambda theta, now, then: 2 * then - now)()


@fault("a_1 - a_2 = 1 with a_1 = 1 / (2 theta (1 - theta))")
def what_was_said_first_is_forgotten(patch):
    return trapezoid(lambda theta, now, then: now)()


@fault("a_1 = 1 / (2 theta (1 - theta))")
def the_weight_is_right_at_a_half_only(patch):
    a = lambda theta: 1 / (2 * theta**2)  # noqa: E731
    return trapezoid(lambda theta, now, then: a(theta) * now - (a(theta) - 1) * then)(0.3)


@fault("land takes a cavity law")
def the_evidence_is_counted_twice(patch):
    class Broken(ThetaTrapezoidal):
        def extrapolated(self, process, before, after, z, u):
            return super().extrapolated(process, before, after, z, u) + process.token_likelihood(z, u).log()

    return Broken()


def stages(second):
    """The two stages at every position and process, with ``second(z, z*)`` and its time to start from."""

    class Broken(ThetaTrapezoidal):
        def step(self, run, state, k):
            process, z, t, s = run.process, state.z, at(run, k), at(run, k + 1)
            u, before = self.between(t, s), run.predict(z, t)
            middle = process.sample_given_level(before, z, t, u, None, run.generator)
            start, time = second(z, middle, t, u)
            logits = self.extrapolated(process, before, run.predict(start, time), start, time)
            return State(process.sample_given_level(logits, start, time, s, None, run.generator), s)

    return Broken()


@fault("the second stage starts where the first ended")
def the_second_stage_starts_at_z_t(patch):
    return stages(lambda z, middle, t, u: (z, u))


@fault("the second stage starts when the first ended")
def the_second_stage_takes_the_time_of_the_whole(patch):
    return stages(lambda z, middle, t, u: (middle, t))


@fault("the second stage's jumps start from the first's levels")
def levels_of_the_second_stage_are_those_of_the_first(patch):
    class Broken(ThetaTrapezoidal):
        def _by_levels(self, run, z, t, s, first):
            return super()._by_levels(run, z, t, s, run.process.level_of(z))

    return Broken()

"""Correctors (theory sections 8 and 9), and the sampler that applies one after each of its steps."""

import sys

import torch
from planting import fault

from ddlib.samplers import Ancestral, Corrected, EdgeBalance, ForwardBackward, Gibbs, Psi
from ddlib.samplers.base import at
from ddlib.samplers.runtime.reverse_step import shift
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import rand

LEVELLED = sys.modules["ddlib.processes.level_process"]


def words_from_cavity(run, z, t, where):
    u, words = rand(z.shape, run.generator, z.device), torch.zeros_like(z)
    for out in run.network.at(z, t, where):
        words[out.b, out.i] = draw_logits(out.words(torch.zeros_like(out.z))[:, 0], u[out.b, out.i])
    return words


@fault("a proposal outside the states that every word may have become is rejected", Gibbs)
def clusters_are_drawn_as_words_which_never_come_back(correct, self, run, z, t, h):
    order = rand(z.shape, run.generator, z.device)
    where_redrawn = (order == order.amax(1, keepdim=True)) & run.process.reachable_from_all_tokens(z)
    words = words_from_cavity(run, z, t, where_redrawn)
    return torch.where(where_redrawn, run.process.sample(words, t, run.generator), z)


@fault("the state is q_t(.|x), not the word", Gibbs)
def a_drawn_word_is_not_noised(correct, self, run, z, t, h):
    right = correct(run, z, torch.zeros_like(t) + 1e-9, h)
    return torch.where(run.process.reachable_from_all_tokens(right), right, z)


@fault("the correction is at t", Gibbs)
def a_drawn_word_is_noised_to_the_time_before(correct, self, run, z, t, h):
    return correct(run, z, (t + h).clamp_max(1), h)


@fault("positions are chosen irrespective of their states", Gibbs)
def what_is_believed_least_is_drawn_again_and_called_exact(__init__, self):
    __init__(1, "margin")
    self.consistent_joint = self.exact_joint = True


@fault("one position at a time", Gibbs)
def two_positions_at_once_are_called_exact(__init__, self):
    __init__(2)
    self.consistent_joint = self.exact_joint = True


@fault("choices are a text's own", Gibbs)
def the_least_believed_of_the_whole_batch_are_drawn(_most, self, score):
    best = score.flatten().topk(len(score)).indices
    return torch.zeros_like(score, dtype=torch.bool).flatten().scatter(0, best, True).view_as(score)


@fault("noise belongs to the example", Gibbs)
def a_correction_draws_from_the_global_state(correct, self, run, z, t, h):
    return correct(type(run)(**{**vars(run), "generator": None}), z, t, h)


@fault("sigma_i a_i(t) goes up and as much comes down", EdgeBalance, 3.0)
def edges_are_balanced_at_the_time_before(correct, self, run, z, t, h):
    u = (t + h).clamp_max(1)
    target = run.process.sample_level(z, u, u, run.generator, self.sigma(run.process, t, h))
    return shift(run, z, u, u, target, force=False)


@fault("sigma_i a_i(t) goes up and as much comes down", EdgeBalance, 3.0, within=LEVELLED)
def words_climb_in_a_correction_and_nobody_comes_down(remask_coupling, joint, level, lift):
    return torch.where((level == 0)[..., None], remask_coupling(joint, level, lift), 0.0)


@fault("sigma_i is at most what levels above can give back", EdgeBalance, 10.0)
def more_climb_than_can_come_down(sigma, self, process, t, h):
    stay = process.level_transition(t, (t + h).clamp_max(1))
    return self.strength * (1 - stay.diagonal(dim1=-2, dim2=-1)[:, :-1])


@fault("back by q(z_t | z_u, p)", ForwardBackward)
def noise_is_taken_away_by_words_that_do_not_know_their_state(correct, self, run, z, t, h):
    u = (t + self.amount * h).clamp_max(1)
    noised = run.process.sample_forward(z, t, u, run.generator)
    words = words_from_cavity(run, noised, u, torch.ones_like(run.free))
    return run.process.sample(words, t, run.generator)


@fault("back to the time from which it went", ForwardBackward, 3.0)
def a_correction_comes_back_by_one_step_whatever_its_amount(correct, self, run, z, t, h):
    u = (t + self.amount * h).clamp_max(1)
    return Ancestral().back(run, run.process.sample_forward(z, t, u, run.generator), u, u - h)


@fault("network calls are counted", Gibbs)
def every_correction_asks_twice(correct, self, run, z, t, h):
    run.predict(z, t)
    return correct(run, z, t, h)


@fault("a correction is at the time that the step led to", Corrected, Psi(0.9), Gibbs())
def corrections_take_the_time_before_the_step(step, self, run, state, k):
    z, t, s = self.predictor.step(run, state, k).z, at(run, k), at(run, k + 1)
    return state._replace(z=self.corrector.correct(run, z, t, t - s), t=s)


@fault(
    "the prompt stands while the rest is corrected",
    ForwardBackward,
    build=lambda cls: Corrected(Ancestral(), cls(30.0)),
)
def a_correction_forgets_the_prompt(correct, self, run, z, t, h):
    free = type(run)(**{**vars(run), "free": torch.ones_like(run.free)})
    return correct(free, z, t, h)

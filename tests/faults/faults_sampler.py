"""Samplers (theory section 3)."""

import sys
from copy import copy
from dataclasses import replace

import torch
from planting import clamped, declare, fault

from ddlib.contrib import Psi
from ddlib.processes import identity
from ddlib.samplers import Ancestral, FirstHitting, Remask, State, TauLeaping
from ddlib.samplers.base import at
from ddlib.samplers.runtime.model import Model
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import rand

LEVELLED = sys.modules["ddlib.processes.level_process"]


@fault("the last step leads to t = 0", Ancestral, build=clamped)
def the_last_step_is_skipped(step, self, run, state, k):
    return step(run, state, k) if k < run.steps - 1 else state._replace(t=at(run, run.steps))


@fault("s < t at every step", Ancestral, build=clamped)
def the_time_grid_is_off_by_one_as_in_the_code_of_gidd(step, self, run, state, k):
    return step(run, state, k - 1) if k > 0 else state


@fault("tokens are drawn from their distribution", Ancestral)
def every_distribution_is_replaced_by_its_mode(step, self, run, state, k):
    def mode(log_probs):
        return torch.where(log_probs == log_probs.amax(-1, keepdim=True), 0.0, -torch.inf)

    return step(type(run)(**{**vars(run), "sharpen": mode}), state, k)


@fault("tokens are drawn after temperature, top_k and top_p", Ancestral)
def temperature_and_truncation_are_ignored(step, self, run, state, k):
    return step(type(run)(**{**vars(run), "sharpen": identity}), state, k)


@fault("tokens are drawn after temperature, top_k and top_p", TauLeaping)
def truncation_is_ignored_and_temperature_is_not(step, self, run, state, k):
    def warmer(log_probs):
        tempered = run.sharpen(log_probs)
        return torch.where(tempered.isinf(), log_probs, tempered)

    return step(type(run)(**{**vars(run), "sharpen": warmer}), state, k)


@fault("the network is evaluated at the current t and z", Ancestral)
def the_network_is_called_only_once(step, self, run, state, k):
    logits = run.predict(state.z, state.t) if state.memo is None else state.memo
    stale = type(run)(**{**vars(run), "network": Model(run.process, lambda z, t: logits)})
    return step(stale, state._replace(memo=None), k)._replace(memo=logits)


@fault("the network is evaluated at the current t and z", Psi, 0.0)
def the_network_is_called_at_the_next_time(step, self, run, state, k):
    class Late(Model):
        def __call__(self, z, t):
            return super().__call__(z, at(run, k + 1))

        def at(self, z, t, where):
            return super().at(z, at(run, k + 1), where)

    network = copy(run.network)
    network.__class__ = Late
    return step(replace(run, network=network), state, k)


@fault("the number of network calls is the declared one", Ancestral)
def the_network_is_called_twice_in_every_step(step, self, run, state, k):
    run.predict(state.z, state.t)
    return step(run, state, k)


@fault("all draws use the given generator", Ancestral)
def draws_use_the_global_generator(step, self, run, state, k):
    return step(type(run)(**{**vars(run), "generator": None}), state, k)


@fault("samples contain only tokens")
def some_masks_remain_in_the_samples(patch):
    class Broken(Ancestral):
        def step(self, run, state, k):
            done = super().step(run, state, k)
            keep = rand(state.z.shape, run.generator, state.z.device) < 0.02
            return State(torch.where(keep, state.z, done.z), done.t)

        def finalize(self, run, state):
            return state.z

    return Broken()


@fault("levels at s have the probabilities a_i(s) T_ij / a_j(t)", Ancestral)
def all_jumps_happen_in_the_first_step(step, self, run, state, k):
    if k > 0:
        return state._replace(t=at(run, run.steps))
    zero = torch.zeros_like(state.t)
    logits = run.predict(state.z, state.t)
    return State(
        run.process.sample_given_level(logits, state.z, state.t, zero, None, run.generator), zero
    )


@fault("a token stays the same")
def a_sampler_that_masks_tokens_again_is_declared_to_keep_them(patch):
    return declare(Remask, keeps_tokens=True)(0.5, "rescale")


@fault("first-hitting times are those of the chain", FirstHitting)
def jump_times_are_sorted_in_ascending_order(init, self, run):
    state = init(run)
    entries, events, count = state.memo
    return state._replace(memo=(entries, events.sort(-1).values, count))


@fault(
    "ascents sigma_i a_i from level i equal the descents to it",
    Remask,
    0.5,
    "rescale",
    within=LEVELLED,
)
def ascents_of_tokens_have_no_compensating_descents(remask_coupling, joint, level, lift):
    return torch.where((level == 0)[..., None], remask_coupling(joint, level, lift), 0.0)


@fault(
    "ascents sigma_i a_i from level i equal the descents to it",
    Remask,
    0.5,
    "rescale",
    within=LEVELLED,
)
def descents_to_tokens_have_no_compensating_ascents(remask_coupling, joint, level, lift):
    return torch.where((level > 0)[..., None], remask_coupling(joint, level, lift), 0.0)


@fault("z_s is a mixture of the posterior and of tokens noised again", Psi, 0.5, build=clamped)
def all_tokens_are_noised_to_t_in_place_of_s(step, self, run, state, k):
    t = at(run, k)
    tokens = self._tokens(run, run.predict(state.z, t), state.z, t)
    return State(run.process.sample(tokens, t, run.generator), at(run, k + 1))


@fault("tokens that are noised again are drawn from q(x|z_t, p)", Psi, 0.5)
def tokens_to_be_noised_again_are_drawn_from_the_cavity_distribution(
    _tokens, self, run, logits, z, t
):
    return draw_logits(
        logits.flatten(0, 1), rand(z.shape, run.generator, z.device).flatten()
    ).view_as(z)


@fault("a step returns a state", Ancestral, raises="TypeError")
def a_step_returns_the_tokens_alone(step, self, run, state, k):
    return step(run, state, k).z

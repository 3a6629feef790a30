"""Theory section 3: samplers."""

import sys

import torch
from planting import fault

from ddlib.samplers import Ancestral, FirstHitting, Psi, Remask, State
from ddlib.samplers.base import at
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import rand

LEVELLED = sys.modules["ddlib.processes.level_process"]


@fault("the last step leads to t = 0")
def the_last_step_is_skipped(patch):
    class Broken(Ancestral):
        def step(self, run, state, k):
            return super().step(run, state, k) if k < run.steps - 1 else state._replace(t=at(run, run.steps))

        def finalize(self, run, state):
            return state.z.clamp_max(run.process.vocab_size - 1)

    return Broken()


@fault("s < t at every step")
def the_time_grid_is_off_by_one_as_in_gidds_code(patch):
    class Broken(Ancestral):
        def step(self, run, state, k):
            return super().step(run, state, k - 1) if k > 0 else state

        def finalize(self, run, state):
            return state.z.clamp_max(run.process.vocab_size - 1)

    return Broken()


@fault("words are drawn, not maximised")
def every_law_is_replaced_by_its_mode(patch):
    class Broken(Ancestral):
        def step(self, run, state, k):
            def mode(log_probs):
                return torch.where(log_probs == log_probs.amax(-1, keepdim=True), 0.0, -torch.inf)

            return super().step(type(run)(**{**vars(run), "sharpen": mode}), state, k)

    return Broken()


@fault("p depends on t and z")
def the_network_is_asked_only_once(patch):
    class Broken(Ancestral):
        def step(self, run, state, k):
            logits = run.predict(state.z, state.t) if state.memo is None else state.memo
            stale = type(run)(**{**vars(run), "predict": lambda z, t: logits})
            return super().step(stale, state._replace(memo=None), k)._replace(memo=logits)

    return Broken()


@fault("network calls are counted")
def the_network_is_asked_twice_a_step(patch):
    class Broken(Ancestral):
        def step(self, run, state, k):
            run.predict(state.z, state.t)
            return super().step(run, state, k)

    return Broken()


@fault("noise belongs to the example")
def draws_come_from_the_global_state(patch):
    class Broken(Ancestral):
        def step(self, run, state, k):
            return super().step(type(run)(**{**vars(run), "generator": None}), state, k)

    return Broken()


@fault("samples are words")
def masks_are_left_where_the_time_is_up(patch):
    class Broken(Ancestral):
        def step(self, run, state, k):
            done = super().step(run, state, k)
            keep = rand(state.z.shape, run.generator, state.z.device) < 0.02
            return State(torch.where(keep, state.z, done.z), done.t)

        def finalize(self, run, state):
            return state.z

    return Broken()


@fault("jumps follow the bracket a_i(s) T_ij / a_j(t)")
def every_jump_happens_in_the_first_step(patch):
    class Broken(Ancestral):
        def step(self, run, state, k):
            if k > 0:
                return state._replace(t=at(run, run.steps))
            zero = torch.zeros_like(state.t)
            logits = run.predict(state.z, state.t)
            return State(run.process.sample_given_level(logits, state.z, state.t, zero, None, run.generator), zero)

    return Broken()


@fault("first-hitting times are those of the chain")
def jumps_are_taken_in_the_wrong_order(patch):
    class Broken(FirstHitting):
        def init(self, run):
            state = super().init(run)
            entries, events, count = state.memo
            return state._replace(memo=(entries, events.sort(-1).values, count))

    return Broken()


def remask(change):
    """Remask with another coupling of the levels."""

    def plant(patch):
        right = LEVELLED.remask_coupling
        patch.setattr(LEVELLED, "remask_coupling", lambda joint, level, lift: change(right, joint, level, lift))
        return Remask(0.5, "rescale")

    return plant


@fault("sigma_i a_i goes up and as much comes down")
def words_climb_and_nobody_comes_down_for_them(patch):
    def change(right, joint, level, lift):
        return torch.where((level == 0)[..., None], right(joint, level, lift), 0.0)

    return remask(change)(patch)


@fault("sigma_i a_i goes up and as much comes down")
def masks_come_down_and_nobody_climbs_for_them(patch):
    def change(right, joint, level, lift):
        return torch.where((level > 0)[..., None], right(joint, level, lift), 0.0)

    return remask(change)(patch)


@fault("z_s is a mixture of the posterior and of words noised anew")
def words_are_noised_to_the_time_before(patch):
    class Broken(Psi):
        def step(self, run, state, k):
            t = at(run, k)
            words = self._words(run, run.predict(state.z, t), state.z, t)
            return State(run.process.sample(words, t, run.generator), at(run, k + 1))

        def finalize(self, run, state):
            return state.z.clamp_max(run.process.vocab_size - 1)

    return Broken(0.5)


@fault("words noised anew come from q(x|z_t, p)")
def words_noised_anew_do_not_know_their_state(patch):
    class Broken(Psi):
        def _words(self, run, logits, z, t):
            return draw_logits(logits.flatten(0, 1), rand(z.shape, run.generator, z.device).flatten()).view_as(z)

    return Broken(0.5)

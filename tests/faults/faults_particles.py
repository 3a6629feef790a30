"""Sequential Monte Carlo: weights, resampled particles, batch rows and prompts."""

import sys

import torch
from planting import fault

from ddlib.contrib import Psi
from ddlib.samplers import Ancestral, FirstHitting, Particles, State
from ddlib.samplers.particles import Constant

CLOUD = sys.modules["ddlib.samplers.particles"]


def particles(cls, sampler=None, number=2):
    return cls(FirstHitting() if sampler is None else sampler, Constant(), number)


@fault("particles have equal weights after resampling", Particles, build=particles)
def weights_are_kept_after_resampling(_resample, self, run, cloud):
    return _resample(run, cloud)._replace(weight=cloud.weight)


@fault("weights grow by the increase of the reward", Particles, build=particles)
def weights_grow_by_the_reward_in_place_of_its_increase(_weigh, self, cloud, state, when):
    return _weigh(cloud._replace(gain=torch.zeros_like(cloud.gain)), state, when)


@fault("the reward is multiplied by scale", Particles, build=particles)
def the_reward_is_not_multiplied_by_scale(_gain, self, z, t, when):
    return self.reward(z, t).double()


@fault("each batch row resamples its own particles", Particles, build=particles)
def resampling_moves_particles_between_batch_rows(_resample, self, run, cloud):
    done = _resample(run, cloud)
    rows = torch.arange(cloud.weight.numel()).roll(1)
    gain = done.gain.flatten()[rows].view_as(done.gain)
    return done._replace(state=self.sampler.select_rows(done.state, rows), gain=gain)


@fault("batch rows resample independently", Particles, build=particles)
def rows_are_resampled_only_if_all_rows_of_the_batch_require_it(_unlike, self, share):
    return _unlike(share).all().expand(len(share))


@fault("every particle contains the prompt", Particles, build=particles)
def the_prompt_is_not_set_in_the_particles(_with_prompt, self, inner, state, shown):
    return state


@fault("the reward is evaluated at the new states", Particles, Ancestral(), build=particles)
def the_reward_is_evaluated_at_the_states_before_the_step(_weigh, self, cloud, state, when):
    return _weigh(cloud, state._replace(z=cloud.state.z), when)._replace(state=state)


@fault("a copied particle has the reward of the original", Particles, build=particles)
def resampling_does_not_reorder_the_rewards(_resample, self, run, cloud):
    return _resample(run, cloud)._replace(gain=cloud.gain)


@fault("particles are copied in proportion to their weights", Particles, build=particles)
def resampling_copies_particles_by_negated_log_weights(_resample, self, run, cloud):
    done = _resample(run, cloud._replace(weight=-cloud.weight))
    return done._replace(total=_resample(run, cloud).total)


@fault("the estimate of Z is a product over all resamplings", Particles, build=particles)
def the_estimate_omits_the_weights_before_resampling(_resample, self, run, cloud):
    return _resample(run, cloud)._replace(total=cloud.total)


@fault("the final particle is drawn in proportion to the weights", Particles, build=particles)
def the_final_particle_is_drawn_uniformly(finalize, self, run, state):
    cloud = self.weigh(run, state)
    return cloud._replace(weight=torch.zeros_like(cloud.weight)).draw_particles().z


@fault("the final particle is drawn in proportion to the weights", Particles, build=particles)
def the_particle_of_the_largest_weight_is_returned(finalize, self, run, state):
    cloud = self.weigh(run, state)
    heaviest = cloud.weight.argmax(-1) + self.number * torch.arange(len(cloud.u))
    return cloud.state.z[heaviest]


@fault("copies of a particle have independent noise", Particles, build=particles)
def particles_of_a_row_share_their_noise(_inner, self, run):
    inner = _inner(run)
    if inner.generator is not None and hasattr(inner.generator, "index"):
        first = torch.arange(len(run.free)).repeat_interleave(self.number) * self.number
        inner.generator._key = [word[first] for word in inner.generator._key]
    return inner


@fault(
    "the noise of an example does not depend on its place in the batch", Particles, build=particles
)
def the_noise_of_particles_depends_on_their_place_in_the_batch(_inner, self, run):
    inner = _inner(run)
    if hasattr(inner.generator, "index"):
        inner.generator.index = torch.arange(len(inner.free))
    return inner


@fault(
    "a particle of weight w is copied n w times, rounded up or down",
    particles,
    Particles,
    Psi(0.5),
    3,
    within=CLOUD,
)
def resampling_never_copies_the_last_particle(systematic, share, u):
    return systematic(share, u).clamp_max(share.shape[1] - 2)


@fault("select_rows selects the memo of the given rows", FirstHitting)
def select_rows_returns_the_jump_times_of_other_rows(select_rows, self, state, rows):
    right = select_rows(state, rows)
    some = torch.arange(len(rows)) % len(state.z)
    return right._replace(memo=select_rows(state, some).memo)


@fault("select_rows selects the states of the given rows", Ancestral)
def select_rows_returns_the_states_of_other_rows(select_rows, self, state, rows):
    some = torch.arange(len(rows)) % len(state.z)
    return State(state.z[some], state.t[rows])

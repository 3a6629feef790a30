"""Particles: weights, copies, rows, prompts."""

import torch
from planting import fault

from ddlib.samplers import Ancestral, FirstHitting, Particles, Psi, State
from ddlib.samplers.particles import Constant, systematic


def particles(cls, sampler=None, number=2):
    return cls(FirstHitting() if sampler is None else sampler, Constant(), number)


@fault("after resampling all weigh the same")
def weights_are_kept_after_resampling(patch):
    class Broken(Particles):
        def _resample(self, run, cloud):
            return super()._resample(run, cloud)._replace(weight=cloud.weight)

    return particles(Broken)


@fault("weights grow by what the reward has grown")
def weights_grow_by_the_new_reward_alone(patch):
    class Broken(Particles):
        def _weigh(self, cloud, state, when):
            return super()._weigh(cloud._replace(gain=torch.zeros_like(cloud.gain)), state, when)

    return particles(Broken)


@fault("the reward is multiplied by scale")
def the_scale_has_no_say(patch):
    class Broken(Particles):
        def _gain(self, z, t, when):
            return self.reward(z, t).double()

    return particles(Broken)


@fault("rows resample within their own particles")
def particles_are_drawn_from_all_rows(patch):
    class Broken(Particles):
        def _resample(self, run, cloud):
            done = super()._resample(run, cloud)
            rows = torch.arange(cloud.weight.numel()).roll(1)
            gain = done.gain.flatten()[rows].view_as(done.gain)
            return done._replace(state=self.sampler.select_rows(done.state, rows), gain=gain)

    return particles(Broken)


@fault("whether a row resamples is its own affair")
def rows_resample_where_all_of_the_batch_are_unlike(patch):
    class Broken(Particles):
        def _unlike(self, share):
            return super()._unlike(share).all().expand(len(share))

    return particles(Broken)


@fault("the prompt stands in every particle")
def the_prompt_is_lost_in_the_copies(patch):
    class Broken(Particles):
        def _prompted(self, inner, state, shown):
            return state

    return particles(Broken)


@fault("the reward is asked about the new states")
def the_reward_is_asked_about_the_states_before(patch):
    class Broken(Particles):
        def _weigh(self, cloud, state, when):
            return super()._weigh(cloud, state._replace(z=cloud.state.z), when)._replace(state=state)

    return particles(Broken, Ancestral())


@fault("a copy takes its reward along")
def rewards_stay_in_their_places_as_particles_move(patch):
    class Broken(Particles):
        def _resample(self, run, cloud):
            return super()._resample(run, cloud)._replace(gain=cloud.gain)

    return particles(Broken)


@fault("particles are copied by weight")
def the_worst_are_copied(patch):
    class Broken(Particles):
        def _resample(self, run, cloud):
            done = super()._resample(run, cloud._replace(weight=-cloud.weight))
            return done._replace(total=super()._resample(run, cloud).total)

    return particles(Broken)


@fault("Z is a product over all resamplings")
def the_estimate_forgets_what_was_resampled(patch):
    class Broken(Particles):
        def _resample(self, run, cloud):
            return super()._resample(run, cloud)._replace(total=cloud.total)

    return particles(Broken)


@fault("one particle is drawn by weight in the end")
def the_last_draw_has_no_weights(patch):
    class Broken(Particles):
        def finalize(self, run, state):
            cloud = self.weighed(run, state)
            return cloud._replace(weight=torch.zeros_like(cloud.weight)).drawn().z

    return particles(Broken)


@fault("one particle is drawn by weight in the end, not the heaviest")
def the_heaviest_is_returned(patch):
    class Broken(Particles):
        def finalize(self, run, state):
            cloud = self.weighed(run, state)
            heaviest = cloud.weight.argmax(-1) + self.number * torch.arange(len(cloud.u))
            return cloud.state.z[heaviest]

    return particles(Broken)


@fault("copies go on by noise of their own")
def copies_share_their_noise(patch):
    class Broken(Particles):
        def _inner(self, run):
            inner = super()._inner(run)
            if inner.generator is not None and hasattr(inner.generator, "index"):
                first = torch.arange(len(run.free)).repeat_interleave(self.number) * self.number
                inner.generator._key = [word[first] for word in inner.generator._key]
            return inner

    return particles(Broken)


@fault("noise belongs to the example")
def copies_are_keyed_by_their_place_in_the_batch(patch):
    class Broken(Particles):
        def _inner(self, run):
            inner = super()._inner(run)
            if hasattr(inner.generator, "index"):
                inner.generator.index = torch.arange(len(inner.free))
            return inner

    return particles(Broken)


@fault("as many of each as n w, rounded up or down")
def the_last_particle_is_never_copied(patch):
    def short(share, u):
        return systematic(share, u).clamp_max(share.shape[1] - 2)

    patch.setattr("ddlib.samplers.particles.systematic", short)
    return particles(Particles, Psi(0.5), 3)


@fault("a row takes its memo along")
def rows_leave_their_jump_times_behind(patch):
    class Broken(FirstHitting):
        def select_rows(self, state, rows):
            right, some = super().select_rows(state, rows), torch.arange(len(rows)) % len(state.z)
            return right._replace(memo=super().select_rows(state, some).memo)

    return Broken()


@fault("a row takes its states along")
def rows_leave_their_states_behind(patch):
    class Broken(Ancestral):
        def select_rows(self, state, rows):
            some = torch.arange(len(rows)) % len(state.z)
            return State(state.z[some], state.t[rows])

    return Broken()

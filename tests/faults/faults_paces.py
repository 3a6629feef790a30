"""Theory section 14: which position when, on the path of a pace, and block by block when it is drawn."""

import torch
from planting import fault

from ddlib.paces import Blocks, LeftToRight, Pace, Ramp, RandomOrder, Together
from ddlib.samplers import Ancestral, FirstHitting
from ddlib.samplers.runtime import context as sight
from ddlib.samplers.runtime import pace_sampling as windows
from ddlib.samplers.runtime.loop import SamplingLoop


@fault("t_l'(u) >= 0")
def a_path_falls(patch):
    class Broken(Ramp):
        def times(self, u, chance):
            t = super().times(u, chance)
            return t + 0.1 * torch.sin(9 * torch.pi * t)

    return Broken()


@fault("t_l(1) = 1")
def a_path_ends_short_of_noise(patch):
    class Broken(Together):
        def times(self, u, chance):
            return 0.9 * u

        def speeds(self, u, chance):
            return torch.full_like(u, 0.9)

    return Broken()


@fault("t_l(0) = 0")
def a_path_begins_behind_the_data(patch):
    class Broken(Ramp):
        def times(self, u, chance):
            return super().times(u, chance).clamp_min(1e-3)

    return Broken()


@fault("speeds = dt / du")
def speeds_are_not_the_derivative(patch):
    class Broken(Pace):
        def times(self, u, chance):
            return u**2

        def speeds(self, u, chance):
            return torch.ones_like(u)

    return Broken()


@fault("a block that is drawn at random counts n times")
def a_block_counts_once(patch):
    class Broken(Blocks):
        def speeds(self, u, chance):
            return super().speeds(u, chance) / self.parts(chance.shape[1])

    return Broken(2)


@fault("a block that is drawn at random counts n times")
def a_block_counts_twice_as_often(patch):
    class Broken(RandomOrder):
        def speeds(self, u, chance):
            return 2 * super().speeds(u, chance)

    return Broken()


@fault("parts = how many even parts of [0, 1] other positions move in")
def a_path_of_blocks_says_that_it_has_twice_as_many_parts(patch):
    class Broken(Pace):
        def times(self, u, chance):
            return LeftToRight().times(u, chance)

        def speeds(self, u, chance):
            return LeftToRight().speeds(u, chance)

        def parts(self, length):
            return 2 * length

        @property
        def block(self):
            return 1

    return Broken()


@fault("t_l(u) of a text depends on its own u and chance")
def a_text_takes_the_time_of_a_neighbour(patch):
    class Broken(Ramp):
        def times(self, u, chance):
            return super().times(u.roll(1), chance)

    return Broken()


@fault("t_l(u) of a text depends on its own u and chance")
def an_order_is_that_of_the_first_text(patch):
    class Broken(RandomOrder):
        def turns(self, chance):
            return super().turns(chance)[:1].expand_as(chance)

    return Broken()


@fault("blocks go from left to right")
def blocks_go_from_right_to_left_and_say_they_go_the_other_way(patch):
    class Broken(Blocks):
        def turns(self, chance):
            return chance.shape[1] - 1 - super().turns(chance)

    return Broken(1)


@fault("blocks go from left to right, block positions at a time")
def blocks_are_larger_than_they_say(patch):
    class Broken(Blocks):
        @property
        def block(self):
            return 1

    return Broken(2)


@fault("draws are stratified over the whole path")
def draws_count_where_the_first_position_moves_alone(patch):
    class Broken(Blocks):
        def draw(self, rows, length, generator=None, **options):
            drawn = super().draw(rows, length, generator, **options)
            return drawn._replace(measure=torch.where(drawn.t[:, :1] > 0, drawn.measure, 0.0))

    return Broken(1)


def shown(patch, **wrong):
    """``FirstHitting``, and of every window the denoiser is shown something else."""
    right = windows._Looks.at

    def at(self, before, after, behind, times):
        given = {"before": before, "after": after, "behind": behind, "times": times}
        return right(self, **{name: wrong[name](**given) if name in wrong else value for name, value in given.items()})

    patch.setattr(windows._Looks, "at", at)
    return FirstHitting()


@fault("denoiser([x z y], [0 t u])")
def the_words_before_a_window_are_those_of_another_text(patch):
    return shown(patch, before=lambda before, **_: before.roll(1, 0))


@fault("denoiser([x z y], [0 t u])")
def noise_behind_a_window_is_told_as_words(patch):
    return shown(patch, times=lambda times, **_: torch.zeros_like(times))


@fault("denoiser([x z y], [0 t u])")
def words_before_a_window_are_told_as_noise(patch):
    class Broken(sight.WindowContext):
        def _whole(self, z, t, rows):
            whole, times = super()._whole(z, t, rows)
            return whole, torch.cat([torch.ones_like(times[:, : self.first]), times[:, self.first :]], 1)

    patch.setattr(windows, "WindowContext", Broken)
    return Ancestral()


@fault("denoiser([x z y], [0 t u])")
def words_before_a_window_have_its_time(patch):
    class Broken(sight.WindowContext):
        def _whole(self, z, t, rows):
            whole, _ = super()._whole(z, t, rows)
            return whole, t[:, None].expand(whole.shape)

    patch.setattr(windows, "WindowContext", Broken)
    return Ancestral()


@fault("denoiser([x z y], [0 t u]) at the window")
def positions_begin_anew_in_a_window(patch):
    class Broken(sight.WindowContext):
        def _window(self, said, z):
            return said[:, : z.shape[1]]

    patch.setattr(windows, "WindowContext", Broken)
    return FirstHitting()


@fault("extend(z, t, prefill(x)), x all words before")
def what_is_kept_does_not_grow(patch):
    class Broken(windows._Looks):
        def at(self, before, after, behind, times):
            here = super().at(before, after, behind, times)
            if self.keeps:
                self.cache = self.denoiser.prefill(before[:, :0])
                here.cache = self.cache
            return here

    patch.setattr(windows, "_Looks", Broken)
    return FirstHitting()


@fault("extend(z, t, prefill(x)), x all words before")
def what_is_kept_is_a_block_late(patch):
    class Broken(windows._Looks):
        def at(self, before, after, behind, times):
            here = super().at(before, after, behind, times)
            if self.keeps:
                here.cache = self.denoiser.prefill(before[:, : max(0, before.shape[1] - 1)])
            return here

    patch.setattr(windows, "_Looks", Broken)
    return FirstHitting()


@fault("rows of the cache are those that are asked about")
def the_cache_of_some_rows_is_that_of_the_first(patch):
    class Broken(sight.CachedContext):
        def _of(self, rows):
            return super()._of(None if rows is None else torch.arange(len(rows)) < rows.sum())

    patch.setattr(windows, "CachedContext", Broken)
    return Ancestral()


@fault("t_l(u), chance that stays with a text")
def the_order_of_a_text_is_drawn_anew_in_every_step(patch):
    right = RandomOrder.times

    def times(self, u, chance):
        return right(self, u, torch.rand(chance.shape, generator=torch.Generator().manual_seed(int(1e6 * u.sum()))))

    patch.setattr(RandomOrder, "times", times)
    return Ancestral()


@fault("s_l = t_l: position l stands still")
def a_position_whose_time_stands_still_is_told_that_of_the_first(patch):
    class Broken(Ancestral):
        def back(self, run, z, t, s):
            return super().back(run, z, *(v[:, :1].expand_as(v) if v.ndim == 2 else v for v in (t, s)))

    return Broken()


@fault("blocks from left to right, all of them")
def only_the_first_window_is_drawn(patch):
    class Broken(SamplingLoop):
        def words(self, run, fixed):
            return super().words(run, fixed) if run.network.sight.first == 0 else torch.zeros_like(fixed)

    patch.setattr("ddlib.samplers.sampling.Course", Broken)
    return FirstHitting()

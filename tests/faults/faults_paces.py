"""Paces: times of positions along a path, and sampling block by block (theory section 14)."""

import torch
from planting import fault

from ddlib.paces import Blocks, LeftToRight, Pace, Ramp, RandomOrder
from ddlib.samplers import Ancestral, FirstHitting, loop
from ddlib.samplers.runtime import context


@fault("t_l'(u) >= 0", Ramp)
def the_times_of_a_path_are_not_monotone(times, self, u, chance):
    t = times(u, chance)
    return t + 0.1 * torch.sin(9 * torch.pi * t)


@fault("t_l(1) = 1")
def a_path_ends_before_time_1(patch):
    class Broken(Pace):
        def times(self, u, chance):
            return 0.9 * u

        def speeds(self, u, chance):
            return torch.full_like(u, 0.9)

    return Broken()


@fault("t_l(0) = 0", Ramp)
def a_path_begins_after_time_0(times, self, u, chance):
    return times(u, chance).clamp_min(1e-3)


@fault("speeds = dt / du")
def speeds_are_not_the_derivatives_of_the_times(patch):
    class Broken(Pace):
        def times(self, u, chance):
            return u**2

        def speeds(self, u, chance):
            return torch.ones_like(u)

    return Broken()


@fault("speeds = dt / du, so that the measure of each position integrates to 1", Blocks, 2)
def speeds_are_divided_by_the_number_of_blocks(speeds, self, u, chance):
    return speeds(u, chance) / self.parts(chance.shape[1])


@fault("speeds = dt / du, so that the measure of each position integrates to 1", RandomOrder)
def speeds_are_twice_the_derivatives_of_the_times(speeds, self, u, chance):
    return 2 * speeds(u, chance)


@fault("parts is the number of equal segments of [0, 1] in which different positions move")
def parts_returns_twice_the_number_of_blocks(patch):
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


@fault("t_l(u) of a batch row depends only on its own u and chance", Ramp)
def a_sequence_has_the_path_parameter_of_another_batch_row(times, self, u, chance):
    return times(u.roll(1), chance)


@fault("t_l(u) of a batch row depends only on its own u and chance", RandomOrder)
def all_batch_rows_have_the_order_of_the_first(turns, self, chance):
    return turns(chance)[:1].expand_as(chance)


@fault("blocks are ordered from left to right", Blocks, 1)
def blocks_declared_to_go_from_left_to_right_go_from_right_to_left(turns, self, chance):
    return chance.shape[1] - 1 - turns(chance)


@fault("blocks are ordered from left to right, with block positions each", Blocks, 2)
def block_returns_1_for_blocks_of_two_positions(block, self):
    return 1


@fault("draws are stratified over the whole path", Blocks, 1)
def the_measure_is_0_where_the_first_position_is_at_time_0(
    draw, self, rows, length, generator=None, **options
):
    drawn = draw(rows, length, generator, **options)
    return drawn._replace(measure=torch.where(drawn.t[:, :1] > 0, drawn.measure, 0.0))


@fault("denoiser([x z y], [0 t u])", FirstHitting, within=context.BlockContexts)
def the_tokens_before_a_block_are_those_of_another_batch_row(
    at, self, before, given, after, behind, times
):
    return at(before.roll(1, 0), given, after, behind, times)


@fault("denoiser([x z y], [0 t u])", FirstHitting, within=context.BlockContexts)
def noise_behind_a_block_has_time_0(at, self, before, given, after, behind, times):
    return at(before, given, after, behind, torch.zeros_like(times))


@fault("denoiser([x z y], [0 t u])", Ancestral, within=context.BlockContexts)
def given_tokens_of_a_block_have_its_time(at, self, before, given, after, behind, times):
    return at(before, torch.zeros_like(given), after, behind, times)


@fault("denoiser([x z y], [0 t u])", Ancestral, within=context.WindowContext)
def tokens_before_a_window_have_time_1(_whole, self, z, t, rows):
    whole, times = _whole(z, t, rows)
    return whole, torch.cat([torch.ones_like(times[:, : self.first]), times[:, self.first :]], 1)


@fault("denoiser([x z y], [0 t u])", Ancestral, within=context.WindowContext)
def positions_outside_a_window_have_the_time_of_the_window(_whole, self, z, t, rows):
    whole, _ = _whole(z, t, rows)
    return whole, t[:, None].expand(whole.shape)


@fault("denoiser([x z y], [0 t u]) at the window", FirstHitting, within=context.WindowContext)
def the_logits_of_a_window_are_those_of_the_first_positions(_window, self, logits, z):
    return logits[:, : z.shape[1]]


@fault("extend(z, t, prefill(x)), x all tokens before", FirstHitting, within=context.BlockContexts)
def the_cache_of_a_block_contains_no_tokens(at, self, before, given, after, behind, times):
    here = at(before, given, after, behind, times)
    if self.caches:
        here.cache = self.cache = self.denoiser.prefill(before[:, :0])
    return here


@fault("extend(z, t, prefill(x)), x all tokens before", FirstHitting, within=context.BlockContexts)
def the_cache_omits_the_last_token_before_the_block(at, self, before, given, after, behind, times):
    here = at(before, given, after, behind, times)
    if self.caches:
        here.cache = self.denoiser.prefill(before[:, : max(0, before.shape[1] - 1)])
    return here


@fault("the cache has the batch rows of the call", Ancestral, within=context.CachedContext)
def the_cache_of_selected_rows_is_that_of_the_first_rows(_of, self, rows):
    return _of(None if rows is None else torch.arange(len(rows)) < rows.sum())


@fault("t_l(u) has the same chance in all steps", Ancestral, within=RandomOrder)
def a_random_order_is_drawn_again_in_every_step(times, self, u, chance):
    return times(
        u, torch.rand(chance.shape, generator=torch.Generator().manual_seed(int(1e6 * u.sum())))
    )


@fault("a position with s_l = t_l does not change", Ancestral)
def the_reverse_step_uses_the_times_of_the_first_position(back, self, run, z, t, s):
    return back(run, z, *(v[:, :1].expand_as(v) if v.ndim == 2 else v for v in (t, s)))


@fault("all blocks are drawn, from left to right", FirstHitting, within=loop)
def only_the_first_block_is_drawn(draw_tokens, call):
    return draw_tokens(call) if call.network.context.first == 0 else torch.zeros_like(call.fixed)

"""Correctors (theory sections 8 and 9), and the sampler that applies one after each of its
steps.
"""

import sys

import torch
from planting import declare, fault

from ddlib.contrib import Psi
from ddlib.samplers import Ancestral, Corrected, EdgeBalance, ForwardBackward, Gibbs
from ddlib.samplers.base import at
from ddlib.samplers.reverse_step import shift
from ddlib.utils.categorical import draw_logits
from ddlib.utils.random import rand

LEVELLED = sys.modules["ddlib.processes.level_process"]


def words_from_cavity(run, z, t, where):
    u = rand(z.shape, run.generator, z.device)
    words = torch.zeros_like(z)
    for out in run.network.at(z, t, where):
        words[out.b, out.i] = draw_logits(
            out.token_logits(torch.zeros_like(out.z))[:, 0], u[out.b, out.i]
        )
    return words


@fault("a proposal outside the states reachable from all tokens is rejected", Gibbs)
def proposals_outside_the_states_reachable_from_all_tokens_are_accepted(
    correct, self, run, z, t, h
):
    order = rand(z.shape, run.generator, z.device)
    where_redrawn = (order == order.amax(1, keepdim=True)) & run.process.reachable_from_all_tokens(
        z
    )
    words = words_from_cavity(run, z, t, where_redrawn)
    return torch.where(where_redrawn, run.process.sample(words, t, run.generator), z)


@fault("the new state is drawn from q_t(.|x)", Gibbs)
def the_correction_is_computed_at_a_time_near_0(correct, self, run, z, t, h):
    right = correct(run, z, torch.zeros_like(t) + 1e-9, h)
    return torch.where(run.process.reachable_from_all_tokens(right), right, z)


@fault("a correction is computed at time t", Gibbs)
def the_correction_is_computed_at_the_time_before_the_step(correct, self, run, z, t, h):
    return correct(run, z, (t + h).clamp_max(1), h)


@fault("an exact Gibbs step selects positions independently of their states")
def the_selection_by_margin_is_declared_to_be_exact(monkeypatch):
    return declare(Gibbs, consistent_joint=True, exact_joint=True)(1, "margin")


@fault("an exact Gibbs step changes one position")
def drawing_two_positions_at_once_is_declared_to_be_exact(monkeypatch):
    return declare(Gibbs, consistent_joint=True, exact_joint=True)(2)


@fault("positions are selected separately in each batch row", Gibbs)
def positions_with_the_highest_scores_are_selected_across_the_whole_batch(_most, self, score):
    best = score.flatten().topk(len(score)).indices
    return torch.zeros_like(score, dtype=torch.bool).flatten().scatter(0, best, True).view_as(score)


@fault("all draws use the given generator", Gibbs)
def a_correction_draws_from_the_global_generator(correct, self, run, z, t, h):
    return correct(type(run)(**{**vars(run), "generator": None}), z, t, h)


@fault("ascents sigma_i a_i(t) from level i equal the descents to it", EdgeBalance, 3.0)
def edges_are_balanced_at_the_time_before_the_step(correct, self, run, z, t, h):
    u = (t + h).clamp_max(1)
    target = run.process.sample_level(z, u, u, run.generator, self.sigma(run.process, t, h))
    return shift(run, z, u, target, force=False)


@fault(
    "ascents sigma_i a_i(t) from level i equal the descents to it",
    EdgeBalance,
    3.0,
    within=LEVELLED,
)
def tokens_ascend_in_a_correction_without_compensating_descents(
    remask_coupling, joint, level, lift
):
    return torch.where((level == 0)[..., None], remask_coupling(joint, level, lift), 0.0)


@fault("sigma_i is at most max_remask_prob", EdgeBalance, 10.0)
def the_ascent_probability_is_not_limited_by_max_remask_prob(sigma, self, process, t, h):
    stay = process.level_transition(t, (t + h).clamp_max(1))
    return self.strength * (1 - stay.diagonal(dim1=-2, dim2=-1)[:, :-1])


@fault("the reverse step draws from q(z_t | z_u, p)", ForwardBackward)
def the_reverse_step_noises_tokens_drawn_from_the_cavity_distribution(correct, self, run, z, t, h):
    u = (t + self.amount * h).clamp_max(1)
    noised = run.process.sample_forward(z, t, u, run.generator)
    words = words_from_cavity(run, noised, u, torch.ones_like(run.free))
    return run.process.sample(words, t, run.generator)


@fault("the reverse step ends at the time at which the forward step started", ForwardBackward, 3.0)
def the_reverse_step_has_length_h_for_every_amount(correct, self, run, z, t, h):
    u = (t + self.amount * h).clamp_max(1)
    return Ancestral().back(run, run.process.sample_forward(z, t, u, run.generator), u, u - h)


@fault("the number of network calls is the declared one", Gibbs)
def a_correction_makes_an_additional_network_call(correct, self, run, z, t, h):
    run.predict(z, t)
    return correct(run, z, t, h)


@fault("a correction is computed at the time at which the step ended", Corrected, Psi(0.9), Gibbs())
def the_sampler_passes_the_time_before_the_step_to_its_corrector(step, self, run, state, k):
    z = self.predictor.step(run, state, k).z
    t = at(run, k)
    s = at(run, k + 1)
    return state._replace(z=self.corrector.correct(run, z, t, t - s), t=s)


@fault(
    "a correction does not change the prompt",
    ForwardBackward,
    build=lambda cls: Corrected(Ancestral(), cls(30.0)),
)
def a_correction_changes_the_prompt(correct, self, run, z, t, h):
    free = type(run)(**{**vars(run), "free": torch.ones_like(run.free)})
    return correct(free, z, t, h)

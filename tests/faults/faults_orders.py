"""Order of positions, and remasking of tokens (theory sections 8 and 10)."""

import sys
from dataclasses import replace

import torch
from planting import clamped, declare, fault

from ddlib.contrib import Overshoot
from ddlib.processes import LevelProcess
from ddlib.samplers import Ancestral, Confidence, EntropyBounded, Remask, State
from ddlib.samplers.base import at
from ddlib.samplers.choices import even_split
from ddlib.samplers.ordered import levels, model_time
from ddlib.samplers.remask import DrawnChances
from ddlib.samplers.reverse_step import move
from ddlib.samplers.runtime.model import Model
from ddlib.utils.random import rand

ORDERS = sys.modules["ddlib.samplers.orders"]
LEVELLED = sys.modules["ddlib.processes.level_process"]


@fault("positions are chosen before their children are drawn", Confidence, "probability")
def positions_are_chosen_by_the_probability_of_drawn_children_as_in_maskgit(
    step, self, run, state, k
):
    z = state.z
    level = levels(run, state.z)
    steps = run.steps - k
    chance = torch.zeros(z.shape, dtype=torch.float64)
    noted = replace(run, observer=DrawnChances(chance))
    drawn = move(noted, z, state.t, (level - 1).clamp_min(0), False)
    least = even_split(run, k, level.sum(-1, keepdim=True))
    kept = self.choose(chance, level, least) if steps > 1 else level > 0
    if steps == 1:
        drawn = move(run, z, state.t, torch.zeros_like(level), False)
    z = torch.where(kept, drawn, z)
    return State(z, model_time(run, z, state.memo), state.memo)


@fault("the number of chosen positions is that of the batch row", Confidence)
def positions_are_chosen_across_the_whole_batch(choose, self, score, level, least, noise=0.0):
    one = (value.view(1, -1) for value in (score + noise, level))
    return choose(*one, least.sum(0, keepdim=True)).view_as(level)


@fault("pi(.|z, p) is in proportion to K(z|y) u(y|p)", Confidence, within=LEVELLED)
def tokens_are_drawn_without_the_evidence_of_their_cluster(
    descendant_logits, hierarchy, logits, z, level, target, force=False
):
    return logits if target == 0 else descendant_logits(hierarchy, logits, z, level, target, force)


@fault(
    "pi(.|z, p) is in proportion to K(z|y) u(y|p)",
    Confidence,
    "entropy",
    within=LEVELLED,
)
def clusters_are_drawn_by_the_mean_logit_of_their_tokens(
    descendant_logits, hierarchy, logits, z, level, target, force=False
):
    probs = descendant_logits(hierarchy, logits, z, level, target, force)
    if target == 0:
        return probs
    parents = hierarchy.between(0, target).parents
    count = torch.bincount(parents, minlength=probs.shape[1]).to(probs)
    mean = torch.zeros_like(probs).index_add(1, parents, logits.to(probs).clamp_min(-50)) / count
    return torch.where(probs.isfinite(), mean, probs)


@fault("with xi < 1 a descent may lead to tokens outside the cluster", Confidence)
def the_sampler_sets_force_transition_to_true(step, self, run, state, k):
    self.force_transition = True
    return step(run, state, k)


@fault("tokens are drawn from their distribution", EntropyBounded, 0.0, within=LEVELLED)
def the_likeliest_child_is_taken_in_place_of_a_draw(draw_logits, logits, u):
    return logits.argmax(-1)


@fault("a joint is consistent only if positions drawn in the same step are independent")
def a_threshold_of_0_is_declared_to_have_a_consistent_joint(monkeypatch):
    return declare(Confidence, consistent_joint=True)(threshold=0.0)


@fault(
    "a joint is consistent only if positions drawn in the same step are independent",
    EntropyBounded,
    0.0,
    within=ORDERS,
)
def the_entropy_bound_subtracts_the_largest_entropy_twice(select_within, ranked, gamma):
    """Use the bound of the EB-sampler with one entropy too few: it unmasks two positions where none
    is certain.
    """
    entropies = (-ranked.score).masked_fill(ranked.level == 0, 0.0)
    return entropies.cumsum(-1) - 2 * entropies.cummax(-1).values <= gamma


@fault("positions are chosen by the logits of the current step", Confidence)
def logits_are_reused_in_every_second_step(step, self, run, state, k):
    memo, logits_before = state.memo if k else (state.memo, None)
    logits = run.predict(state.z, state.t) if logits_before is None or k % 2 == 0 else logits_before
    stale = type(run)(**{**vars(run), "network": Model(run.process, lambda z, t: logits)})
    after = step(stale, state._replace(memo=memo), k)
    return after._replace(memo=(memo, logits))


@fault("all draws use the given generator", Confidence, temperature=1.0)
def the_noise_of_the_choice_is_drawn_from_the_global_generator(noise, self, run, z):
    return noise(type(run)(**{**vars(run), "generator": None}), z)


@fault("prompt positions do not count in the order", Confidence)
def every_step_masks_the_prompt_and_may_draw_it_again(step, self, run, state, k):
    everywhere = type(run)(**{**vars(run), "free": torch.ones_like(run.free)})
    fixed = torch.where(run.free, state.z, run.process.num_states - 1)
    return step(everywhere, state._replace(z=fixed), k)


PLATEAU = "on the plateau the process time is constant, and z follows q at that time"


@fault(PLATEAU, Remask, 1.0, "loop", plateau=0.4, build=clamped)
def the_state_has_the_grid_time_in_place_of_the_process_time(step, self, run, state, k):
    return step(run, state, k)._replace(t=at(run, k + 1))


@fault(PLATEAU, Remask, 1.0, "loop", plateau=0.4)
def ancestral_steps_continue_on_the_plateau(step, self, run, state, k):
    t = self.time(at(run, k))
    s = self.time(at(run, k + 1))
    if not bool((t == s).all()):
        return step(run, state, k)
    return State(Ancestral().back(run, state.z, at(run, k), at(run, k + 1)), s)


@fault(
    "ascents on the plateau equal the descents", Remask, 1.0, "loop", plateau=0.4, within=LEVELLED
)
def tokens_ascend_on_the_plateau_without_compensating_descents(remask_coupling, joint, level, lift):
    return torch.where((level == 0)[..., None], remask_coupling(joint, level, lift), 0.0)


@fault("a sampler is declared to be on the time grid only if it is")
def the_confidence_rule_is_declared_to_be_on_the_time_grid(monkeypatch):
    return declare(Remask, on_time_grid=True)(1.0, "confidence")


class Forwards(Overshoot):
    """Overshoot whose method ``forwards`` returns the levels after the forward step from u to s."""

    def step(self, run, state, k):
        process = run.process
        z = state.z
        t = at(run, k)
        s = at(run, k + 1)
        u = (1 - self.amount) * s
        level = process.level_of(z)
        if not isinstance(process, LevelProcess):
            return super().step(run, state, k)
        target = self.forwards(process, z, t, s, u, run.generator)
        below = move(run, z, t, target.minimum(level), False)
        above = process.ascend(z, target.maximum(level), run.generator)
        return State(torch.where(target > level, above, below), s)

    def forwards(self, process, z, t, s, u, generator):
        raise NotImplementedError


def climbed(process, level, chances, generator):
    probs = chances[torch.arange(len(level))[:, None], level]
    return (
        rand(level.shape, generator, level.device)[..., None] >= probs.cumsum(-1)[..., :-1]
    ).sum(-1)


@fault("the forward step of an overshoot leads from u to s", Forwards, 0.5)
def the_forward_step_uses_the_transition_from_s_to_t(
    forwards, self, process, z, t, s, u, generator
):
    return climbed(
        process, process.sample_level(z, t, u, generator), process.level_transition(s, t), generator
    )


@fault("the forward step of an overshoot leads from u to s", Forwards, 0.5)
def the_forward_step_starts_at_the_level_before_the_reverse_step(
    forwards, self, process, z, t, s, u, generator
):
    up = climbed(process, process.level_of(z), process.level_transition(u, s), generator)
    return torch.where(up > process.level_of(z), up, process.sample_level(z, t, u, generator))


@fault("the forward step of an overshoot leads from u to s", Forwards, 0.5)
def the_forward_step_from_u_to_s_is_omitted(forwards, self, process, z, t, s, u, generator):
    return process.sample_level(z, t, u, generator)


@fault("the forward step of an overshoot starts at the state at time u", Overshoot, 0.5)
def the_forward_step_noises_clean_tokens_from_time_0_to_s(step, self, run, state, k):
    t = at(run, k)
    s = at(run, k + 1)
    u = (1 - self.amount) * s
    low = Ancestral().back(run, state.z, t, u)
    return State(run.process.sample(low.clamp_max(run.process.vocab_size - 1), s, run.generator), s)

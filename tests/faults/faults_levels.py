"""The bound in discrete time, and sequences with balanced noise (``levels="balanced"``)."""

import sys

import torch
from planting import deep, fault, hierarchical, tree

from ddlib.processes import GIDD, ForwardProcess, Hierarchical, Masked, RateMatrix, Uniform
from ddlib.schedules import Linear
from ddlib.utils.random import rand

DIVERGENCE = sys.modules["ddlib.processes.hierarchical_kl"]
RING = torch.eye(4).roll(1, 0) + 0.5 * torch.eye(4).roll(-1, 0) - 1.5 * torch.eye(4)


@fault("a step may descend by several levels", Hierarchical, deep(), Linear())
def the_discrete_term_omits_descents_by_more_than_one_level(
    step_divergence, self, logits, x, z, t, s
):
    chances = self.level_posterior(self.level_of(z), t, s)
    below = torch.nn.functional.one_hot((self.level_of(z) - 1).clamp_min(0), chances.shape[-1])
    return DIVERGENCE.descendants(
        self.hierarchy, *self._model_terms(logits, x), x, z, chances * below
    )


fault("the mean level is sum_i i a_i", Hierarchical, deep(), Linear())(
    the_mean_level_counts_the_tokens_as_one=lambda expected_level, self, t: expected_level(t) + 1
)


@fault("remasking keeps the mass of every level", Hierarchical, deep(), Linear())
def more_is_remasked_than_stays(max_remask_prob, self, t, s):
    return (2 * max_remask_prob(t, s)).clamp_max(1)


@fault("with xi < 1 a cluster has tokens of other clusters", Hierarchical, tree(), Linear())
def a_cluster_is_said_to_need_the_logits_of_its_own_tokens_alone(
    subtree_logits_suffice, self, level, target, force=False
):
    return target < level


@fault("the hard mode has the bound's divergence at level 1", Hierarchical, tree(), Linear())
def the_hard_mode_has_half_the_loss(hard_weighted_divergence, self, logits, x, z, t):
    weight, divergence = hard_weighted_divergence(logits, x, z, t)
    return weight, divergence / 2


@fault("the hard mode has the bound's weights", Hierarchical, tree(), Linear())
def the_hard_mode_has_twice_the_weight(hard_weighted_divergence, self, logits, x, z, t):
    weight, divergence = hard_weighted_divergence(logits, x, z, t)
    return 2 * weight, divergence / 2


@fault("a token has V - 1 others", GIDD, 5, 0.3)
def a_token_is_paired_with_one_other_token(equivalence_classes, self):
    x, z, count = equivalence_classes()
    return x, z, torch.ones_like(count)


@fault(
    "the discrete term contains the KL divergence in each lower level",
    Hierarchical,
    deep(),
    Linear(),
    within=DIVERGENCE,
)
def descents_by_several_levels_have_the_kl_of_a_descent_to_tokens(_over, *given):
    for j, kl in enumerate(_over(*given), start=1):
        yield {i: kl[0] if 0 in kl and i < j - 1 else one for i, one in kl.items()}


@fault("the discrete term contains KL(e_x || e_p), e the probability of resampling", GIDD, 5, 0.3)
def the_discrete_term_of_gidd_is_halved_where_z_equals_x(step_divergence, self, logits, x, z, t, s):
    value = step_divergence(logits, x, z, t, s)
    return torch.where(z == x, 0.5 * value, value)


@fault(
    "the discrete term contains the probability of resampling between s and t", Uniform, 5, Linear()
)
def the_discrete_term_of_uniform_noise_replaces_s_by_0(step_divergence, self, logits, x, z, t, s):
    return step_divergence(logits, x, z, t, torch.zeros_like(s))


@fault(
    "the discrete term is KL(p(z_s|z_t, x) || p(z_s|z_t, p))",
    RateMatrix,
    RING,
    Linear(),
    within=ForwardProcess,
)
def the_dense_discrete_term_exchanges_truth_and_model(step_divergence, self, logits, x, z, t, s):
    words = torch.nn.functional.one_hot(x, self.vocab_size).double()
    truth = self.posterior(words, z, t, s)
    believed = self.posterior(logits.double().softmax(-1), z, t, s)
    ratio = torch.where(truth > 0, believed / truth.clamp_min(1e-300), 1.0).log()
    return (believed * ratio).sum(-1).clamp_min(0).to(logits.dtype)


@fault(
    "the discrete term compares posteriors given z_t",
    RateMatrix,
    RING,
    Linear(),
    within=ForwardProcess,
)
def the_dense_discrete_term_compares_marginals_at_s_in_place_of_posteriors(
    step_divergence, self, logits, x, z, t, s
):
    words = torch.nn.functional.one_hot(x, self.vocab_size).double()
    truth = self.predictive(words, s)
    believed = self.predictive(logits.double().softmax(-1), s)
    return (
        (torch.xlogy(truth, truth) - torch.xlogy(truth, believed))
        .sum(-1)
        .clamp_min(0)
        .to(logits.dtype)
    )


@fault(
    "the importance weight is the mean weight divided by the weight of the sequence",
    Masked,
    5,
    Linear(),
)
def the_importance_weight_is_inverted(importance_weight, self, x, z, t):
    found = importance_weight(x, z, t)
    return torch.where(found > 0, 1 / found, 0.0)


@fault("the mean weight is the sum of the fluxes", Hierarchical, tree(), Linear())
def the_mean_weight_includes_only_the_flux_into_the_mask(_weight_and_mean, self, x, z, t):
    mean, here = _weight_and_mean(x, z, t)
    return self._inflow(t)[:, -1:].expand_as(mean), here


@fault(
    "a balanced draw draws one token in proportion to its weight, the others from q_t",
    Masked,
    5,
    Linear(),
)
def balanced_draws_mask_all_tokens(sample, self, x, t, generator=None, levels="independent"):
    z = sample(x, t, generator, levels)
    return torch.full_like(z, self.vocab_size) if levels == "balanced" else z


@fault(
    "the level of the chosen token is drawn in proportion to the fluxes",
    Hierarchical,
    tree(),
    Linear(),
)
def balanced_draws_always_mask_the_chosen_token(_inflow, self, t):
    flux = _inflow(t)
    return (
        torch.nn.functional.one_hot(torch.full_like(t, 2, dtype=torch.int64), flux.shape[-1]) * flux
    )


@fault("the importance weight is 0 only where the bound is 0")
def the_importance_weight_omits_the_clusters(patch):
    class Broken(Hierarchical):
        def _inflow(self, t):
            flux = super()._inflow(t)
            return flux * torch.tensor([0.0, 0.0, 1.0], dtype=torch.float64)

        def _weight_and_mean(self, x, z, t):
            mean, here = super()._weight_and_mean(x, z, t)
            return mean, torch.where(self.level_of(z) == 2, here, 0.0)

    return hierarchical(Broken)


@fault("the chosen token is redrawn by the rates at time t")
def balanced_draws_of_gidd_resample_by_the_mixture_of_a_fixed_time(patch):
    class Broken(GIDD):
        def _resample(self, mixture, noise):
            return super()._resample(self.mixture(torch.full_like(mixture.keep, 0.9)), noise)

        def sample(self, x, t, generator=None, levels="independent"):
            if levels != "balanced":
                return GIDD(self.vocab_size, self.p_uniform, self.gamma).sample(
                    x, t, generator, levels
                )
            return super().sample(x, t, generator, levels)

    return Broken(5, 0.3)


@fault("the chosen token may be at any position of the sequence", Masked, 5, Linear())
def balanced_draws_always_choose_the_first_token(
    sample, self, x, t, generator=None, levels="independent"
):
    z = sample(x, t, generator, "independent" if levels == "balanced" else levels)
    if levels == "balanced":
        z[:, 0] = self.vocab_size
    return z


@fault("balanced draws of an example do not depend on the rest of the batch", Masked, 5, Linear())
def balanced_draws_choose_the_same_position_in_all_batch_rows(
    sample, self, x, t, generator=None, levels="independent"
):
    z = sample(x, t, generator, "independent" if levels == "balanced" else levels)
    if levels == "balanced":
        which = int(rand((len(x), 1), generator, x.device).sum() * x.shape[1]) % x.shape[1]
        z[:, which] = self.vocab_size
    return z

"""The bound in discrete time, and sequences with balanced noise (``levels="balanced"``)."""

import sys

import torch
from planting import deep, fault, hierarchical

from ddlib.processes import GIDD, Hierarchical, Masked, RateMatrix, Uniform
from ddlib.schedules import Linear
from ddlib.utils.random import rand

DIVERGENCE, PROCESS = (sys.modules[f"ddlib.processes.{name}"] for name in ("hierarchical_kl", "base"))
RING = torch.eye(4).roll(1, 0) + 0.5 * torch.eye(4).roll(-1, 0) - 1.5 * torch.eye(4)


@fault("a step may descend by several levels")
def the_discrete_term_omits_descents_by_more_than_one_level(patch):
    class Broken(Hierarchical):
        def step_divergence(self, logits, x, z, t, s):
            chances = self.level_posterior(self.level_of(z), t, s)
            below = torch.nn.functional.one_hot((self.level_of(z) - 1).clamp_min(0), chances.shape[-1])
            return DIVERGENCE.descendants(self.hierarchy, *self._model_terms(logits, x), x, z, chances * below)

    return hierarchical(Broken, deep())


@fault("the discrete term contains the KL divergence in each lower level")
def descents_by_several_levels_have_the_kl_of_a_descent_to_tokens(patch):
    original = DIVERGENCE._over

    def over(hierarchy, log_px, log_finest, x, z, lower):
        for j, kl in enumerate(original(hierarchy, log_px, log_finest, x, z, lower), start=1):
            yield {i: kl[0] if 0 in kl and i < j - 1 else one for i, one in kl.items()}

    patch.setattr(DIVERGENCE, "_over", over)
    return hierarchical(Hierarchical, deep())


@fault("the discrete term contains KL(e_x || e_p), e the probability of resampling")
def the_discrete_term_of_gidd_is_halved_where_z_equals_x(patch):
    class Broken(GIDD):
        def step_divergence(self, logits, x, z, t, s):
            value = super().step_divergence(logits, x, z, t, s)
            return torch.where(z == x, 0.5 * value, value)

    return Broken(5, 0.3)


@fault("the discrete term contains the probability of resampling between s and t")
def the_discrete_term_of_uniform_noise_replaces_s_by_0(patch):
    class Broken(Uniform):
        def step_divergence(self, logits, x, z, t, s):
            return super().step_divergence(logits, x, z, t, torch.zeros_like(s))

    return Broken(5, Linear())


@fault("the discrete term is KL(p(z_s|z_t, x) || p(z_s|z_t, p))")
def the_dense_discrete_term_exchanges_truth_and_model(patch):
    def step(self, logits, x, z, t, s):
        words = torch.nn.functional.one_hot(x, self.vocab_size).double()
        truth, believed = self.posterior(words, z, t, s), self.posterior(logits.double().softmax(-1), z, t, s)
        ratio = torch.where(truth > 0, believed / truth.clamp_min(1e-300), 1.0).log()
        return (believed * ratio).sum(-1).clamp_min(0).to(logits.dtype)

    patch.setattr(PROCESS.ForwardProcess, "step_divergence", step)
    return RateMatrix(RING, Linear())


@fault("the discrete term compares posteriors given z_t")
def the_dense_discrete_term_compares_marginals_at_s_in_place_of_posteriors(patch):
    def step(self, logits, x, z, t, s):
        words = torch.nn.functional.one_hot(x, self.vocab_size).double()
        truth, believed = self.predictive(words, s), self.predictive(logits.double().softmax(-1), s)
        return (torch.xlogy(truth, truth) - torch.xlogy(truth, believed)).sum(-1).clamp_min(0).to(logits.dtype)

    patch.setattr(PROCESS.ForwardProcess, "step_divergence", step)
    return RateMatrix(RING, Linear())


@fault("the importance weight is the mean weight divided by the weight of the sequence")
def the_importance_weight_is_inverted(patch):
    class Broken(Masked):
        def importance_weight(self, x, z, t):
            found = super().importance_weight(x, z, t)
            return torch.where(found > 0, 1 / found, 0.0)

    return Broken(5, Linear())


@fault("the mean weight is the sum of the fluxes")
def the_mean_weight_includes_only_the_flux_into_the_mask(patch):
    class Broken(Hierarchical):
        def _weight_and_mean(self, x, z, t):
            mean, here = super()._weight_and_mean(x, z, t)
            return self._inflow(t)[:, -1:].expand_as(mean), here

    return hierarchical(Broken)


@fault("a balanced draw draws one token in proportion to its weight, the others from q_t")
def balanced_draws_mask_all_tokens(patch):
    class Broken(Masked):
        def sample(self, x, t, generator=None, levels="independent"):
            z = super().sample(x, t, generator, levels)
            return torch.full_like(z, self.vocab_size) if levels == "balanced" else z

    return Broken(5, Linear())


@fault("the level of the chosen token is drawn in proportion to the fluxes")
def balanced_draws_always_mask_the_chosen_token(patch):
    class Broken(Hierarchical):
        def _inflow(self, t):
            flux = super()._inflow(t)
            return torch.nn.functional.one_hot(torch.full_like(t, 2, dtype=torch.int64), flux.shape[-1]) * flux

    return hierarchical(Broken)


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
        def _resample(self, mixture, like, generator):
            return super()._resample(self.mixture(torch.full_like(mixture.keep, 0.9)), like, generator)

        def sample(self, x, t, generator=None, levels="independent"):
            if levels != "balanced":
                return GIDD(self.vocab_size, self.p_uniform, self.gamma).sample(x, t, generator, levels)
            return super().sample(x, t, generator, levels)

    return Broken(5, 0.3)


@fault("the chosen token may be at any position of the sequence")
def balanced_draws_always_choose_the_first_token(patch):
    class Broken(Masked):
        def sample(self, x, t, generator=None, levels="independent"):
            z = super().sample(x, t, generator, "independent" if levels == "balanced" else levels)
            if levels == "balanced":
                z[:, 0] = self.vocab_size
            return z

    return Broken(5, Linear())


@fault("balanced draws of an example do not depend on the rest of the batch")
def balanced_draws_choose_the_same_position_in_all_batch_rows(patch):
    class Broken(Masked):
        def sample(self, x, t, generator=None, levels="independent"):
            z = super().sample(x, t, generator, "independent" if levels == "balanced" else levels)
            if levels == "balanced":
                which = int(rand((len(x), 1), generator, x.device).sum() * x.shape[1]) % x.shape[1]
                z[:, which] = self.vocab_size
            return z

    return Broken(5, Linear())

"""Theory sections 1, 2 and 5: the bound."""

import sys

import torch
from planting import deep, fault, hierarchical, tree

import ddlib as dd
from ddlib.processes import GIDD, Hierarchical, Masked, each_time, interior, into
from ddlib.schedules import Linear

NELBO, DENOISER, BOUND = (
    sys.modules[f"ddlib.{name}"] for name in ("objective.nelbo", "parameterization.logits", "objective.bound")
)
DIVERGENCE, CHILDREN = (
    sys.modules["ddlib.processes.hierarchical_kl"],
    sys.modules["ddlib.parameterization.tree_softmax"],
)
MAP = sys.modules["ddlib.hierarchies.maps"].Map


def generic(term):
    """Theory section 1's sum with another D(a, b)."""

    def value(process, logits, x, z, t):
        t = interior(t)
        noisy, believed = process.marginal(x, t), process.predictive(logits.double().softmax(-1), t)
        here = z[..., None]
        a, b = noisy / noisy.gather(-1, here), believed / believed.gather(-1, here)
        rates = into(each_time(process.rate_matrix, t), z).scatter(-1, here, 0.0)
        return (torch.where(rates > 0, rates * term(a, b), 0.0)).sum(-1).to(logits.dtype)

    return value


def plant_generic(patch, term):
    patch.setitem(NELBO._METHODS, "generic", generic(term))
    return dd.processes.Uniform(5, Linear())


@fault("D(a, b) = a log(a/b) - a + b")
def the_generic_sum_lacks_b_minus_a(patch):
    return plant_generic(patch, lambda a, b: torch.xlogy(a, a / b))


@fault("D(a, b) = a log(a/b) - a + b")
def the_generic_sum_has_a_and_b_exchanged(patch):
    return plant_generic(patch, lambda a, b: torch.xlogy(b, b / a.clamp_min(1e-30)) - b + a)


@fault("D(a, b) = a log(a/b) - a + b")
def the_generic_sum_has_the_wrong_sign_of_the_logarithm(patch):
    return plant_generic(patch, lambda a, b: -torch.xlogy(a, a / b) - a + b)


def odds(process, logits, x, z, t):
    """q_t(z|x) / q_t(z|p)."""
    time = interior(t)
    believed = process.predictive(logits.double().softmax(-1), time).gather(-1, z[..., None])[..., 0]
    return process.likelihood(z, x, time) / believed


class Closed(Hierarchical):
    """A closed form that its leaf may bend."""

    def weighted_divergence(self, logits, x, z, t):
        weight, divergence = super().weighted_divergence(logits, x, z, t)
        return self.bend(weight, divergence, logits, x, z, t)


@fault("w_i = F_{i-1} / a_i")
def the_weight_of_the_mask_is_doubled_as_in_the_papers_code(patch):
    class Broken(Closed):
        def bend(self, weight, divergence, logits, x, z, t):
            return torch.where(self.level_of(z) == 2, 2 * weight, weight), divergence

    return hierarchical(Broken)


@fault("w_{t,m}: denominator g t + (1-t)^g - 1 (section 6)")
def the_weight_of_the_mask_is_the_printed_one(patch):
    class Broken(Closed):
        def bend(self, weight, divergence, logits, x, z, t):
            u, g = 1 - interior(t), 2.0
            printed = g * (1 - u ** (g - 1)) / (g * (1 - u) + u**g)
            return torch.where(self.level_of(z) == 2, printed[:, None].to(weight), weight), divergence

    return hierarchical(Broken)


@fault("w_i = F_{i-1} / a_i, F the flux into the level")
def the_weights_use_the_flux_out_of_the_level(patch):
    class Broken(Closed):
        def bend(self, weight, divergence, logits, x, z, t):
            flux = self.chain.speeds[1] / self.chain.speeds[0]
            return torch.where(self.level_of(z) == 1, flux.to(weight) * weight, weight), divergence

    return hierarchical(Broken)


@fault("KL(pi(.|z,x) || pi(.|z,p)) with its constant")
def the_mask_term_lacks_the_entropy_of_the_stray_cluster(patch):
    class Broken(Closed):
        def bend(self, weight, divergence, logits, x, z, t):
            row = self.hierarchy.maps[0].row(x).to(logits.dtype)
            constant = torch.xlogy(row, row).sum(-1)
            return weight, torch.where(self.level_of(z) == 2, divergence - constant, divergence)

    return hierarchical(Broken)


@fault("cluster term -log [K(z|x) p(x) / u_1(z|p)]")
def the_cluster_term_is_the_cross_entropy_of_the_word(patch):
    class Broken(Closed):
        def bend(self, weight, divergence, logits, x, z, t):
            word = -logits.log_softmax(-1).gather(-1, x[..., None])[..., 0]
            return weight, torch.where(self.level_of(z) == 1, word, divergence)

    return hierarchical(Broken)


@fault("cluster term -log [K(z|x) p(x) / u_1(z|p)]")
def a_stray_cluster_is_scored_as_the_right_one(patch):
    class Broken(Closed):
        def bend(self, weight, divergence, logits, x, z, t):
            edge = self.hierarchy.maps[0]
            stray = (self.level_of(z) == 1) & (edge.parents[x] != self.hierarchy.local(z, 1))
            return weight, torch.where(stray, divergence + 0.1, divergence)

    return hierarchical(Broken)


@fault("the bound is the hard mode's nowhere")
def evaluation_uses_hard_mode(patch):
    class Broken(Hierarchical):
        def weighted_divergence(self, logits, x, z, t):
            word = -logits.log_softmax(-1).gather(-1, x[..., None])[..., 0]
            weight, divergence = super().weighted_divergence(logits, x, z, t)
            return weight, torch.where(self.level_of(z) >= 2, word, divergence)

    return hierarchical(Broken)


@fault("-log p(x) <= +E[...] (section 6)")
def the_closed_form_has_the_wrong_sign(patch):
    class Broken(Closed):
        def bend(self, weight, divergence, logits, x, z, t):
            return weight, -divergence

    return hierarchical(Broken)


@fault("0 at level 0")
def words_are_scored_too(patch):
    class Broken(Closed):
        def bend(self, weight, divergence, logits, x, z, t):
            word = -logits.log_softmax(-1).gather(-1, x[..., None])[..., 0]
            words = self.level_of(z) == 0
            return torch.where(words, 1.0, weight), torch.where(words, word, divergence)

    return hierarchical(Broken)


@fault("the weight is a function of time and state")
def the_weight_depends_on_the_model(patch):
    class Broken(Closed):
        def bend(self, weight, divergence, logits, x, z, t):
            scale = 1 + logits.softmax(-1).amax(-1)
            return weight * scale, divergence / scale

    return hierarchical(Broken)


@fault("sum over the children of every level")
def the_level_below_is_taken_for_the_words(patch):
    def members_term(hierarchy, i, j, law, x, here, u_z):
        return -law.gather(-1, hierarchy.between(0, i).parents[x][..., None])[..., 0]

    patch.setattr(DIVERGENCE, "_members_term", members_term)
    return hierarchical(Hierarchical, deep())


@fault("gradients are finite")
def the_gradient_at_impossible_words_is_nan(patch):
    class Broken(Closed):
        def bend(self, weight, divergence, logits, x, z, t):
            zero = (logits - logits).sum(-1)
            return weight, divergence + torch.where(zero == 0, 0.0, zero.sqrt()) + 0 * zero.sqrt()

    return hierarchical(Broken)


@fault("logits are never modified")
def logits_are_normalised_in_place(patch):
    class Broken(Masked):
        def weighted_divergence(self, logits, x, z, t):
            with torch.no_grad():
                logits -= logits.logsumexp(-1, keepdim=True) if not logits.requires_grad else 0.0
            return super().weighted_divergence(logits, x, z, t)

    return Broken(5, Linear())


@fault("float32 follows float64")
def the_cross_entropy_is_computed_in_half_precision(patch):
    class Broken(Masked):
        def weighted_divergence(self, logits, x, z, t):
            weight, divergence = super().weighted_divergence(logits, x, z, t)
            return weight, divergence if logits.dtype == torch.float64 else divergence.bfloat16().to(logits.dtype)

    return Broken(5, Linear())


@fault("KL + IS")
def gidds_closed_form_lacks_the_itakura_saito_term(patch):
    class Broken(GIDD):
        def weighted_divergence(self, logits, x, z, t):
            weight, divergence = super().weighted_divergence(logits, x, z, t)
            ratio = odds(self, logits, x, z, t)
            return weight, divergence - (ratio - ratio.log() - 1).to(divergence)

    return Broken(5, 0.3)


@fault("IS(a, b) = a/b - log(a/b) - 1")
def gidds_itakura_saito_term_is_exchanged(patch):
    class Broken(GIDD):
        def weighted_divergence(self, logits, x, z, t):
            weight, divergence = super().weighted_divergence(logits, x, z, t)
            ratio = odds(self, logits, x, z, t)
            return weight, divergence + (1 / ratio + 2 * ratio.log() - ratio).to(divergence)

    return Broken(5, 0.3)


@fault("w(z, x) = r_t(z) / q_t(z|x)")
def gidds_weight_is_divided_by_the_models_marginal(patch):
    class Broken(GIDD):
        def weighted_divergence(self, logits, x, z, t):
            weight, divergence = super().weighted_divergence(logits, x, z, t)
            return weight * odds(self, logits, x, z, t).to(weight), divergence

    return Broken(5, 0.3)


@fault("posterior = normalise(cavity * q_t(z|.))")
def posterior_logits_are_taken_for_the_cavity(patch):
    patch.setitem(DENOISER._CONVERSIONS, "posterior", DENOISER._cavity)
    return hierarchical(Hierarchical)


@fault("posterior = normalise(cavity * q_t(z|.))")
def the_evidence_is_multiplied_in_instead_of_divided_out(patch):
    def twice(process, logits, z, t):
        return logits.log_softmax(-1) + process.token_likelihood(z, t).clamp_min(1e-30).log().to(logits.dtype)

    patch.setitem(DENOISER._CONVERSIONS, "posterior", twice)
    return hierarchical(Hierarchical)


@fault("log p(x) = sum over edges of log softmax over siblings")
def child_logits_are_normalised_over_their_whole_level(patch):
    patch.setattr(MAP, "log_shares", lambda edge, logits: logits.log_softmax(-1))
    return hierarchical(Hierarchical, tree(xi=1.0))


@fault("log p(x) = sum over edges of log softmax over siblings")
def the_words_cluster_is_left_out_of_its_law(patch):
    patch.setattr(
        CHILDREN, "token_logits", lambda tree, logits: tree.maps[0].log_shares(logits[..., : tree.vocab_size])
    )
    return hierarchical(Hierarchical, tree(xi=1.0))


@fault("child logits: LSE(siblings) - own logit")
def a_child_is_taken_for_its_neighbour(patch):
    right = CHILDREN.Families.__init__

    def moved(families, parents, rows):
        right(families, parents, rows)
        families.rank = (families.rank + 1) % families.sizes[parents]

    patch.setattr(CHILDREN.Families, "__init__", moved)
    CHILDREN.children_of.cache_clear()
    return hierarchical(Hierarchical, tree(xi=1.0))


@fault("the bound has a reconstruction term")
def reconstruction_forgets_the_evidence(patch):
    def scores(process, logits, z, t):
        return logits.log_softmax(-1)

    patch.setattr(BOUND, "posterior_logits", scores)
    return hierarchical(Hierarchical, tree(xi=1.0))


@fault("clipping is for training")
def the_bound_clips_its_weights(patch):
    def clipped(process, logits, x, z, t):
        weight, divergence = process.weighted_divergence(logits, x, z, t)
        return weight.clamp_max(2.0) * divergence

    patch.setitem(NELBO._METHODS, "auto", clipped)
    return dd.presets.mdlm(5)

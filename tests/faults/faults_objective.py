"""The bound (theory sections 1, 2 and 5)."""

import sys

import torch
from planting import deep, fault, hierarchical, tree

import ddlib as dd
from ddlib.objective.training import LossOptions
from ddlib.processes import GIDD, Hierarchical, Masked, interior, unsqueeze_times
from ddlib.processes.broadcasting import each_time, gather_columns
from ddlib.schedules import Linear

NELBO = sys.modules["ddlib.objective.nelbo"]
BOUND = sys.modules["ddlib.objective.bound"]
DENOISER, CHILDREN = (
    sys.modules[f"ddlib.parameterization.{name}"] for name in ("logits", "tree_softmax")
)
DIVERGENCE = sys.modules["ddlib.processes.hierarchical_kl"]
MAP = sys.modules["ddlib.hierarchies.maps"].Map


def generic_sum(term, process, logits, x, z, t):
    """Sum of theory section 1 with ``term`` as D(a, b)."""
    t = interior(t)
    here = z[..., None]
    noisy = process.marginal(x, t)
    believed = process.predictive(logits.double().softmax(-1), t)
    a = noisy / noisy.gather(-1, here)
    b = believed / believed.gather(-1, here)
    rates = gather_columns(each_time(process.rate_matrix, t), z).scatter(-1, here, 0.0)
    return (torch.where(rates > 0, rates * term(a, b), 0.0)).sum(-1).to(logits.dtype)


fault("D(a, b) = a log(a/b) - a + b", dd.processes.Uniform, 5, Linear(), within=NELBO)(
    the_generic_sum_omits_b_minus_a=lambda dense_integrand, *given: generic_sum(
        lambda a, b: torch.xlogy(a, a / b), *given
    ),
    the_generic_sum_exchanges_a_and_b=lambda dense_integrand, *given: generic_sum(
        lambda a, b: torch.xlogy(b, b / a.clamp_min(1e-30)) - b + a, *given
    ),
    the_logarithm_in_the_generic_sum_has_the_wrong_sign=lambda dense_integrand, *given: generic_sum(
        lambda a, b: -torch.xlogy(a, a / b) - a + b, *given
    ),
)


def odds(process, logits, x, z, t):
    """Ratio q_t(z|x) / q_t(z|p)."""
    time = interior(t)
    believed = process.predictive(logits.double().softmax(-1), time).gather(-1, z[..., None])[
        ..., 0
    ]
    return process.likelihood(z, x, time) / believed


class Closed(Hierarchical):
    """Process whose method ``bend`` may change the weight and the divergence of the closed form."""

    def weighted_divergence(self, logits, x, z, t):
        return self.bend(*super().weighted_divergence(logits, x, z, t), logits, x, z, t)

    def bend(self, weight, divergence, logits, x, z, t):
        return weight, divergence


@fault("w_i = F_{i-1} / a_i", Closed, tree(), Linear())
def the_weight_of_the_mask_is_doubled_as_in_the_published_code(
    bend, self, weight, divergence, logits, x, z, t
):
    return torch.where(self.level_of(z) == 2, 2 * weight, weight), divergence


@fault("w_{t,m}: denominator g t + (1-t)^g - 1 (section 6)", Closed, tree(), Linear())
def the_weight_of_the_mask_follows_the_formula_printed_in_the_paper(
    bend, self, weight, divergence, logits, x, z, t
):
    u = 1 - interior(t)
    g = 2.0
    printed = g * (1 - u ** (g - 1)) / (g * (1 - u) + u**g)
    return torch.where(
        self.level_of(z) == 2, unsqueeze_times(printed).to(weight), weight
    ), divergence


@fault("w_i = F_{i-1} / a_i, F the flux into the level", Closed, tree(), Linear())
def the_weight_of_clusters_uses_the_speed_of_the_edge_above(
    bend, self, weight, divergence, logits, x, z, t
):
    flux = self.chain.speeds[1] / self.chain.speeds[0]
    return torch.where(self.level_of(z) == 1, flux.to(weight) * weight, weight), divergence


@fault(
    "the mask term is KL(pi(.|z,x) || pi(.|z,p)), including the entropy", Closed, tree(), Linear()
)
def the_mask_term_omits_the_entropy_of_the_cluster_given_the_token(
    bend, self, weight, divergence, logits, x, z, t
):
    row = self.hierarchy.maps[0].row(x).to(logits.dtype)
    constant = torch.xlogy(row, row).sum(-1)
    return weight, torch.where(self.level_of(z) == 2, divergence - constant, divergence)


@fault("cluster term -log [K(z|x) p(x) / u_1(z|p)]", Closed, tree(), Linear())
def the_cluster_term_is_the_cross_entropy_of_the_token(
    bend, self, weight, divergence, logits, x, z, t
):
    word = -logits.log_softmax(-1).gather(-1, x[..., None])[..., 0]
    return weight, torch.where(self.level_of(z) == 1, word, divergence)


@fault("cluster term -log [K(z|x) p(x) / u_1(z|p)]", Closed, tree(), Linear())
def the_divergence_at_clusters_other_than_the_parent_has_an_additional_constant(
    bend, self, weight, divergence, logits, x, z, t
):
    edge = self.hierarchy.maps[0]
    stray = (self.level_of(z) == 1) & (edge.parents[x] != self.hierarchy.local(z, 1))
    return weight, torch.where(stray, divergence + 0.1, divergence)


@fault(
    "the divergence is over the children of z, not over the tokens", Hierarchical, tree(), Linear()
)
def the_mask_term_is_the_cross_entropy_of_the_token(weighted_divergence, self, logits, x, z, t):
    word = -logits.log_softmax(-1).gather(-1, x[..., None])[..., 0]
    weight, divergence = weighted_divergence(logits, x, z, t)
    return weight, torch.where(self.level_of(z) >= 2, word, divergence)


@fault("-log p(x) <= +E[...] (section 6)", Closed, tree(), Linear())
def the_closed_form_has_the_wrong_sign(bend, self, weight, divergence, logits, x, z, t):
    return weight, -divergence


@fault("weight and divergence are 0 at level 0", Closed, tree(), Linear())
def tokens_have_a_positive_weight_and_divergence(bend, self, weight, divergence, logits, x, z, t):
    word = -logits.log_softmax(-1).gather(-1, x[..., None])[..., 0]
    words = self.level_of(z) == 0
    return torch.where(words, 1.0, weight), torch.where(words, word, divergence)


@fault("the weight is a function of time and state", Closed, tree(), Linear())
def the_weight_depends_on_the_model(bend, self, weight, divergence, logits, x, z, t):
    scale = 1 + logits.softmax(-1).amax(-1)
    return weight * scale, divergence / scale


@fault(
    "the divergence is a sum over the children in each level",
    Hierarchical,
    deep(),
    Linear(),
    within=DIVERGENCE,
)
def the_divergence_is_the_cross_entropy_of_the_tokens_likeliest_ancestor(
    _members_term, hierarchy, i, j, probs, x, here, u_z
):
    return -probs.gather(-1, hierarchy.between(0, i).parents[x][..., None])[..., 0]


@fault("gradients are finite", Closed, tree(), Linear())
def the_gradient_of_the_divergence_is_nan(bend, self, weight, divergence, logits, x, z, t):
    zero = (logits - logits).sum(-1)
    return weight, divergence + torch.where(zero == 0, 0.0, zero.sqrt()) + 0 * zero.sqrt()


@fault("logits are never modified", Masked, 5, Linear())
def logits_are_normalised_in_place(weighted_divergence, self, logits, x, z, t):
    with torch.no_grad():
        logits -= logits.logsumexp(-1, keepdim=True) if not logits.requires_grad else 0.0
    return weighted_divergence(logits, x, z, t)


@fault("results in float32 agree with those in float64", Masked, 5, Linear())
def the_divergence_is_rounded_to_bfloat16(weighted_divergence, self, logits, x, z, t):
    weight, divergence = weighted_divergence(logits, x, z, t)
    return weight, divergence if logits.dtype == torch.float64 else divergence.bfloat16().to(
        logits.dtype
    )


@fault("the divergence of GIDD is KL + IS", GIDD, 5, 0.3)
def the_closed_form_of_gidd_omits_the_itakura_saito_term(
    weighted_divergence, self, logits, x, z, t
):
    weight, divergence = weighted_divergence(logits, x, z, t)
    ratio = odds(self, logits, x, z, t)
    return weight, divergence - (ratio - ratio.log() - 1).to(divergence)


@fault("IS(a, b) = a/b - log(a/b) - 1", GIDD, 5, 0.3)
def the_itakura_saito_term_of_gidd_has_its_arguments_exchanged(
    weighted_divergence, self, logits, x, z, t
):
    weight, divergence = weighted_divergence(logits, x, z, t)
    ratio = odds(self, logits, x, z, t)
    return weight, divergence + (1 / ratio + 2 * ratio.log() - ratio).to(divergence)


@fault("w(z, x) = r_t(z) / q_t(z|x)", GIDD, 5, 0.3)
def the_weight_of_gidd_is_divided_by_the_models_marginal(
    weighted_divergence, self, logits, x, z, t
):
    weight, divergence = weighted_divergence(logits, x, z, t)
    return weight * odds(self, logits, x, z, t).to(weight), divergence


@fault(
    "posterior = normalise(cavity * q_t(z|.))",
    Hierarchical,
    tree(),
    Linear(),
    within=DENOISER._CONVERSIONS,
)
def posterior_logits_are_treated_as_cavity_logits(posterior, process, logits, z, t):
    return DENOISER._cavity(process, logits, z, t)


@fault(
    "posterior = normalise(cavity * q_t(z|.))",
    Hierarchical,
    tree(),
    Linear(),
    within=DENOISER._CONVERSIONS,
)
def posterior_logits_are_converted_by_adding_the_log_likelihood_of_z(
    posterior, process, logits, z, t
):
    return logits.log_softmax(-1) + process.token_likelihood(z, t).clamp_min(1e-30).log().to(
        logits.dtype
    )


@fault(
    "log p(x) = sum over edges of log softmax over siblings",
    Hierarchical,
    tree(xi=1.0),
    Linear(),
    within=MAP,
)
def child_logits_are_normalised_over_the_whole_level(log_shares, edge, logits):
    return logits.log_softmax(-1)


@fault(
    "log p(x) = sum over edges of log softmax over siblings",
    Hierarchical,
    tree(xi=1.0),
    Linear(),
    within=CHILDREN,
)
def token_logits_omit_the_probability_of_the_cluster(token_logits, tree, logits):
    return tree.maps[0].log_shares(logits[..., : tree.vocab_size])


@fault("the loss of child logits is LSE(siblings) - own logit")
def the_rank_of_each_child_in_its_family_is_shifted_by_one(patch):
    right = CHILDREN.Families.__init__

    def moved(families, parents, rows):
        right(families, parents, rows)
        families.rank = (families.rank + 1) % families.sizes[parents]

    patch.setattr(CHILDREN.Families, "__init__", moved)
    CHILDREN.children_of.cache_clear()
    return hierarchical(Hierarchical, tree(xi=1.0))


@fault("the reconstruction term depends on z", Hierarchical, tree(xi=1.0), Linear(), within=BOUND)
def the_reconstruction_term_omits_the_evidence_of_z(posterior_logits, process, logits, z, t):
    return logits.log_softmax(-1)


@fault("the bound does not clip its weights", dd.presets.mdlm, 5, within=LossOptions)
def the_bound_clips_its_weights_at_2(per_token, self, process, logits, x, z, t):
    weight, divergence = process.weighted_divergence(logits, x, z, t)
    return weight.clamp_max(2.0) * divergence

"""Guidance: tempered distributions, classifiers and their weight, and the interval of times."""

import sys

import torch
from planting import fault

from ddlib.guidance import ClassifierBased, ClassifierFree
from ddlib.guidance.small_networks import Lookup, Scale
from ddlib.guidance.targets import ChildTarget, StepTarget, TokenTarget
from ddlib.processes.examples import four
from ddlib.samplers import reverse_step

FREE = sys.modules["ddlib.guidance.classifier_free"]


def free(cls=ClassifierFree, on="states", name="levels", strength=2.5, **options):
    process = four()[name]
    return cls(process, Lookup(process, 1), Lookup(process, 2), strength, on, **options)


def based(cls=ClassifierBased, name="levels", strength=1.5, classifier=Scale, **options):
    process = four()[name]
    return cls(process, Lookup(process, 1), classifier(process, 2), strength, **options)


class First(Scale):
    """Classifier that depends on the first position only."""

    def __call__(self, states, t):
        return states[:, 0].to(torch.float64) @ self.weight


@fault("p_c to the power gamma", free, ClassifierFree, "tokens", "masked", within=FREE)
def conditional_and_unconditional_distributions_are_exchanged(temper, c, u, gamma):
    return temper(u, c, gamma)


@fault("p_u to the power 1 - gamma", free, ClassifierFree, "tokens", "masked", within=FREE)
def the_strength_is_increased_by_one(temper, c, u, gamma):
    return temper(c, u, gamma + 1)


@fault(
    "distributions are multiplied",
    free,
    ClassifierFree,
    "tokens",
    "masked",
    strength=0.5,
    within=FREE,
)
def distributions_are_averaged_in_place_of_multiplied(temper, c, u, gamma):
    power = gamma[:, None, None]
    return (power * c.softmax(-1) + (1 - power) * u.softmax(-1)).clamp_min(1e-9).log()


@fault("the exponents sum to 1", free, ClassifierFree, "tokens", "tree", within=FREE)
def the_unconditional_distribution_is_omitted(temper, c, u, gamma):
    return gamma[:, None, None] * c


@fault("child distributions are tempered, not token distributions")
def token_distributions_are_tempered_in_place_of_child_distributions(patch):
    class Broken(ClassifierFree):
        _place = property(lambda self: TokenTarget, lambda self, value: None)

    return free(cls=Broken)


@fault("cluster masses are summed before tempering", ClassifierFree, build=free)
def cluster_masses_are_summed_after_tempering(steer, self, place):
    words = steer(TokenTarget(place.process, place.parameterization, place.z, place.t))
    return (
        ChildTarget(place.process, "cavity", place.z, place.t).choice_logits(words)
        if self.on == "states"
        else words
    )


@fault(
    "the distribution of z_s is tempered, not that of the token",
    ClassifierFree,
    name="uniform",
    build=free,
)
def the_step_distribution_is_computed_from_tempered_token_distributions(steer, self, place):
    words = steer(TokenTarget(place.process, place.parameterization, place.z, place.t))
    return StepTarget(place.process, "cavity", place.z, place.t, place.s).choice_logits(words)


@fault("q_s(.|p) takes a normalised distribution p", free, name="uniform", within=StepTarget)
def the_step_distribution_uses_unnormalised_token_probabilities(choice_logits, self, logits):
    process = self.process
    cavity = TokenTarget.choice_logits(self, logits).exp()
    into = process.transition(self.s[0], self.t[0])[:, self.z].movedim(0, -1)
    return (process.predictive(cavity, self.s) * into).log()


@fault("guidance does not change the distribution of the levels")
def the_guidance_also_changes_the_levels(patch):
    patch.setattr(
        reverse_step, "LevelProcess", type(None)
    )  # so that levels are not drawn before the guidance
    process = four()["xi"]
    return ClassifierFree(process, Lookup(process, 1), Lookup(process, 2), 6.0, "states")


@fault("z_s is drawn from the guided distribution")
def steps_are_drawn_without_guidance(patch):
    process = four()["gidd"]
    plain = ClassifierFree(process, Lookup(process, 1), Lookup(process, 2), 1.5, "states")
    unguided = plain.replace(strength=lambda t: 1.0).step_distribution
    right = reverse_step.step_by_guidance

    def step_by_guidance(run, z, t, s):
        network = type(run.network)(run.process, run.network.denoiser)
        network.step_log_probs = lambda z, t, s, rows: unguided(z[rows], t[rows], s[rows])
        return right(type(run)(**{**vars(run), "network": network}), z, t, s)

    patch.setattr(sys.modules["ddlib.samplers.ancestral"], "step_by_guidance", step_by_guidance)
    return plain


@fault(
    "outside the interval the conditional distribution is used",
    ClassifierFree,
    "tokens",
    "masked",
    build=free,
)
def the_unconditional_distribution_is_used_outside_the_interval(strength_at, self, t):
    low, high = self.interval
    return torch.where((t >= low) & (t <= high), strength_at(t), 0.0)


@fault(
    "strength 0 gives the unconditional distribution",
    ClassifierFree,
    "tokens",
    "masked",
    build=free,
)
def the_conditional_distribution_is_used_at_strength_0(steer, self, place):
    if bool((self.strength_at(place.t) == 0).all()):
        return self.evaluate(place, "conditional")[0]
    return steer(place)


@fault("log p(y|z') - log p(y|z)", ClassifierBased, build=based)
def the_difference_of_log_probabilities_has_the_wrong_sign(change, self, place):
    return -change(place)


@fault("the strength multiplies the difference", ClassifierBased, "masked", build=based)
def the_strength_is_1_unless_it_is_0(steer, self, place):
    if bool((self.strength_at(place.t) == 0).all()):
        return steer(place)
    return self.evaluate(place, "denoiser")[0] + self.change(place)


@fault("log p(y|z), not p(y|z)", ClassifierBased, "tree", build=based)
def the_classifier_returns_probabilities_in_place_of_log_probabilities(
    _class_log_prob, self, states, t
):
    return _class_log_prob(states, t).exp()


@fault("the gradient is taken at z", ClassifierBased, "tree", how="first order", build=based)
def the_gradient_is_taken_at_the_sequence_of_masks(_states, self, z):
    return _states(torch.full_like(z, self.process.num_states - 1) if self.how != "exact" else z)


@fault("grad . (z' - z)", ClassifierBased, "tree", how="first order", build=based)
def the_first_order_change_is_that_of_another_choice(_first_order, self, place):
    return _first_order(place).roll(1, -1)


@fault(
    "the classifier takes z with one changed position",
    ClassifierBased,
    "masked",
    1.5,
    First,
    build=based,
)
def the_classifier_takes_the_mean_of_the_states_over_positions(_class_log_prob, self, states, t):
    return _class_log_prob(states.mean(1, keepdim=True).expand_as(states), t)

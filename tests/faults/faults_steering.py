"""Guidance: what is tempered, what is weighed, and where."""

import sys

import torch
from planting import fault

from ddlib.guidance import ClassifierBased, ClassifierFree
from ddlib.guidance.targets import ChildTarget, StepTarget, TokenTarget
from ddlib.guidance.zoo import Lookup, Scale, processes
from ddlib.samplers.runtime import guided

FREE = sys.modules["ddlib.guidance.classifier_free"]


def free(on="states", name="levels", cls=ClassifierFree, strength=2.5, **options):
    process = processes()[name]
    return cls(process, Lookup(process, 1), Lookup(process, 2), strength, on, **options)


def based(name="levels", cls=ClassifierBased, strength=1.5, **options):
    process = processes()[name]
    return cls(process, Lookup(process, 1), Scale(process, 2), strength, **options)


@fault("p_c to the power gamma")
def the_strength_is_on_the_side_of_the_unconditional(patch):
    right = FREE.tempered
    patch.setattr(FREE, "tempered", lambda c, u, gamma: right(u, c, gamma))
    return free("words", "masked")


@fault("p_u to the power 1 - gamma")
def the_strength_is_that_of_those_who_add_one(patch):
    right = FREE.tempered
    patch.setattr(FREE, "tempered", lambda c, u, gamma: right(c, u, gamma + 1))
    return free("words", "masked")


@fault("laws are multiplied")
def laws_are_mixed(patch):
    def mixed(c, u, gamma):
        power = gamma[:, None, None]
        return (power * c.softmax(-1) + (1 - power) * u.softmax(-1)).clamp_min(1e-9).log()

    patch.setattr(FREE, "tempered", mixed)
    return free("words", "masked", strength=0.5)


@fault("the powers add up to one")
def the_unconditional_is_left_out(patch):
    patch.setattr(FREE, "tempered", lambda c, u, gamma: gamma[:, None, None] * c)
    return free("words", "tree")


@fault("child laws are tempered, not words")
def words_are_tempered_where_states_are_asked_for(patch):
    class Broken(ClassifierFree):
        _place = property(lambda self: TokenTarget, lambda self, value: None)

    return free(cls=Broken)


@fault("the power of a sum is no sum of powers")
def masses_are_summed_after_tempering(patch):
    class Broken(ClassifierFree):
        def steer(self, place):
            words = super().steer(TokenTarget(place.process, place.parameterization, place.z, place.t))
            return ChildTarget(place.process, "cavity", place.z, place.t).laws(words) if self.on == "states" else words

    return free(cls=Broken)


@fault("the law of z_s is tempered, not that of the word")
def words_are_tempered_and_noised_after(patch):
    class Broken(ClassifierFree):
        def steer(self, place):
            words = super().steer(TokenTarget(place.process, place.parameterization, place.z, place.t))
            return StepTarget(place.process, "cavity", place.z, place.t, place.s).laws(words)

    return free(name="uniform", cls=Broken)


@fault("q_s(.|p) takes a law")
def laws_of_steps_are_made_of_unnormalised_words(patch):
    def laws(self, logits):
        process, cavity = self.process, TokenTarget.laws(self, logits).exp()
        into = process.transition(self.s[0], self.t[0])[:, self.z].movedim(0, -1)
        return (process.predictive(cavity, self.s) * into).log()

    patch.setattr(StepTarget, "laws", laws)
    return free(name="uniform")


@fault("levels move as without guidance")
def levels_are_steered_too(patch):
    class Blind(type(processes()["xi"])):
        def sample_level(self, z, t, s, generator=None, lift=None):
            super().sample_level(z, t, s, generator, lift)
            return None

    process = processes()["xi"]
    process = Blind(process.hierarchy, process.schedule)
    return ClassifierFree(process, Lookup(process, 1), Lookup(process, 2), 6.0, "states")


@fault("z_s is drawn from the steered law")
def steps_are_drawn_without_guidance(patch):
    process = processes()["gidd"]
    plain = ClassifierFree(process, Lookup(process, 1), Lookup(process, 2), 1.5, "states")
    told = plain.replaced(strength=lambda t: 1.0).step_distribution
    right = guided.guided_step

    def guided_step(run, z, t, s):
        network = type(run.network)(run.process, run.network.denoiser)
        network.step_distribution = told
        return right(type(run)(**{**vars(run), "predict": network}), z, t, s)

    patch.setattr(sys.modules["ddlib.samplers.ancestral"], "guided_step", guided_step)
    return plain


@fault("outside the interval the conditional alone speaks")
def outside_the_interval_the_unconditional_speaks(patch):
    class Broken(ClassifierFree):
        def strength_at(self, t):
            low, high = self.interval
            return torch.where((t >= low) & (t <= high), super().strength_at(t), 0.0)

    return free("words", "masked", cls=Broken)


@fault("at strength 0 it is the unconditional")
def the_limits_are_exchanged(patch):
    class Broken(ClassifierFree):
        def steer(self, place):
            if bool((self.strength_at(place.t) == 0).all()):
                return self.evaluate(place, "conditional")[0]
            return super().steer(place)

    return free("words", "masked", cls=Broken)


@fault("log p(y|z') - log p(y|z)")
def the_difference_has_the_other_sign(patch):
    class Broken(ClassifierBased):
        def change(self, place):
            return -super().change(place)

    return based(cls=Broken)


@fault("the strength multiplies the difference")
def the_strength_is_one_whatever_is_asked(patch):
    class Broken(ClassifierBased):
        def steer(self, place):
            if bool((self.strength_at(place.t) == 0).all()):
                return super().steer(place)
            return self.evaluate(place, "denoiser")[0] + self.change(place)

    return based("masked", Broken)


@fault("log p(y|z), not p(y|z)")
def probabilities_are_added_to_logarithms(patch):
    class Broken(ClassifierBased):
        def _said(self, states, t):
            return super()._said(states, t).exp()

    return based("tree", Broken)


@fault("the gradient is taken at z")
def the_gradient_is_that_of_the_text_of_masks(patch):
    class Broken(ClassifierBased):
        def _states(self, z):
            return super()._states(torch.full_like(z, self.process.num_states - 1) if self.how != "exact" else z)

    return based("tree", Broken, how="first order")


@fault("grad . (z' - z)")
def the_gradient_is_taken_for_the_difference_of_another_position(patch):
    class Broken(ClassifierBased):
        def _sloping(self, place):
            return super()._sloping(place).roll(1, -1)

    return based("tree", Broken, how="first order")


@fault("the classifier is told z with one change, not the word alone")
def the_classifier_sees_nothing_but_the_change(patch):
    class Broken(ClassifierBased):
        def _said(self, states, t):
            return super()._said(states.mean(1, keepdim=True).expand_as(states), t)

    process = processes()["masked"]
    return Broken(process, Lookup(process, 1), First(process, 2), 1.5)


class First(Scale):
    """A classifier of the first position alone."""

    def __call__(self, states, t):
        return states[:, 0].to(torch.float64) @ self.weight

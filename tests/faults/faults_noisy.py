"""Theory section 13: a hierarchy whose words can be wrong."""

import torch
from planting import WORDS, deep, fault

import ddlib as dd
from ddlib.processes import Noisy
from ddlib.processes.resampling_chain import LevelProbs
from ddlib.schedules import Linear
from ddlib.utils.random import rand


def noisy(cls, xi=0.8, frequency=(3.0, 1.0, 1.0, 2.0, 5.0, 1.0)):
    """Of the class: redraws of words and of clusters, on the linear clock."""
    return cls(dd.hierarchies.Tree([WORDS], xi=xi, speed=[2.0, 1.0]), Linear(), [0.3, 0.2], frequency)


@fault("pi_{i+1} = pi_i K_i")
def redrawn_clusters_are_uniform(patch):
    process = noisy(Noisy)
    process.typical[6:10] = 0.25
    return process


@fault("(i, redrawn) -> (i + 1, redrawn)")
def a_redrawn_word_is_kept_as_a_cluster(patch):
    class Broken(Noisy):
        def shares(self, t):
            kept, redrawn = super().shares(t)
            moved = torch.zeros_like(kept)
            moved[:, 1] = redrawn[:, 1]
            return LevelProbs(kept + moved, redrawn - moved)

    return noisy(Broken)


@fault("the flag of q_{t|s} counts from s")
def what_was_redrawn_before_counts_as_redrawn_since(patch):
    class Broken(Noisy):
        def transition(self, s, t):
            result, first = super().transition(s, t), super().transition(0.0, t)
            result[:6] = first[:6]
            return result

    return noisy(Broken)


@fault("a redraw leaves its state")
def redraws_lack_their_diagonal(patch):
    class Broken(Noisy):
        def rate_matrix(self, t):
            q = super().rate_matrix(t)
            return q + torch.diag(torch.cat([self.chain.rates, torch.zeros(1).double()])[self._level])

    return noisy(Broken)


@fault("pi is the law of the words that are drawn")
def words_are_redrawn_uniformly(patch):
    class Broken(Noisy):
        def _resample(self, like, generator):
            return self._uniform_tokens(like.shape, generator, like.device)

    return noisy(Broken)


@fault("a redrawn cluster is one of pi_i")
def a_redrawn_word_becomes_its_old_cluster(patch):
    class Broken(Noisy):
        def _ascend(self, z, state, generator):
            return super()._ascend(z, torch.where(state == 3, 2, state), generator)

    return noisy(Broken)


@fault("into z come flows from its own level")
def the_bound_lacks_redraws(patch):
    class Broken(Noisy):
        def weighted_divergence(self, logits, x, z, t):
            weight, divergence = super().weighted_divergence(logits, x, z, t)
            return weight, torch.where(z < self.vocab_size, 0.0, divergence)

    return noisy(Broken)


@fault("q_t(y|x) = k u(y|x) + r pi(y) at the children too")
def the_bound_takes_children_for_kept(patch):
    class Broken(Noisy):
        def _sides(self, shares, i, log_probs, x):
            return super()._sides(LevelProbs(shares.kept, shares.redrawn * 1e-9), i, log_probs, x)

    return noisy(Broken)


@fault("cost A (e^m - 1 - m) / A(z), with m at y less m at z")
def the_bound_forgets_what_z_itself_says(patch):
    class Broken(Noisy):
        def weighted_divergence(self, logits, x, z, t):
            weight, divergence = super().weighted_divergence(logits, x, z, t)
            log_p = logits.log_softmax(-1).gather(-1, x[..., None])[..., 0]
            return weight, torch.where(z == x, -log_p * 0.1, divergence)

    return noisy(Broken)


@fault("the mean weight is the sum of all fluxes, those of redraws among them")
def balance_counts_no_redraws(patch):
    class Broken(Noisy):
        def _weight_and_mean(self, x, z, t):
            mean, here = super()._weight_and_mean(x, z, t)
            kept, redrawn = self.shares(t)
            again = ((kept + redrawn)[:, :-1] * self.chain.rates).sum(1, keepdim=True)
            return mean - self.schedule.rate(t)[:, None] * again, here

    return noisy(Broken)


@fault("q_{t|s}(z|y) has a part that no y has a say in")
def the_posterior_forgets_redraws_since(patch):
    class Broken(Noisy):
        def shares_between(self, s, t):
            kept, redrawn = super().shares_between(s, t)
            return LevelProbs(kept + redrawn, torch.zeros_like(redrawn))

    return noisy(Broken)


@fault("Q_t(y, z) q_t(y|p) / q_t(z|p) for members of z's own level")
def reverse_rates_lead_only_down(patch):
    class Broken(Noisy):
        def reverse_rate(self, p, z, t):
            rates = super().reverse_rate(p, z, t)
            return torch.where(self._level == self.level_of(z)[..., None], 0.0, rates)

    return noisy(Broken)


@fault("a draw of z_s is one of the posterior")
def whoever_lands_was_never_redrawn_before(patch):
    class Broken(Noisy):
        def sample_given_level(self, logits, z, t, s, target, generator=None, **how):
            near = torch.full_like(s, 1e-9)
            return super().sample_given_level(logits, z, t, torch.where(s < 0.5, near, s), target, generator, **how)

    return noisy(Broken)


@fault("z_s is redrawn by pi in z's place, not by the network")
def a_redrawn_landing_is_uniform(patch):
    class Broken(Noisy):
        def sample_given_level(self, logits, z, t, s, target, generator=None, **how):
            landed = super().sample_given_level(logits, z, t, s, target, generator, **how)
            words = self._uniform_tokens(z.shape, generator, z.device)
            lost = rand(z.shape, generator, z.device) < 0.3
            return torch.where(lost & (landed < self.vocab_size) & (z < self.vocab_size), words, landed)

    return noisy(Broken)


@fault("prior_kl is KL(q_t(.|x) || that of a uniform word), r pi on both sides")
def the_prior_is_told_without_redraws(patch):
    class Broken(Noisy):
        def prior_kl(self, x, t=None):
            return dd.processes.Hierarchical(self.hierarchy, self.schedule).prior_kl(x, t)

    return noisy(Broken)


@fault("levels between the words and the mask are redrawn as well")
def only_the_lowest_redraws_are_rates(patch):
    class Broken(Noisy):
        def rate_matrix(self, t):
            chain, q = self.chain, super().rate_matrix(t)
            other = Noisy(
                self.hierarchy, self.schedule, [*self.p_uniform[:1], 0.0, *self.p_uniform[2:]], self.frequency
            )
            return q if float(chain.rates[1]) == 0 else other.rate_matrix(t)

    return Broken(deep(), Linear(), [0.2, 0.3, 0.1])

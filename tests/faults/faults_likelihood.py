"""Exact likelihood of a sequence under an order that depends on the states alone (theory section
10).
"""

import sys

import torch
from planting import fault

from ddlib.samplers import Confidence, EntropyBounded, LeftToRight
from ddlib.samplers.choices import entropy
from ddlib.samplers.runtime.context import BlockContexts
from ddlib.samplers.state_draws import transition_log_prob
from ddlib.utils.random import rand
from ddlib.verification.claims.samplers import likelihood as READING

READS = sys.modules["ddlib.samplers.likelihood"]
COSTS = sys.modules["ddlib.contrib.order_costs"]


def choosing(patch, look):
    """Order whose likelihood of x uses ``look`` as scores, which depend on x.

    Draws follow the given order.
    """
    right = READING.likelihood

    def likelihood(process, denoiser, x, order, **options):
        class Broken(type(order)):
            def scores(self, run, predictions, z, level):
                score = torch.zeros(z.shape, dtype=torch.float64)
                for out in predictions:
                    score[out.b, out.i] = look(run, out, level, x).to(torch.float64)
                return score

        peeking = object.__new__(Broken)
        vars(peeking).update(vars(order))
        return right(process, denoiser, x, peeking, **options)

    patch.setattr(READING, "likelihood", likelihood)
    return Confidence("probability")


@fault("the order does not depend on the true tokens x")
def the_order_scores_positions_by_the_probability_of_their_true_descendants(patch):
    def scores(run, out, level, x):
        below = run.process.ascend(x, (level - 1).clamp_min(0))
        return transition_log_prob(out, below[out.b, out.i], False)

    return choosing(patch, scores)


@fault("the order does not depend on the true tokens x")
def the_order_scores_positions_by_predictions_from_the_true_tokens(patch):
    def scores(run, out, level, x):
        logits = run.predict(x, torch.zeros(len(x), dtype=torch.float64))[out.b, out.i]
        return -entropy(logits.log_softmax(-1))

    return choosing(patch, scores)


@fault("the probability of a cluster is the sum over its tokens", Confidence, within=READS)
def the_likelihood_of_a_cluster_is_that_of_its_first_token(transition_log_prob, out, landed, force):
    level = out.network.process.level_of(landed[:, None])[:, 0]
    words = out.token_logits(torch.zeros_like(level))[:, 0].log_softmax(-1)
    everyone = torch.arange(words.shape[1]).expand_as(words)
    parents = out.network.process.ascend(everyone, level[:, None].expand_as(words))
    own = (parents == landed[:, None]).to(torch.uint8).argmax(1)
    return torch.where(
        level > 0, words.gather(1, own[:, None])[:, 0], transition_log_prob(out, landed, force)
    )


@fault(
    "the probability of a token is conditioned on its cluster", EntropyBounded, 0.0, within=READS
)
def the_likelihood_of_a_token_is_normalised_over_all_tokens(
    transition_log_prob, out, landed, force
):
    words = out.token_logits(torch.zeros_like(landed))[:, 0].log_softmax(-1)
    word = landed < out.network.process.vocab_size
    found = words.gather(1, torch.where(word, landed, 0)[:, None])[:, 0]
    return torch.where(word, found, transition_log_prob(out, landed, force))


@fault("the likelihood includes the descents over all edges", LeftToRight, within=READS)
def the_likelihood_omits_descents_from_the_mask(transition_log_prob, out, landed, force):
    return torch.where(
        out.z == out.network.process.num_states - 1, 0.0, transition_log_prob(out, landed, force)
    )


@fault("the likelihood includes the descents over all edges", Confidence, within=READS)
def the_likelihood_omits_descents_to_clusters(transition_log_prob, out, landed, force):
    return torch.where(
        landed < out.network.process.vocab_size, transition_log_prob(out, landed, force), 0.0
    )


@fault("the likelihood uses the model times of sampling", LeftToRight, within=READS)
def the_model_time_of_the_likelihood_is_always_1(model_time, run, z, expected):
    return torch.ones(len(z), dtype=torch.float64)


@fault("the likelihood uses the number of steps of sampling", LeftToRight, within=READING)
def the_likelihood_ignores_the_number_of_steps(likelihood, *args, steps=None, **options):
    return likelihood(*args, **options)


@fault("only a deterministic order has a likelihood in closed form")
def an_order_with_random_noise_is_declared_to_be_deterministic(patch):
    class Broken(Confidence):
        deterministic = True

        def noise(self, run, z):
            return rand(z.shape, run.generator, z.device)

    return Broken()


@fault("positions of a set are independent given the states", Confidence, within=READS)
def the_likelihood_evaluates_the_positions_of_a_group_one_at_a_time(
    read_steps, order, run, x, group
):
    return read_steps(order, run, x, None if group is None else 1)


@fault(
    "each position of a chain is conditioned on all positions before it", LeftToRight, within=COSTS
)
def the_chain_has_the_log_probabilities_of_the_sets(_chain, order, run, x, start, moves):
    return moves


@fault("the order of a chain depends only on the states")
def the_chain_orders_positions_by_the_log_probability_of_the_true_tokens(patch):
    right = COSTS._Moves.of
    patch.setattr(
        COSTS._Moves, "of", lambda run, step: right(run, step._replace(preference=step.log_probs))
    )
    return Confidence()


@fault(
    "a block is conditioned on the tokens of the blocks before it",
    EntropyBounded,
    0.0,
    within=BlockContexts,
)
def the_likelihood_replaces_all_tokens_before_a_block_by_token_0(at, self, before, *behind):
    return at(torch.zeros_like(before), *behind)


@fault("sampling and likelihood use the same order", LeftToRight)
def draws_use_another_order_than_the_likelihood(step, self, run, state, k):
    return Confidence().step(run, state, k)

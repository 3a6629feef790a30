"""Faults of the training loss: numbers that are lost to the dtype of the logits."""

import torch
from planting import fault

from ddlib.objective.training import LossOptions
from ddlib.processes import Masked, RateMatrix
from ddlib.processes.broadcasting import quotient
from ddlib.schedules import Linear


def ring(size=18):
    """One-way ring of tokens, which are also masked."""
    rates = torch.zeros(size + 1, size + 1, dtype=torch.float64)
    rates[:size, :size] = 2 * torch.eye(size).roll(1, 1) - 3 * torch.eye(size)
    rates[:size, size] = 1
    return RateMatrix(rates, Linear(), size)


@fault("the loss of a token is its bound in every dtype", ring, within=LossOptions)
def the_integrand_is_divided_by_a_weight_in_the_dtype_of_the_logits(
    per_token, self, process, logits, x, z, t
):
    values = per_token(process, logits, x, z, t)
    truth = torch.nn.functional.one_hot(x, process.vocab_size).double()
    weight = process.reverse_rate(truth, z, t.double()).sum(-1).to(values.dtype)
    return weight * quotient(values, weight)


def path(size=5):
    """One-way path of tokens: a state that is still its token has no other state to come from."""
    step = torch.eye(size, dtype=torch.float64).roll(1, 1)
    step[-1, 0] = 0
    return RateMatrix(step - torch.diag(step.sum(1)), Linear(), size)


@fault("no weight is 0 where the bound is not", path, within=RateMatrix)
def the_weight_is_the_reverse_rate_of_the_token_alone(loss_weight, self, x, z, t):
    return self.reverse_rate(
        torch.nn.functional.one_hot(x, self.vocab_size).double(), z, t.double()
    ).sum(-1)


@fault(
    "the loss of a token is its bound for every vocabulary",
    Masked,
    300,
    Linear(),
    within=LossOptions,
)
def probabilities_of_many_tokens_are_rounded_to_bfloat16(per_token, self, process, logits, x, z, t):
    if process.vocab_size > 64:
        logits = logits.log_softmax(-1).bfloat16()
    return per_token(process, logits, x, z, t)

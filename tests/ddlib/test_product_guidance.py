"""Classifier guidance of products, against enumerated sequences."""

import itertools

import pytest
import torch
from zoo.calls import seeded

import ddlib as dd
from ddlib.guidance import ClassifierBased
from ddlib.processes import Masked, Product, Uniform
from ddlib.schedules import Cosine, Linear
from ddlib.testing.oracle import every_sequence, exact_cavity

F64 = torch.float64
T = 0.6
S = 0.5
TREE = dd.presets.hdlm([0, 0, 1], xi=0.8)
PAIRS = {
    "masks": Product({"a": Masked(2, Linear()), "b": Masked(3, Linear())}, ["a", "b"]),
    "masks, the wide field first": Product(
        {"a": Masked(2, Linear()), "b": Masked(3, Linear())}, ["b", "a"]
    ),
    "uniform": Product({"a": Uniform(2, Linear()), "b": Uniform(3, Cosine())}, ["b", "a"]),
    "mixed": Product({"a": Masked(2, Linear()), "b": Uniform(3, Linear())}, ["a", "b"]),
    "levels": Product({"a": TREE, "b": Masked(2, Cosine())}, ["b", "a"]),
    "fields of each row": Product(
        {"a": Masked(2, Linear()), "b": Masked(3, Linear())}, torch.tensor([[1, 0]])
    ),
}
"""Products of two positions, of different alphabets."""


def labelled(product):
    """A joint distribution of two tokens and a binary label, (V, V, 2)."""
    x, _ = every_sequence(product, 2)
    joint = torch.zeros(product.vocab_size, product.vocab_size, 2, dtype=F64)
    joint[x.unbind(1)] = torch.rand(len(x), 2, generator=seeded(), dtype=F64) + 0.05
    return joint / joint.sum()


def class_log_probs(product, joint, z, t):
    """Log p(y = 0|z) of each sequence of states, by a sum over all tokens."""
    x, _ = every_sequence(product, 2)
    rows = z.repeat_interleave(len(x), 0)
    clean = x.repeat(len(z), 1)
    likelihood = product.likelihood(rows, clean, torch.full((len(rows),), t, dtype=F64)).prod(-1)
    by_label = likelihood.view(len(z), len(x)) @ joint[x.unbind(1)]
    return by_label[:, 0].log() - by_label.sum(1).log()


def guidance(product, on="tokens", how="exact", classifier=None, strength=1.0, network=None):
    joint = labelled(product)

    def exact(states, t):
        return class_log_probs(product, joint, states.argmax(-1), float(t[0]))

    network = network or exact_cavity(product, joint.sum(-1))
    return ClassifierBased(product, network, classifier or exact, strength, how, on)


def steered(product, guided, z):
    """Probabilities of the choices that each position can reach, (n, 2, V) of tokens or (n, 2, S)
    of states.
    """
    t = torch.full((len(z),), T, dtype=F64)
    if guided.has_step_distribution:
        return guided.step_distribution(z, t, torch.full_like(t, S)).softmax(-1)
    possible = product.token_likelihood(z, t) > 0
    return torch.where(possible, guided(z, t), -torch.inf).softmax(-1)


@pytest.mark.parametrize("kind", [name for name in PAIRS if "masks" in name])
def test_the_tokens_of_each_field_are_those_given_the_label(kind):
    """Bayes's rule, which is exact where a state that is a token is the clean token."""
    product = PAIRS[kind]
    joint = labelled(product)
    conditional = exact_cavity(product, joint[..., 0] / joint[..., 0].sum())
    _, z = every_sequence(product, 2)
    expected = steered(product, guidance(product, network=conditional, strength=0.0), z)
    torch.testing.assert_close(steered(product, guidance(product), z), expected)


@pytest.mark.parametrize("on", ["tokens", "states"])
@pytest.mark.parametrize("kind", [name for name in PAIRS if name != "fields of each row"])
def test_each_change_of_a_position_is_weighted_by_the_classifier(kind, on):
    product = PAIRS[kind]
    joint = labelled(product)
    _, z = every_sequence(product, 2)
    guided = guidance(product, on, strength=1.5)
    plain = steered(product, guided.replace(strength=lambda t: 0.0), z)
    weight = torch.ones_like(plain)
    current = class_log_probs(product, joint, z, T)
    for row, i, k in (plain > 0).nonzero().tolist():
        changed = z[row : row + 1].clone()
        x = torch.zeros(1, 2, dtype=torch.int64)
        x[0, i] = k
        changed[0, i] = k if guided.has_step_distribution else product.tokens_as_states(x)[0, i]
        log_ratio = class_log_probs(product, joint, changed, T) - current[row]
        weight[row, i, k] = (1.5 * log_ratio).exp()
    expected = plain * weight
    expected /= expected.sum(-1, keepdim=True)
    torch.testing.assert_close(steered(product, guided, z), expected)


@pytest.mark.parametrize("on", ["tokens", "states"])
@pytest.mark.parametrize("kind", PAIRS)
def test_a_linear_classifier_is_the_same_to_first_order(kind, on):
    product = PAIRS[kind]
    weight = torch.randn(2, product.num_states, generator=seeded(4), dtype=F64)

    def linear(states, t):
        return (states.to(F64) * weight).sum((1, 2))

    _, z = every_sequence(product, 2)
    first, exact = (
        steered(product, guidance(product, on, how, linear, 1.5), z)
        for how in ("first order", "exact")
    )
    torch.testing.assert_close(first, exact, rtol=1e-6, atol=1e-6)


@pytest.mark.statistical
def test_samples_have_the_distribution_given_the_label():
    product = PAIRS["masks"]
    joint = labelled(product)[..., 0]
    joint = joint / joint.sum()
    rows = 4000
    sampler = dd.samplers.FirstHitting()
    drawn = dd.sample(product, guidance(product), (rows, 2), sampler, steps=2, generator=seeded())
    for a, b in itertools.product(range(2), range(3)):
        count = int(((drawn[:, 0] == a) & (drawn[:, 1] == b)).sum())
        mean = rows * float(joint[a, b])
        assert abs(count - mean) <= 5 * mean**0.5 + 6

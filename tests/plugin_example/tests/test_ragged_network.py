"""Backbone of the plug-in: shapes, receptive field, training, and errors for bad arguments."""

import doctest
import math
from typing import get_type_hints

import ddlib_ragged.network
import pytest
import torch
from ddlib_ragged import Bands, LogOdds, Neighbours, Ragged, Restart
from torch import nn

import ddlib as dd
from ddlib.typing import SplitDenoiser

STATES = 12
WORDS = 8


def build(**sizes) -> Neighbours:
    torch.manual_seed(0)
    network = Neighbours(STATES, WORDS, width=8, **sizes)
    nn.init.normal_(network.head.weight)
    return network


def test_its_docstring_example_runs():
    assert doctest.testmod(ddlib_ragged.network, extraglobs={"torch": torch}) == (0, 2)


def test_the_network_is_a_plain_module_and_starts_at_uniform_probabilities():
    network = Neighbours(num_states=STATES, vocab_size=WORDS)
    assert not isinstance(network, SplitDenoiser)
    logits = network(torch.randint(STATES, (3, 5)), torch.rand(3))
    assert logits.shape == (3, 5, WORDS) and (logits == 0).all()


@pytest.mark.parametrize(("reach", "layers", "span"), [(1, 1, 1), (2, 2, 8), (1, 3, 7), (3, 1, 3)])
def test_a_word_depends_on_its_neighbours_and_on_all_of_them(reach, layers, span):
    network = build(reach=reach, layers=layers).double()
    middle = 12
    assert network.span == span
    z = torch.randint(STATES, (1, 2 * middle + 1))
    t = torch.rand(1)
    logits = network(z, t)
    for position in range(2 * middle + 1):
        changed = z.clone()
        changed[0, position] = (z[0, position] + 1) % STATES
        same = torch.equal(network(changed, t)[0, middle], logits[0, middle])
        assert same == (abs(position - middle) > span), position


def test_axes_in_annotations_of_torchtyping_have_one_size_each():
    network = build()
    t = torch.rand(3)
    hints = get_type_hints(network._log_noise, include_extras=True)
    sizes = {"B": 3, "K": 8}
    for name, value in (("t", t), ("return", network._log_noise(t))):
        (shape,) = hints[name].__metadata__[0]["details"]
        assert [sizes[axis.name] for axis in shape.dims] == list(value.shape)


def test_the_network_depends_on_the_time_and_sequences_do_not_mix():
    network = build()
    z = torch.randint(STATES, (3, 5))
    t = torch.tensor([0.1, 0.5, 0.9])
    logits = network(z, t)
    assert not torch.allclose(network(z, t.flip(0))[0], logits[0], atol=1e-3)
    for i in range(3):
        assert torch.allclose(network(z[i : i + 1], t[i : i + 1])[0], logits[i], atol=1e-5)


def test_it_learns_a_text_and_samples_it():
    process = Ragged(Bands([5, 1, 4, 2, 3, 1], 2, xi=0.9), [2, 7], LogOdds(1.5))
    torch.manual_seed(0)
    network = Neighbours(process.num_states, process.vocab_size)
    x = torch.arange(8).repeat(16, 1)
    optimizer = torch.optim.Adam(network.parameters(), 1e-2)
    losses = []
    for _ in range(60):
        t = dd.sample_times(len(x))
        z = process.sample(x, t)
        loss = dd.training_loss(process, network(z, t), x, z, t, weighting=dd.weightings.Clip(2.0))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.3 * sum(losses[:5])
    with torch.no_grad():
        assert dd.bound(process, network, x).total.mean() < 0.5 * math.log(8), (
            "log 8: uniform probabilities"
        )
    words = dd.sample(process, network, (64, 8), Restart(1.0), steps=16)
    assert (words == x[0]).float().mean() > 0.8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (dict(num_states=7, vocab_size=8), "num_states is 7, must be at least vocab_size, 8"),
        (dict(vocab_size=0), "vocab_size is 0, must be"),
        (dict(width=0), "width is 0, must be"),
        (dict(reach=0), "reach is 0, must be"),
        (dict(layers=-1), "layers is -1, must be"),
    ],
)
def test_bad_sizes_are_refused_by_name(arguments, message):
    with pytest.raises(ValueError, match=message):
        Neighbours(**dict(num_states=STATES, vocab_size=WORDS) | arguments)


@pytest.mark.parametrize(
    ("z", "t", "message"),
    [
        (torch.tensor([[0, 12]]), torch.zeros(1), r"z holds 12, must be states in \[0, 12\)"),
        (torch.tensor([[0, 1]]), torch.zeros(2), r"t has shape \(2,\), must be \(B,\) = \(1,\)"),
    ],
)
def test_bad_inputs_are_refused_by_name(z, t, message):
    with pytest.raises(ValueError, match=message):
        build()(z, t)

"""Checks of values on an accelerator: once for every line that calls ddlib.

There is no device in these tests, see ``pretended_device``.
"""

import pytest
import torch
from zoo.pretended_device import Pretended

import ddlib as dd
from ddlib.utils import validation

VOCAB = 12
NAN = float("nan")
X = torch.arange(8).view(2, 4)
T = torch.tensor([0.3, 0.7])


@pytest.fixture(autouse=True)
def _nothing_was_checked(monkeypatch):
    monkeypatch.setattr(validation, "_checked", {})
    monkeypatch.setattr(validation, "_debug", False)


def process():
    return dd.presets.mdlm(VOCAB)


def network(z, t):
    return torch.zeros(*z.shape, VOCAB)


def broken_network(z, t):
    return torch.full((*z.shape, VOCAB), NAN)


MISTAKES = {
    "times in steps": (lambda p: p.sample(X, 1000 * T), "t holds 300"),
    "padding id": (lambda p: p.sample(X - 100, T), "x holds -100"),
    "logits NaN": (lambda p: dd.sample(p, broken_network, (2, 4), steps=2), "hold NaN"),
    "states of no token": (
        lambda p: dd.training_loss(p, network(X, T), X, (X + 1) % VOCAB, T),
        "has probability 0",
    ),
    "negative index": (lambda p: dd.KeyedGenerator(0, 0, torch.tensor([-1])), "index holds -1"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_wrong_argument_is_refused_when_its_line_first_runs(mistake):
    call, message = MISTAKES[mistake]
    with Pretended(), pytest.raises(ValueError, match=message):
        call(process())


def test_a_loop_waits_in_its_first_turn_alone():
    p = process()
    z = p.sample(X, T)
    waits = []
    for _ in range(3):
        with Pretended() as pretended:
            dd.training_loss(p, network(z, T), X, z, T)
        waits.append(sum(pretended.waits.values()))
    assert waits[0] > 0
    assert waits[1:] == [0, 0]


def test_each_line_is_checked():
    p = process()
    with Pretended():
        p.sample(X, T)
        with pytest.raises(ValueError, match="t holds 300"):
            p.sample(X, 1000 * T)


def test_each_check_of_a_line_is_made():
    p = process()

    def draw(tokens, t):
        return p.sample(tokens, t)

    with Pretended():
        with pytest.raises(ValueError, match="x holds -100"):
            draw(X - 100, T)
        with pytest.raises(ValueError, match="t holds 300"):  # not reached before
            draw(X, 1000 * T)


def test_a_line_that_failed_is_checked_where_it_runs_again():
    p = process()
    for _ in range(3):
        with Pretended(), pytest.raises(ValueError, match="t holds 300"):
            p.sample(X, 1000 * T)


def test_debug_checks_every_turn():
    p = process()
    dd.debug(True)
    for tokens in (X, X, X - 100):
        with Pretended():
            if tokens is X:
                p.sample(tokens, T)
                continue
            with pytest.raises(ValueError, match="x holds -100"):
                p.sample(tokens, T)


def test_nothing_is_checked_while_a_graph_is_recorded(monkeypatch):
    p = process()

    def draw(tokens):
        return p.sample(tokens, T)

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with Pretended() as pretended:
        draw(X)
    assert not pretended.waits
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    with Pretended(), pytest.raises(ValueError, match="x holds -100"):  # the line is not used up
        draw(X - 100)


def test_values_that_are_hidden_or_not_there_are_not_checked():
    p = process()
    with Pretended() as pretended, validation.hide_values():
        p.sample(X, T)
    assert not pretended.waits
    validation.check_times("t", torch.empty(2, device="meta"), 2)


def test_a_first_turn_computes_what_the_others_do():
    p = dd.presets.hdlm_levels([[0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5], [0, 0, 0, 1, 1, 1]])
    z = p.sample(X, T)
    with Pretended():
        first, second = (dd.training_loss(p, network(z, T), X, z, T) for _ in range(2))
    assert torch.equal(first, second)

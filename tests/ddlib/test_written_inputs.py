"""Functions of a user may write into the states that they are given: they get copies."""

import pytest
import torch
from zoo.calls import generate, seeded
from zoo.rewards import ramp

import ddlib as dd
from ddlib.samplers import Ancestral, Particles, Remask

PROCESS = dd.processes.Masked(4, dd.schedules.Linear())
X = torch.randint(4, (16, 6), generator=seeded(1))
Z = torch.where(torch.arange(6) < 3, X[:4], PROCESS.vocab_size)
BIAS = torch.tensor([0.3, -0.4, 1.0, 0.0])


def denoiser(z, t):
    return BIAS + (z[..., None] == torch.arange(4)).double().cumsum(1)


def flat(z, t):
    return denoiser(z, t) / 2


def nothing(k, t, z):
    pass


def writing(function, place):
    """Return the function, which afterwards writes into one of its arguments.

    As one that replaces the mask by that of its own tokenizer.
    """

    def write(*arguments):
        result = function(*arguments)
        states = arguments[place]
        states[states == PROCESS.vocab_size] = 2
        return result

    return write


CALLS = {
    "bound": (denoiser, 0, lambda f: dd.bound(PROCESS, f, X, generator=seeded(0)).total),
    "likelihood": (denoiser, 0, lambda f: dd.likelihood(PROCESS, f, X).log_likelihood),
    "sample": (denoiser, 0, lambda f: generate(PROCESS, f, Remask())),
    "guidance": (
        denoiser,
        0,
        lambda f: dd.guidance.ClassifierFree(PROCESS, f, flat, 2.0)(Z.clone(), torch.ones(4)),
    ),
    "callback": (nothing, 2, lambda f: generate(PROCESS, denoiser, on_step=f)),
    "reward": (ramp, 0, lambda f: generate(PROCESS, denoiser, Particles(Ancestral(), f, 4))),
}


@pytest.mark.parametrize("function, place, call", CALLS.values(), ids=CALLS)
def test_a_function_may_write_into_its_states(function, place, call):
    expected = call(function)
    torch.testing.assert_close(call(writing(function, place)), expected, rtol=0, atol=0)


def test_states_of_a_callback_stay_as_they_were():
    kept = []
    copies = []

    def keep(k, t, z):
        kept.append(z)
        copies.append(z.clone())

    generate(PROCESS, denoiser, on_step=keep)
    assert len(kept) == 8
    for one, other in zip(kept, copies, strict=True):
        assert torch.equal(one, other)

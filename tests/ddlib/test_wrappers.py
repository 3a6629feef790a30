"""Samplers that act through another one: they forward all of a sampler's contract."""

import inspect

import pytest

import ddlib as dd
from ddlib.contrib import Filmed
from ddlib.contrib.fixed_capacity.control import FixedSteps
from ddlib.processes import Masked
from ddlib.samplers import Ancestral, Corrected, Gibbs, InOrder, Sampler
from ddlib.samplers.base import Guarantees, ReversePart
from ddlib.samplers.wrapper import Transparent, Wrapper
from ddlib.schedules import Linear

OF_CHECK = {"requires", "instead"}
"""Members that ``check`` alone reads."""
OF_CLASS = {"examples"}
CONTRACT = {
    name for each in (ReversePart, Sampler) for name in vars(each) if not name.startswith("_")
} - (OF_CHECK | OF_CLASS)
PROCESS = Masked(4, Linear())
NOISY = dd.presets.hdlm_noisy([0, 0, 1, 1], 0.05, xi=0.5)


def subclasses(kind):
    for each in kind.__subclasses__():
        yield each
        yield from subclasses(each)


def never(z, t):
    raise AssertionError("the network is called")


class Answering(Sampler):
    """Sampler whose methods return their names."""

    def step(self, run, state, k):
        return "step"


def answer(name):
    def method(self, *arguments):
        return name

    return property(method) if isinstance(vars(Sampler).get(name), property) else method


for name in CONTRACT - {"guarantees"}:
    setattr(Answering, name, answer(name))
Answering.guarantees = Guarantees(forces_transitions=True, by_times=False, max_model_calls=7)


class Same(Transparent):
    inner = Answering()


class Different(Wrapper):
    inner = Answering()
    guarantees = Guarantees()

    def step(self, run, state, k):
        return state


def asked(sampler, name):
    """Return the value of a property, or the result of a method of any arguments."""
    member = getattr(sampler, name)
    if not callable(member):
        return member
    return member(*[None] * len(inspect.signature(member).parameters))


@pytest.mark.parametrize("name", sorted(CONTRACT))
def test_a_transparent_sampler_forwards_its_whole_contract(name):
    defined = vars(Transparent) | vars(Wrapper)
    assert name in defined
    expected = Answering.guarantees if name == "guarantees" else name
    returned = asked(Same(), name)
    assert returned == (None if name.startswith("check") else expected)


def test_checks_of_the_inner_sampler_are_made():
    class Refusing(Ancestral):
        def check(self, process):
            raise TypeError("the process")

        def check_length(self, length):
            raise ValueError("the length")

    for kind in (Same, Different):
        wrapper = kind()
        wrapper.inner = Refusing()
        with pytest.raises(TypeError, match="the process"):
            wrapper.check(PROCESS)
        with pytest.raises(ValueError, match="the length"):
            wrapper.check_length(3)


@pytest.mark.parametrize("name", sorted(CONTRACT - {"guarantees", "step", "order", "kernel"}))
def test_a_wrapper_forwards_all_that_its_steps_do_not_change(name):
    assert name in vars(Wrapper)
    assert asked(Different(), name) == (None if name.startswith("check") else name)


def test_other_steps_have_neither_an_order_nor_a_kernel():
    assert Different().order == 0
    with pytest.raises(TypeError, match="Different has no method"):
        asked(Different(), "kernel")


def test_every_sampler_that_takes_a_sampler_is_a_wrapper():
    kinds = [each for each in subclasses(Sampler) if each.__module__.startswith("ddlib.")]
    wrappers = {
        each
        for each in kinds
        if not inspect.isabstract(each)
        and Sampler in inspect.get_annotations(each.__init__, eval_str=True).values()
    }
    assert {Filmed, FixedSteps, Corrected, dd.samplers.Particles} <= wrappers
    assert all(issubclass(each, Wrapper) for each in wrappers)


@pytest.mark.parametrize(
    "kind",
    [
        each
        for each in subclasses(Sampler)
        if "force_transition" in inspect.signature(each).parameters
    ],
    ids=lambda each: each.__name__,
)
@pytest.mark.parametrize("forces", [False, True])
def test_a_sampler_declares_that_it_forces_transitions(kind, forces):
    if inspect.isabstract(kind):
        return
    options = dict(kind.examples()[0].arguments())
    sampler = kind(**(options | {"force_transition": forces}))
    assert sampler.guarantees.forces_transitions == forces
    assert Filmed(sampler, 1).guarantees.forces_transitions == forces
    if sampler.guarantees.on_time_grid:
        corrected = Corrected(sampler, Gibbs())
        assert corrected.guarantees.forces_transitions == forces


def test_a_filmed_sampler_refuses_what_the_sampler_refuses():
    for sampler in (Ancestral(True), Filmed(Ancestral(True), 1)):
        with pytest.raises(TypeError, match=r"record is True, and Noisy\(.* has no levels"):
            dd.plan(NOISY, never, (1, 2), sampler, steps=2).record()
    for sampler in (Corrected(Ancestral(), Gibbs()), Filmed(Corrected(Ancestral(), Gibbs()), 1)):
        with pytest.raises(TypeError, match="Gibbs needs at least two states"):
            dd.plan(PROCESS, never, (1, 2), sampler, steps=2)
    with pytest.raises(ValueError, match="as many pixels"):
        Filmed(InOrder(dd.paces.Patches((2, 2), (1, 1))), 1).check_length(5)

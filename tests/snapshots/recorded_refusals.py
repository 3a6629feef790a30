"""Recorded messages of every sampling call that is refused before the network is called."""

import re

import torch

import ddlib as dd
from ddlib.contrib import Automaton, Cache, Constraint, FixedCapacity, Psi, RhoEOS
from ddlib.paces import Blocks, RandomOrder
from ddlib.processes import GIDD, Masked, Product, Uniform
from ddlib.samplers import (
    Ancestral,
    Confidence,
    Corrected,
    Euler,
    FirstHitting,
    Gibbs,
    LeftToRight,
    Particles,
    Remask,
    SelfCorrection,
)
from ddlib.samplers.controls import (
    EndOfText,
    Forbidden,
    Memory,
    RepetitionPenalty,
    Settled,
    Truncation,
    WholeBatch,
)
from ddlib.schedules import Geometric, Linear

V = 6
MASKED = Masked(V, Linear())
TREE = dd.presets.hdlm([0, 0, 1, 1, 2, 3])
XI = dd.presets.hdlm([0, 0, 1, 1, 2, 3], xi=0.5)
UNIFORM = Uniform(V, Linear())
FIELDS = Product({"a": MASKED, "b": UNIFORM}, [0, 1, 1, 0])
ANYTHING = Automaton({0: {token: 0 for token in range(V)}}, 0, [0], V)
PAIR = Automaton({0: {1: 1}, 1: {2: 2}}, 0, [2], V)


def network(z, t):
    raise AssertionError("the network was called")


class Network:
    """Network with attributes that state capabilities; it must not be called."""

    def __init__(self, **attributes):
        vars(self).update(attributes)

    def __call__(self, z, t):
        raise AssertionError("the network was called")

    def __repr__(self):
        return "network"


class Steered(Network):
    has_step_distribution = True

    def step_distribution(self, z, t, s):
        raise AssertionError("the network was called")


TIMED = Network(own_times=True)


def particles(sampler=None):
    return Particles(sampler or Ancestral(), reward, 2)


def reward(z, t):
    return torch.zeros(len(z))


def call(process=MASKED, denoiser=network, shape=(2, 4), sampler=None, **options):
    return dd.sample(process, denoiser, shape, sampler, **options)


def read(process=MASKED, denoiser=network, order=None, x=None, **options):
    x = torch.zeros(2, 4, dtype=torch.int64) if x is None else x
    return dd.likelihood(process, denoiser, x, order, **options)


def ids(*tokens):
    return torch.tensor(tokens)


GRID = torch.tensor([1.0, 0.5, 0.0])
CALLS = {
    "process": lambda: call("mdlm"),
    "process and denoiser": lambda: call(network, MASKED),
    "denoiser": lambda: call(denoiser=3),
    "sampler": lambda: call(sampler=Ancestral),
    "shape": lambda: call(shape=30),
    "shape of three": lambda: call(shape=(1, 2, 3)),
    "rows": lambda: call(shape=(0, 3)),
    "steps": lambda: call(steps=0),
    "steps are no count": lambda: call(steps=1.5),
    "grid rises": lambda: call(steps=torch.tensor([0.0, 1.0])),
    "grid is a list": lambda: call(steps=[1.0, 0.0]),
    "grid ends late": lambda: call(steps=torch.tensor([1.0, 0.25])),
    "grid for a sampler by counts": lambda: call(sampler=FirstHitting(), steps=GRID),
    "temperature": lambda: call(temperature=-1.0),
    "temperature over time": lambda: call(temperature=lambda t: -t),
    "top_p": lambda: call(top_p=0.0),
    "top_k": lambda: call(controls=[Truncation(top_k=0)]),
    "min_p": lambda: call(controls=[Truncation(min_p=1.5)]),
    "forbidden in a product": lambda: call(FIELDS, controls=[Forbidden([1])]),
    "levels in a product": lambda: call(FIELDS, sampler=Confidence()),
    "forbidden number": lambda: call(controls=[Forbidden([V])]),
    "forbidden text": lambda: call(controls=[Forbidden(["the"])]),
    "forbidden all": lambda: call(controls=[Forbidden(range(V))]),
    "forbidden cluster": lambda: call(TREE, controls=[Forbidden([4, 1, 5])]),
    "repetition": lambda: call(controls=[RepetitionPenalty(0.9)]),
    "controls hold a number": lambda: call(controls=[4]),
    "controls are no list": lambda: call(controls=4),
    "end for particles": lambda: call(sampler=particles(), controls=[EndOfText(1)]),
    "end is no token": lambda: call(controls=[EndOfText(V)]),
    "fill is no token": lambda: call(controls=[EndOfText(1, fill=9)]),
    "fill without last": lambda: EndOfText(1, last=False, fill=2),
    "pace": lambda: call(pace=32),
    "pace of times for a sampler": lambda: call(
        denoiser=TIMED, sampler=Euler(), pace=RandomOrder()
    ),
    "pace of times for the network": lambda: call(pace=RandomOrder()),
    "blocks for particles": lambda: call(denoiser=TIMED, sampler=particles(), pace=Blocks(2)),
    "blocks for the network": lambda: call(pace=Blocks(2)),
    "blocks do not fit": lambda: call(denoiser=TIMED, pace=Blocks(3)),
    "blocks for a guidance": lambda: call(denoiser=Steered(own_times=True), pace=Blocks(2)),
    "guidance and its sampler": lambda: call(denoiser=Steered(), sampler=Psi(0.5)),
    "guidance and forced steps": lambda: call(denoiser=Steered(), sampler=Ancestral(True)),
    "guidance and temperature": lambda: call(denoiser=Steered(), temperature=0.5),
    "guidance and forbidden": lambda: call(denoiser=Steered(), controls=[Forbidden([2])]),
    "guidance and min_p": lambda: call(denoiser=Steered(), controls=[Truncation(min_p=0.1)]),
    "guidance and least": lambda: call(denoiser=Steered(), controls=[EndOfText(1, least=2)]),
    "guidance and settled": lambda: call(denoiser=Steered(), controls=[Settled()]),
    "guidance and length": lambda: call(denoiser=Steered(), controls=[RhoEOS(1, 2)]),
    "guidance and constraint": lambda: call(denoiser=Steered(), controls=[Constraint(ANYTHING)]),
    "sampler needs levels": lambda: call(UNIFORM, sampler=FirstHitting()),
    "inner sampler needs levels": lambda: call(UNIFORM, sampler=particles(Remask())),
    "order needs levels": lambda: call(UNIFORM, sampler=Confidence()),
    "corrector needs states": lambda: call(sampler=Corrected(Ancestral(), Gibbs())),
    "corrector needs wrong tokens": lambda: call(sampler=Corrected(Ancestral(), SelfCorrection())),
    "length is no control": lambda: call(controls=[8]),
    "length's token": lambda: call(controls=[RhoEOS(V, 2)]),
    "length's fill": lambda: call(controls=[RhoEOS(1, 2, fill=9)]),
    "length needs a mask": lambda: call(UNIFORM, controls=[RhoEOS(1, 2)]),
    "length needs final tokens": lambda: call(GIDD(V, 0.3), controls=[RhoEOS(1, 2)]),
    "length and particles": lambda: call(sampler=particles(), controls=[RhoEOS(1, 2)]),
    "length's block and times": lambda: call(controls=[RhoEOS(1, 2, block=2)]),
    "length and memory": lambda: call(denoiser=Recalling(), controls=[RhoEOS(1, 2), Memory()]),
    "length and blocks": lambda: call(denoiser=TIMED, controls=[RhoEOS(1, 2)], pace=Blocks(2)),
    "length and a pace": lambda: call(denoiser=TIMED, controls=[RhoEOS(1, 2)], pace=RandomOrder()),
    "length and positions": lambda: call(sampler=FirstHitting(), controls=[RhoEOS(1, 2)]),
    "length and a gap": lambda: call(controls=[RhoEOS(1, 2)], prompt=ids(1, V, 2)),
    "constraint": lambda: call(controls=[Constraint("a*")]),
    "constraint needs masks": lambda: call(UNIFORM, controls=[Constraint(ANYTHING)]),
    "constraint needs clusters": lambda: call(XI, controls=[Constraint(ANYTHING)]),
    "constraint needs masks at 1": lambda: call(
        Masked(V, Geometric()), controls=[Constraint(ANYTHING)]
    ),
    "constraint's tokens": lambda: call(Masked(V + 1, Linear()), controls=[Constraint(ANYTHING)]),
    "constraint and its sampler": lambda: call(sampler=Euler(), controls=[Constraint(ANYTHING)]),
    "constraint and editing": lambda: call(
        sampler=Confidence(edit=0.9), controls=[Constraint(ANYTHING)]
    ),
    "constraint and length": lambda: call(controls=[RhoEOS(1, 2), Constraint(ANYTHING)]),
    "constraint and settled": lambda: call(controls=[Settled(), Constraint(ANYTHING)]),
    "constraint and least": lambda: call(controls=[EndOfText(1, least=2), Constraint(ANYTHING)]),
    "constraint and end": lambda: call(controls=[EndOfText(1), Constraint(PAIR)]),
    "constraint and a start": lambda: call(
        controls=[EndOfText(1), Constraint(ANYTHING.behind(1))], sampler=LeftToRight()
    ),
    "constraint of another length": lambda: call(controls=[Constraint(PAIR)]),
    "constraint and prompt": lambda: call(shape=(2, 2), prompt=ids(3), controls=[Constraint(PAIR)]),
    "constraint and forbidden": lambda: call(
        shape=(2, 2), controls=[Forbidden([1]), Constraint(PAIR)]
    ),
    "memory": lambda: call(controls=[Memory()]),
    "memory and particles": lambda: call(
        denoiser=Recalling(), sampler=particles(), controls=[Memory()]
    ),
    "memory and blocks": lambda: call(denoiser=Recalling(), pace=Blocks(2), controls=[Memory()]),
    "memory and whole batches": lambda: call(
        denoiser=Recalling(), controls=[Memory(), WholeBatch()]
    ),
    "fixed capacity without levels": lambda: call(UNIFORM, controls=[FixedCapacity()]),
    "fixed capacity and a constraint": lambda: call(
        controls=[Constraint(ANYTHING), FixedCapacity()]
    ),
    "cache's name": lambda: call(controls=[Cache("triple")]),
    "cache's refresh": lambda: call(controls=[Cache("dual:refresh=0")]),
    "cache's type": lambda: call(controls=[Cache(3)]),
    "cache without blocks": lambda: call(denoiser=TIMED, controls=[Cache("dual")]),
    "cache and another pace": lambda: call(
        denoiser=TIMED, controls=[Cache("prefix")], pace=RandomOrder()
    ),
    "cache and the network": lambda: call(denoiser=TIMED, controls=[Cache("dual")], pace=Blocks(2)),
    "seeds": lambda: call(generator=1),
    "too few seeds": lambda: call(generator=[1]),
    "negative seed": lambda: call(generator=[1, -1]),
    "large seed": lambda: call(generator=[1, 2**63]),
    "seeds and shifted rows": lambda: call(denoiser=Network(shifts_rows=True), generator=[1, 2]),
    "prompt is a list": lambda: call(prompt=[1, 2]),
    "prompt's axes": lambda: call(prompt=torch.tensor(1)),
    "prompt's dtype": lambda: call(prompt=ids(1, 2).float()),
    "prompt's rows": lambda: call(shape=(3, 4), prompt=torch.ones(2, 1).long()),
    "prompt is too long": lambda: call(prompt=ids(1, 2, 3, 4, 5)),
    "prompt is no state": lambda: call(prompt=ids(1, 9)),
    "prompt holds a cluster": lambda: call(TREE, prompt=ids(1, V)),
    "device": lambda: call(prompt=torch.zeros(2, dtype=torch.int64, device="meta")),
    "likelihood: sampler": lambda: read(order=Ancestral()),
    "likelihood: random order": lambda: read(order=Confidence(temperature=1.0)),
    "likelihood: editing": lambda: read(order=Confidence(edit=0.5)),
    "likelihood: levels": lambda: read(UNIFORM),
    "likelihood: clusters": lambda: read(XI),
    "likelihood: masks at 1": lambda: read(Masked(V, Geometric())),
    "likelihood: steps and group": lambda: read(steps=2, group=2),
    "likelihood: group": lambda: read(group=9),
    "likelihood: times": lambda: read(
        order=Confidence(per_step="expected"), given=torch.tensor([[True] * 4, [False] * 4])
    ),
    "likelihood: pace": lambda: read(denoiser=TIMED, pace=RandomOrder()),
    "likelihood: network": lambda: read(pace=Blocks(2)),
    "likelihood: cache without blocks": lambda: read(controls=[Cache("dual")]),
    "likelihood: cache": lambda: read(denoiser=TIMED, controls=[Cache("dual")], pace=Blocks(2)),
    "forbidden noise": lambda: call(Masked(V, Geometric(0.2, 3.0)), controls=[Forbidden([1])]),
    "record by rates": lambda: call(UNIFORM, sampler=Euler(), record=True),
    "record with a constraint": lambda: call(controls=[Constraint(ANYTHING)], record=True),
    "record forced transitions": lambda: call(UNIFORM, sampler=Ancestral(True), record=True),
    "record to noise": lambda: call(Masked(V, Geometric(0.2, 30.0)), record=True),
}
"""Calls by what is wrong with them."""


class Recalling(Network):
    takes_memory = True
    own_times = True

    def features(self, z, t, memory=None):
        raise AssertionError("the network was called")

    def output_weights(self):
        return torch.zeros(V, 3), None


def refusals():
    return {name: refusal(make) for name, make in CALLS.items()}


def refusal(make):
    try:
        make()
    except (TypeError, ValueError) as error:
        return f"{type(error).__name__}: {re.sub(r' at 0x[0-9a-f]+', '', str(error))}"
    raise AssertionError("the call is not refused")


SUBJECTS = {"refusals": refusals}

"""Rows of a sampler's state: picked with what it remembers of them, or refused."""

from typing import NamedTuple

import torch
from refusals import refuses
from zoo.calls import seeded
from zoo.networks import Halves
from zoo.processes import F64, LEVELS
from zoo.rewards import ramp

from ddlib.processes import Masked, identity
from ddlib.samplers import Ancestral, FirstHitting, Particles, Sampler, SamplingContext, State
from ddlib.samplers.particles import Cloud
from ddlib.samplers.runtime.model import Model
from ddlib.schedules import Linear
from ddlib.verification.claims.samplers.sampler import CLAIMS, runs


class Pair(NamedTuple):
    one: torch.Tensor
    other: object


class Remembers(Sampler):
    def __init__(self, memo):
        self.memo = memo

    def step(self, run, state, k):
        return state


def test_a_memo_is_picked_row_by_row():
    state = State(torch.arange(6).view(3, 2), torch.tensor([0.1, 0.2, 0.3]), None)
    rows = torch.tensor([2, 0, 2, 1])
    column = torch.tensor([5, 6, 7])
    memo = Pair(column, (column[:, None], 3, None, [column, "x"]))
    picked = Remembers(memo).select_rows(state._replace(memo=memo), rows)
    assert torch.equal(picked.z, state.z[rows]) and torch.equal(picked.t, state.t[rows])
    assert isinstance(picked.memo, Pair) and picked.memo.one.tolist() == [7, 5, 7, 6]
    inner, number, nothing, listed = picked.memo.other
    assert (
        inner.tolist() == [[7], [5], [7], [6]]
        and (number, nothing) == (3, None)
        and listed[1] == "x"
    )
    assert listed[0].tolist() == [7, 5, 7, 6]


def picked(memo):
    return Remembers(memo).select_rows(
        State(torch.zeros(3, 2).long(), torch.zeros(3), memo), torch.tensor([0])
    )


test_a_memo_without_rows_is_refused = refuses(r"""
    picked(torch.zeros(4))
        | TypeError
            | memo holds a tensor of shape \(4,\), must be .* of the 3 rows, .*override select_rows
    picked(torch.tensor(1.0)) | TypeError | memo holds a tensor of shape \(\)
    picked((torch.zeros(3), {"a": 1})) | TypeError | memo holds \{'a': 1\}, must be
""")


def test_verify_leaves_out_samplers_whose_memo_has_no_rows():
    class Keeps(Ancestral):
        def step(self, run, state, k):
            return super().step(run, state, k)._replace(memo={"k": k})

    (claim,) = (claim for claim in CLAIMS if claim.name == "rows picked")
    (case,) = runs(Keeps(), Masked(4, Linear()))
    check = claim.check(case, full=False)
    assert check.ok is None and "override select_rows" in check.note
    assert claim.check(case._replace(subject=Ancestral()), full=False).ok


def test_particles_are_picked_with_their_rows():
    process = LEVELS["levels"]
    sampler = Particles(FirstHitting(), ramp, 3, 1.0)
    run = SamplingContext(
        process,
        Model(process, Halves(process)),
        identity,
        torch.linspace(1, 0, 8, dtype=F64),
        torch.ones(2, 5, dtype=torch.bool),
        seeded(),
    )
    state = sampler.step(run, sampler.init(run), 0)
    picked = sampler.select_rows(state, torch.tensor([1, 1]))
    assert torch.equal(picked.z, state.z[[1, 1]]) and isinstance(picked.memo, Cloud)
    assert torch.equal(picked.memo.state.z, state.memo.state.z[[3, 4, 5, 3, 4, 5]])
    assert torch.equal(picked.memo.weight, state.memo.weight[[1, 1]])

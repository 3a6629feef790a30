"""Guidances at a pace: each position is steered by its own time."""

import pytest
import torch
from zoo.calls import seeded
from zoo.guidances import FOUR
from zoo.networks import with_own_times
from zoo.processes import F64

import ddlib as dd
from ddlib.guidance import ClassifierBased, ClassifierFree
from ddlib.guidance.small_networks import Lookup, Scale
from ddlib.paces import Blocks, Ramp
from ddlib.parameterization.capabilities import Capabilities
from ddlib.utils.validation import UsageWarning


def own_parts(process):
    return [with_own_times(Lookup(process, seed)) for seed in (1, 2)]


def guidances():
    for name in ("masked", "tree", "levels", "xi", "gidd"):
        process = FOUR[name]
        options = {
            "on": "states" if name in ("tree", "levels") else "tokens",
            "interval": (0.25, 0.75),
        }
        parts = own_parts(process)
        label = with_own_times(Scale(process, 3))
        yield pytest.param(
            ClassifierFree(process, *parts, lambda t: 1 + t, **options), id=f"free-{name}"
        )
        for how in ("exact", "first order"):
            based = ClassifierBased(process, parts[0], label, lambda t: 1 + t, how, **options)
            yield pytest.param(based, id=f"{how}-{name}")


@pytest.mark.parametrize("guidance", [*guidances()])
def test_a_position_is_steered_by_its_own_time(guidance):
    """Parts that do not depend on the time: the result at a position is that of its time in a
    sequence of one.
    """
    process = guidance.process
    t = torch.tensor([[0.2, 0.7, 0.5], [0.9, 0.4, 0.6]], dtype=F64)
    x = torch.tensor([[0, 1, 2], [3, 0, 1]])
    z = process.sample(x, t, seeded())
    whole = guidance(z, t)
    for position in range(3):
        torch.testing.assert_close(whole[:, position], guidance(z, t[:, position])[:, position])


@pytest.mark.parametrize("pace", [Blocks(2), Ramp(1.0)], ids=str)
@pytest.mark.parametrize("name", ["masked", "tree"])
def test_guided_texts_are_drawn_and_bounded_at_a_pace(name, pace):
    process = FOUR[name]
    guided = ClassifierFree(
        process, *own_parts(process), 2.0, "tokens" if name == "masked" else "states"
    )
    options = {"parameterization": guided.parameterization, "pace": pace}
    tokens = dd.sample(process, guided, (3, 4), steps=4, generator=seeded(), **options)
    assert tokens.shape == (3, 4) and int(tokens.max()) < 4
    bound = dd.bound(process, guided, tokens, seeded(), **options)
    assert bool(bound.total.isfinite().all())


@pytest.mark.parametrize("lacks", ["conditional", "unconditional"])
def test_the_part_that_takes_one_time_is_named(lacks):
    process = FOUR["masked"]
    parts = {name: with_own_times(Lookup(process, 2)) for name in ClassifierFree.parts}
    guided = ClassifierFree(process, **parts | {lacks: Lookup(process, 1)}, strength=2.0)
    with pytest.raises(
        TypeError, match=f"the {lacks} of ClassifierFree, Lookup, takes one time per sequence"
    ):
        dd.sample(process, guided, (3, 4), steps=4, pace=Blocks(2))
    alone = guided.replace(
        strength=1.0 if lacks == "unconditional" else 0.0
    )  # the other part is not called
    assert dd.sample(process, alone, (3, 4), steps=4, pace=Blocks(2)).shape == (3, 4)


def test_a_guidance_has_no_blocks():
    process = FOUR["gidd"]
    guided = ClassifierFree(process, *own_parts(process), 2.0)
    with pytest.raises(
        TypeError, match=r"the denoiser ClassifierFree has block_size None, must be 2"
    ):
        dd.bound(
            process, guided, torch.zeros(2, 4, dtype=torch.int64), pace=Blocks(2), at_once=True
        )


class Behind:
    """A network whose rows begin at different columns, trained with blocks of two."""

    own_times = True
    shifts_rows = True
    block_size = 2

    def __call__(self, z, t):
        return torch.zeros(*z.shape, 4)


def nested(depth):
    network = Behind()
    for _ in range(depth):
        network = ClassifierFree(FOUR["masked"], network, network, 2.0)
    return network


@pytest.mark.parametrize("depth", range(4))
def test_a_property_of_a_part_is_one_of_every_guidance_around_it(depth):
    assert Capabilities.of(nested(depth)).shifts_rows
    with pytest.raises(TypeError, match=r"the rows of .* begin at different columns"):
        dd.plan(FOUR["masked"], nested(depth), (2, 2), steps=2, generator=[1, 2])
    with pytest.warns(UsageWarning, match="denoiser Behind has blocks of 2"):
        dd.sample(FOUR["masked"], nested(depth), (1, 4), steps=2)

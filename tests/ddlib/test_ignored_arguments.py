"""An argument that would be ignored is refused by name; one that is taken has an effect."""

import pytest
import torch
from refusals import refuses
from zoo.processes import presets

import ddlib as dd

PROCESS = dd.presets.mdlm(8)
S = dd.samplers
TABLE = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
GRID = torch.linspace(1, 0, 9, dtype=torch.float64) ** 6
pytestmark = pytest.mark.usefixtures("as_users_call")


def net(z, t):
    return 0.3 * TABLE[z] + 0.1 * TABLE[z].sum(1, keepdim=True)


def draw(sampler=None, process=PROCESS, rows=24, **options):
    return dd.sample(
        process, net, (rows, 6), sampler, generator=torch.Generator().manual_seed(1), **options
    )


test_an_argument_that_would_be_ignored_is_refused = refuses(r"""
    dd.Measure.ratio(torch.ones(3), torch.ones(3), "nats", batch=torch.zeros(3).long())
        | ValueError | batch is given
    dd.paces.Together().draw(4, 3, steps=10, weigh=False) | ValueError
        | weigh is False and steps is 10
""")


def test_a_grid_is_taken_where_it_matters():
    assert torch.equal(draw(steps=GRID), draw(steps=GRID))
    expected = S.Confidence(per_step="expected")
    assert not torch.equal(draw(expected, steps=GRID), draw(expected, steps=8))
    cold = draw(S.FirstHitting(), steps=GRID, temperature=lambda t: 0.0 if t < 0.5 else 1.0)
    assert not torch.equal(
        cold, draw(S.FirstHitting(), steps=8, temperature=lambda t: 0.0 if t < 0.5 else 1.0)
    )
    assert draw(rows=1).shape == (1, 6)  # 128 steps by default


EIGHT = [0, 0, 1, 1, 2, 2, 3, 3]
SAMPLERS = {
    f"{name}-{i}": sampler
    for name in dd.registry.built_in("samplers")
    for i, sampler in enumerate(dd.registry.get("samplers", name).examples())
}
PROCESSES = presets(EIGHT) | {"noisy": dd.presets.hdlm_noisy(EIGHT, 0.2)}
KNOBS = {
    "temperature": dict(temperature=0.0),
    "top_p": dict(top_p=0.01),
    "top_k": dict(controls=[dd.controls.Truncation(top_k=1)]),
    "min_p": dict(controls=[dd.controls.Truncation(min_p=1.0)]),
    "repetition_penalty": dict(controls=[dd.controls.RepetitionPenalty(50.0)]),
    "forbidden": dict(controls=[dd.controls.Forbidden([0, 2, 4])]),
    "grid": dict(steps=GRID),
}


@pytest.mark.parametrize("process", list(PROCESSES))
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_every_sampler_takes_every_knob_or_refuses_it(sampler, process):
    """Another draw from the same noise, or an error that names the argument."""
    sampler = SAMPLERS[sampler]
    process = PROCESSES[process]
    prompt = torch.tensor([1, 3])  # tokens stand, which a penalty of repetition needs
    try:
        usual = draw(sampler, process, steps=8, prompt=prompt)
    except TypeError:
        return  # not for this process, by name
    for name, knob in KNOBS.items():
        try:
            drawn = draw(sampler, process, prompt=prompt, **({"steps": 8} | knob))
        except (TypeError, ValueError) as error:
            assert (name if name != "grid" else "steps") in str(error), name
        else:
            assert not torch.equal(drawn, usual), f"{name} is ignored by {sampler!r}"

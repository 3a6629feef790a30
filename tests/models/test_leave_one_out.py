"""``leave_one_out_probe``: 0 for the distribution that a network returns, enumerated for two
tokens.
"""

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import build

import ddlib as dd
from ddlib.contrib import leave_one_out_probe
from ddlib.parameterization.logits import posterior_logits
from ddlib.processes import Masked, Product, Uniform
from ddlib.schedules import Cosine, Linear
from ddlib.testing.oracle import exact_cavity, exact_posterior

V = 4
PROCESSES = {
    "uniform": dd.processes.Uniform(V, dd.schedules.Cosine()),
    "gidd": dd.presets.gidd(V, 0.3),
    "noisy": dd.presets.hdlm_noisy([0, 0, 1, 1], 0.4),
}


BEST = {"cavity": exact_cavity, "posterior": exact_posterior}


@pytest.mark.parametrize("kind", PROCESSES)
@settings(max_examples=examples(40), deadline=None)
@given(st.integers(0, 2**31), st.one_of(st.floats(0.05, 0.95), st.sampled_from([1e-3, 1 - 1e-3])))
def test_the_probe_separates_cavity_from_posterior(kind, seed, time):
    generator = torch.Generator().manual_seed(seed)
    process = PROCESSES[kind]
    joint = torch.rand(V, V, generator=generator, dtype=torch.float64) + 0.1
    joint = joint / joint.sum()
    x = torch.randint(V, (16, 2), generator=generator)
    t = torch.full((16,), time, dtype=torch.float64)
    for meaning in ("cavity", "posterior"):
        found = leave_one_out_probe(
            process, BEST[meaning](process, joint), x, t, generator=generator
        )
        other = {"cavity": "posterior", "posterior": "cavity"}[meaning]
        assert float(getattr(found, meaning).max()) < 1e-6 and found.cavity.shape == (16, 4)
        if 0.05 <= time <= 0.95:
            assert float(getattr(found, other).mean()) > 1e-3 and found.parameterization == meaning
    assert "read as posterior it moves by 0.0000" in repr(found)


def test_networks_that_look_and_that_do_not():
    """For a toy that excludes its own token from its sum nothing moves, for a DiT it does."""
    process = dd.processes.Uniform(11, dd.schedules.Linear())
    x = torch.randint(11, (8, 5))
    t = torch.full((8,), 0.5)
    table = torch.randn(11, 11, generator=torch.Generator().manual_seed(0))
    blind = leave_one_out_probe(
        process, lambda z, t: table[z].sum(1, keepdim=True) - table[z], x, t
    )
    assert float(blind.cavity.max()) < 1e-5 and blind.parameterization == "cavity"
    assert float(blind.posterior.mean()) > 0.01
    looking = build(num_states=11)
    for parameter in looking.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    assert float(leave_one_out_probe(process, looking, x, t).cavity.mean()) > 0.01


def test_the_probe_refuses_masks_and_times_per_position():
    x = torch.zeros(2, 3, dtype=torch.int64)
    t = torch.full((2,), 0.5)
    with pytest.raises(
        ValueError, match=r"process has 1 states that every token can reach, must have at least"
    ):
        leave_one_out_probe(dd.presets.mdlm(V), lambda z, t: torch.zeros(*z.shape, V), x, t)
    with pytest.raises(
        ValueError, match=r"t has shape .2, 3., must be .B,., one time per sequence"
    ):
        leave_one_out_probe(
            PROCESSES["uniform"], lambda z, t: torch.zeros(*z.shape, V), x, t[:, None].expand(2, 3)
        )


PRODUCTS = {
    "two alphabets": Product({"a": Uniform(2, Linear()), "b": Uniform(3, Cosine())}, ["a", "b"]),
    "beside a mask": Product({"a": Masked(2, Linear()), "b": Uniform(3, Linear())}, ["a", "b"]),
    "fields of each row": Product(
        {"a": Uniform(2, Linear()), "b": Uniform(3, Linear())},
        torch.tensor([[0, 1], [1, 0]]).repeat(20, 1),
    ),
}


@pytest.mark.parametrize("product", PRODUCTS.values(), ids=PRODUCTS)
@pytest.mark.parametrize("form", ["cavity", "posterior"])
def test_a_product_is_probed_at_states_of_each_positions_field(product, form):
    rows = 40
    generator = torch.Generator().manual_seed(0)
    field = product.fields_of((rows, 2))
    sizes = torch.tensor([each.process.vocab_size for each in product.components])[field]
    x = (torch.rand(rows, 2, generator=generator) * sizes).long()
    scores = torch.randn(product.num_states, 3, generator=generator, dtype=torch.float64)
    shown = []

    def network(z, t):
        """The cavity depends on the other position alone."""
        product.check_inputs(z=z, t=t.double())
        shown.append(z)
        cavity = scores[z.flip(1)]
        return cavity if form == "cavity" else posterior_logits(product, cavity, z, t.double())

    t = torch.full((rows,), 0.5)
    found = leave_one_out_probe(product, network, x, t, positions=6, generator=generator)
    assert found.parameterization == form
    assert float(getattr(found, form).abs().max()) < 1e-6
    assert all(int((z != shown[0]).sum()) == rows for z in shown[1:])


def test_masks_alone_in_a_product_are_refused():
    masks = Product({"a": Masked(2, Linear()), "b": Masked(3, Linear())}, ["a", "b"])
    x = torch.zeros(2, 2, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"has 1 states .* must have at least two"):
        leave_one_out_probe(masks, lambda z, t: torch.zeros(2, 2, 3), x, torch.full((2,), 0.5))

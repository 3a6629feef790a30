"""DiT that takes the features of its previous call: equal to the network without at first, and
where there is none.
"""

import pytest
import torch
from refusals import refuses
from tiny import STATES, WORDS, build, inputs, trained

import ddlib as dd
from ddlib.parameterization.capabilities import Capabilities
from ddlib.typing import TakesMemory
from ddlib_models import DiT

SIZES = dict(num_states=STATES, vocab_size=WORDS, dim=16, depth=2, heads=2, cond_dim=8)


def features(model, *given, **options):
    with torch.no_grad():
        return model.features(*(given or inputs()), **options)


def test_a_fresh_model_is_the_network_without_memory_to_the_bit():
    plain = build()
    model = build(memory=True)
    rest = model.state_dict()
    added = {name for name in rest if name.startswith("memory.")}
    assert (
        added == {"memory.norm.weight", "memory.weight"}
        and rest.keys() - added == plain.state_dict().keys()
    )
    assert all(torch.equal(rest[name], value) for name, value in plain.state_dict().items())
    plain = trained()
    model = trained(memory=True)
    model.load_state_dict(plain.state_dict(), strict=False)
    torch.nn.init.zeros_(model.memory.weight)
    one = features(plain)
    other = features(model, memory=torch.randn(3, 5, 16))
    assert torch.equal(one, other) and torch.equal(one, features(model))


def test_building_it_draws_no_random_number():
    build()
    without = torch.get_rng_state()
    build(memory=True)
    assert torch.equal(torch.get_rng_state(), without)


def test_zeros_are_no_previous_call():
    model = trained(memory=True)
    before = features(model)
    assert torch.equal(features(model, memory=torch.zeros(3, 5, 16)), before)
    some = torch.tensor([True, False, True])[:, None, None]
    mixed = features(model, memory=torch.where(some, before, 0.0))
    assert torch.allclose(mixed[1], before[1], atol=1e-6)
    assert (mixed - before).abs().amax((1, 2))[[0, 2]].min() > 1e-2


def test_the_scale_of_the_features_does_not_matter():
    model = trained(memory=True).double()
    z, t = inputs()
    before = features(model, z, t.double())
    both = [features(model, z, t.double(), memory=scale * before) for scale in (1.0, 1e3)]
    assert torch.allclose(*both, atol=1e-4)


def test_a_packed_row_takes_the_features_of_its_sequences():
    model = trained(memory=True).double()
    lengths = [2, 3, 1]
    z, t = inputs(3, 3)
    parts = [(z[i : i + 1, :n], t[i : i + 1].double()) for i, n in enumerate(lengths)]
    alone = []
    for part in parts:
        alone.append(features(model, *part, memory=features(model, *part)))
    row = torch.cat([part for part, _ in parts], 1)
    starts = torch.tensor([0, 2, 5, 6])
    times = torch.cat([time for _, time in parts])
    first = features(model, row, times, starts)
    assert torch.allclose(
        features(model, row, times, starts, memory=first), torch.cat(alone, 1), atol=1e-10
    )


def test_all_heads_read_the_same_features():
    model = trained(memory=True, num_clusters=3)
    before = features(model)
    with torch.no_grad():
        both, clusters = model.features_with_clusters(*inputs(), memory=before)
        logits = model(*inputs(), memory=before)
        assert not torch.equal(clusters, model.features_with_clusters(*inputs())[1])
    torch.testing.assert_close(model.head(both), logits)


def test_its_weight_gets_a_gradient_from_the_first_step_on():
    model = build(memory=True)
    model.start_at(torch.full((WORDS,), -1.0), torch.randn(STATES, 16))
    torch.nn.init.normal_(model.head.weight)
    model(*inputs(), memory=features(model)).square().sum().backward()
    assert model.memory.weight.grad.abs().max() > 0


@pytest.mark.parametrize("memory", [False, True])
def test_the_capability_is_an_attribute(memory):
    model = trained(memory=memory, num_classes=3)
    assert isinstance(model, TakesMemory) and Capabilities.of(model).takes_memory is memory
    assert Capabilities.of(model.with_label(1)).takes_memory is memory
    assert not Capabilities.of(lambda z, t: model(z, t)).takes_memory


def test_labels_beside_memory():
    model = trained(memory=True, num_classes=3).eval()
    before = features(model.with_label(1))
    assert torch.equal(
        features(model.with_label(1), memory=before), features(model, label=1, memory=before)
    )


@pytest.mark.parametrize(
    "tree", [None, [[0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3]]], ids=["tokens", "children"]
)
def test_bound_and_likelihood_are_those_without_memory(tree):
    process = dd.presets.mdlm(WORDS)
    x = torch.randint(WORDS, (4, 5), generator=torch.Generator().manual_seed(3))
    model = trained(num_states=WORDS + 1, memory=True, tree=tree).eval()

    def measured():
        meaning = "cavity" if tree is None else dd.Children.of(model)
        with torch.no_grad():
            bound = dd.bound(
                process, model, x, torch.Generator().manual_seed(0), parameterization=meaning
            )
            exact = dd.likelihood(
                process, model, x, dd.samplers.LeftToRight(), parameterization=meaning
            )
        return float(bound.per_token.value), exact

    bound, exact = measured()
    model.memory.weight.data.normal_()
    again, still = measured()
    assert bound == again and torch.equal(exact.log_likelihood, still.log_likelihood)
    options = dict(
        steps=4,
        parameterization="cavity" if tree is None else dd.Children.of(model),
        generator=range(8),
    )
    without, with_memory = (
        dd.sample(
            process,
            model,
            (8, 5),
            controls=[*([dd.controls.Memory()] if memory else [])],
            **options,
        )
        for memory in (False, True)
    )
    assert not torch.equal(without, with_memory)


def test_saved_and_loaded(tmp_path):
    model = trained(memory=True)
    model.save_pretrained(tmp_path / "with")
    loaded = DiT.from_pretrained(tmp_path / "with")
    before = features(model.eval())
    assert loaded.takes_memory and torch.equal(
        features(loaded, memory=before), features(model, memory=before)
    )
    trained().save_pretrained(tmp_path / "without")
    assert "memory" not in (tmp_path / "without" / "config.json").read_text()


def called(given_memory, **options):
    model = trained(**dict(memory=True) | options)
    given = {"clean": inputs()[0] % WORDS} if "block_size" in options else {}
    return model(*inputs(), memory=given_memory, **given)


test_memory_that_does_not_fit_is_refused = refuses(r"""
    called(torch.zeros(3, 5, 16), memory=False) | ValueError
        | memory: must be None with memory=False; build the
    called(torch.zeros(3, 5, 8)) | ValueError
        | memory has shape \(3, 5, 8\): expected \(B, L, D\) = \(3, 5, 16\)
    called(torch.zeros(2, 5, 16)) | ValueError | memory has shape \(2, 5, 16\)
    called(torch.zeros(3, 5, 16), block_size=2) | ValueError | memory: not with clean or cache
""")

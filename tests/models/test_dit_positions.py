"""DiT with positions along a sequence, by row and column, or learned: symmetries, prefixes, packs,
files, refusals.
"""

import json

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from tiny import STATES, WORDS, build, inputs, trained

import ddlib as dd
from ddlib_models import DiT
from ddlib_models.dit.layers import cos_sin, rotary_angles, rotate
from ddlib_models.dit.positions import Learned, Rotary, Rotary2D
from ddlib_models.hf.auto import DiTModel

SHAPE = (3, 4)
KINDS = [dict(positions="rope2d", shape=SHAPE), dict(positions="learned", shape=SHAPE)]
close = dict(atol=1e-5, rtol=1e-5)


def picture(batch=2, shape=SHAPE):
    z, t = inputs(batch, shape[0] * shape[1])
    return z, t


def scores(positions, q, k):
    """Inner products of queries and keys of all pairs of positions."""
    rotation = cos_sin(positions.angles(torch.arange(q.shape[1])))
    return torch.einsum("bihk,bjhk->bhij", rotate(q, rotation), rotate(k, rotation))


@given(st.integers(0, 60), st.integers(1, 9), st.sampled_from([2, 4, 8]))
def test_along_the_sequence_they_are_those_of_rope(first, length, width):
    index = torch.arange(first, first + length)
    assert torch.equal(
        Rotary(width).angles(index), rotary_angles(length, width, index.device, first=first)
    )


@settings(max_examples=examples(40))
@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from([4, 8, 12]), st.integers(0, 99))
def test_scores_depend_on_differences_of_rows_and_of_columns(height, width, head_dim, seed):
    """The same query and key give the same score wherever their rows and their columns differ by as
    much.
    """
    draw = torch.Generator().manual_seed(seed)
    q, k = (
        torch.randn(1, 1, 1, head_dim, generator=draw).expand(-1, height * width, -1, -1)
        for _ in range(2)
    )
    found = scores(Rotary2D(head_dim, (height, width)), q, k)[0, 0].view(
        height, width, height, width
    )
    for down in range(height):
        for right in range(width):
            moved = found[down:, right:, down:, right:]
            torch.testing.assert_close(
                moved, found[: height - down, : width - right, : height - down, : width - right]
            )
    if height > 1 and width > 1:
        assert (found[0, 0, 1, 0] - found[0, 0, 0, 1]).abs() > 1e-6, "a row is not a column"
        assert (found[0, 0, 1, 0] - found[1, 0, 0, 0]).abs() > 1e-6, "nor is up down"


def test_half_of_the_planes_turn_by_rows_and_half_by_columns():
    """Angle of position p: the row p // W or the column p % W, times 100^(-4 k / K)."""
    angles = Rotary2D(8, (3, 5)).angles(torch.arange(15))
    for p in range(15):
        row, column = divmod(p, 5)
        expected = torch.tensor([row, row * 0.1, column, column * 0.1], dtype=torch.float32)
        torch.testing.assert_close(angles[p], expected)


def test_a_picture_is_not_a_sequence():
    z, t = picture()
    shapes = {}, KINDS[0], dict(positions="rope2d", shape=(1, 12))
    flat, square, wide = (trained(**options)(z, t) for options in shapes)
    assert (flat - square).abs().max() > 1e-4 and (wide - square).abs().max() > 1e-4


def test_a_network_with_rows_and_columns_commutes_with_transposition_of_their_planes():
    """Exchange of rows and columns, with the planes of queries and keys exchanged too, permutes the
    logits.
    """
    model = trained(positions="rope2d", shape=(3, 4), dim=16, heads=2).double()
    other = trained(positions="rope2d", shape=(4, 3), dim=16, heads=2).double()
    other.load_state_dict(model.state_dict())
    exchanged = (
        torch.arange(8).view(2, 2, 2).flip(1).flatten()
    )  # halves of a plane, axes, frequencies
    with torch.no_grad():
        for block in other.blocks:
            weight = block.attention.qkv.weight.view(3, 2, 8, 16)
            weight[:2] = weight[:2][:, :, exchanged].clone()
    z, t = picture()
    turned = z.view(-1, 3, 4).mT.flatten(1)
    expected = model(z, t.double()).view(-1, 3, 4, WORDS).transpose(1, 2).flatten(1, 2)
    torch.testing.assert_close(other(turned, t.double()), expected, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("shape", [SHAPE, (12,)])
def test_without_learned_vectors_there_are_no_positions(shape):
    model, (z, t), order = trained(positions="learned", shape=shape), picture(), torch.randperm(12)
    assert (model(z, t)[:, order] - model(z[:, order], t)).abs().max() > 1e-3
    torch.nn.init.zeros_(model.positions.weight)
    torch.testing.assert_close(model(z, t)[:, order], model(z[:, order], t), **close)


def test_learned_vectors_are_added_to_the_embedding():
    model = trained(positions="learned", shape=SHAPE)
    (z, t) = picture()
    table = model.positions.weight
    assert isinstance(model.positions, Learned) and table.shape == (12, 16)
    assert 0.01 < build(positions="learned", shape=(30, 30)).positions.weight.std() < 0.03
    expected = model(z, t)
    kept = table.detach().clone()
    torch.nn.init.zeros_(table)
    assert (model(z, t) - expected).abs().max() > 1e-3
    model.embedding.register_forward_hook(lambda layer, given, x: x + kept)
    torch.testing.assert_close(model(z, t), expected, **close)


@pytest.mark.parametrize("options", KINDS)
def test_a_fresh_network_is_uniform_and_all_of_it_learns(options):
    model = build(**options)
    (z, t) = picture()
    assert (model(z, t) == 0).all()
    model = trained(**options)
    model(torch.arange(12)[None], t[:1]).square().sum().backward()
    model(torch.arange(STATES - 12, STATES)[None], t[:1]).square().sum().backward()
    assert all((parameter.grad != 0).any() for parameter in model.parameters())


@pytest.mark.parametrize("options", [*KINDS, dict(positions="learned", shape=(20,))])
def test_every_sequence_of_a_pack_begins_anew(options):
    model = trained(**options)
    (z, t) = picture()
    together = model(z.view(1, -1), t, torch.tensor([0, 12, 24]))
    torch.testing.assert_close(together.view(2, 12, -1), model(z, t), **close)
    if options["shape"] == (20,):
        apart = torch.cat([model(z[:1, :5], t[:1]), model(z[:1, 5:], t[1:])], 1)
        torch.testing.assert_close(model(z[:1], t, torch.tensor([0, 5, 12])), apart, **close)


@pytest.mark.parametrize("options", KINDS)
def test_prefixes_caches_and_clean_blocks_agree(options):
    model = trained(block_size=3, **options).double()
    (z, _) = picture()
    x = z % WORDS
    t = torch.rand(2, 12, dtype=torch.float64)
    whole = torch.cat([x[:, :6], z[:, 6:]], 1), torch.cat([0 * t[:, :6], t[:, 6:]], 1)
    expected = model(*whole)
    cache = model.prefill(x[:, 3:6], model.prefill(x[:, :3]))
    torch.testing.assert_close(model.extend(z[:, 6:9], t[:, 6:9], cache), expected[:, 6:9])
    torch.testing.assert_close(model.extend(z[:, 6:], t[:, 6:], cache), expected[:, 6:])
    torch.testing.assert_close(model(whole[0][:, :9], whole[1][:, :9]), expected[:, :9])
    torch.testing.assert_close(
        model(z, t, clean=x)[:, 6:9], model(z[:, :9], t[:, :9], clean=x[:, :9])[:, 6:9]
    )
    torch.testing.assert_close(model(z, t, clean=x)[:, 6:9], expected[:, 6:9])
    where = torch.tensor([[11, 7], [6, 6]])
    features = model.features_at(z[:, 6:], t[:, 6:], where - 6, cache=cache)
    torch.testing.assert_close(features, model.features(*whole).take_along_dim(where[..., None], 1))


@pytest.mark.parametrize("options", KINDS)
def test_pictures_are_sampled_and_saved(tmp_path, options):
    process = dd.presets.mdlm(WORDS)
    model = trained(num_states=process.num_states, num_classes=2, **options).eval()
    for pace in (None, dd.paces.Blocks(4), dd.paces.RandomOrder()):
        drawn = dd.sample(
            process, model.with_label(1), (2, 12), steps=2, pace=pace, generator=range(2)
        )
        assert drawn.shape == (2, 12)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert (config["positions"], config["shape"]) == (options["positions"], [3, 4])
    t = torch.tensor([0.5, 0.2])
    for loaded in (DiT.from_pretrained(tmp_path), DiTModel.from_pretrained(tmp_path).backbone):
        assert torch.equal(loaded(drawn, t), model(drawn, t))
        assert (
            loaded.saved_arguments() == model.saved_arguments() and loaded.positions.shape == SHAPE
        )
    trained().save_pretrained(tmp_path / "rope")
    assert (
        not {"positions", "shape"}
        & json.loads((tmp_path / "rope" / "config.json").read_text()).keys()
    )
    assert trained().state_dict().keys() == trained(**KINDS[0]).state_dict().keys()


@pytest.mark.usefixtures("compiled_anew")
@pytest.mark.parametrize("options", KINDS[:2])
def test_they_compile_to_one_graph(options):
    model = trained(block_size=3, **options)
    (z, t) = picture()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(z, t), model(z, t))
    torch.testing.assert_close(compiled(z, t, clean=z % WORDS), model(z, t, clean=z % WORDS))


def shaped(shape, positions="rope2d", **options):
    return trained(positions=positions, shape=shape, **options)


test_mismatches_are_refused_by_name = refuses(r"""
    build(positions="sines") | ValueError | positions='sines': must be one of rope, rope2d, learned
    build(shape=(3, 4)) | ValueError | shape=\(3, 4\): must be \(\) with positions='rope'
    shaped(()) | ValueError | shape=\(\): must be \(H, W\), each at least 1, with positions='rope2d'
    shaped((12,)) | ValueError | shape=\(12,\): must be \(H, W\), each at least 1
    shaped((3, 0)) | ValueError | shape=\(3, 0\): must be \(H, W\), each at least 1
    shaped((2, 3, 4), "learned") | ValueError
        | shape=\(2, 3, 4\): must be \(H, W\) or \(L,\), each at least 1
    shaped((), "learned") | ValueError | shape=\(\): must be \(H, W\) or \(L,\)
    shaped(12, "learned") | TypeError | shape=12: must be ints, \(H, W\) or \(L,\), or \(\)
    shaped((3.0, 4)) | TypeError | shape=\(3\.0, 4\): must be ints
    shaped((3, 4), dim=20) | ValueError | dim/heads=10: positions='rope2d'.*multiple of 4
    shaped((3, 4))(*inputs(2, 13)) | ValueError
        | z has 13 positions: must have exactly 12, shape=\(3, 4\)
    shaped((3, 4))(*inputs(2, 11)) | ValueError
        | z has 11 positions: must have exactly 12, shape=\(3, 4\)
    shaped((3, 4), "learned")(*inputs(2, 11)) | ValueError
        | z has 11 positions: must have exactly 12
    shaped((12,), "learned")(*inputs(2, 13)) | ValueError
        | z has 13 positions: must have at most 12, shape=\(12,\)
    shaped((3, 4), block_size=2)(*inputs(2, 13)) | ValueError
        | z has 13 positions: must have at most 12
    shaped((3, 4)).pack(torch.tensor([0, 12, 17])) | ValueError
        | z has 5 positions: must have exactly 12
    beyond() | ValueError | z has 14 positions: must have at most 12, shape=\(3, 4\)
""")


def beyond():
    model = shaped((3, 4), block_size=2)
    (z, t) = inputs(2, 14)
    return model.extend(z[:, 12:], t, model.prefill(z[:, :12] % WORDS))

"""The diffusion transformer: shapes, symmetry, gradients, time, precision, refusals."""

import pytest
import torch
from refusals import refused_with, refuses
from tiny import STATES, WORDS, build, features_of, inputs, trained
from torch.overrides import TorchFunctionMode

from ddlib_models.dit.adaptive_norm import LayerNorm
from ddlib_models.dit.layers import (
    GELU,
    SelfAttention,
    TimeEmbedding,
    cos_sin,
    rotary_angles,
    rotate,
)


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("time_conditioned", [True, False])
def test_logits_over_tokens_only(length, time_conditioned):
    assert trained(time_conditioned=time_conditioned)(*inputs(length=length)).shape == (
        3,
        length,
        WORDS,
    )


def test_features_and_head_make_the_logits():
    model = trained()
    z, t = inputs()
    torch.testing.assert_close(model.head(model.features(z, t)), model(z, t))


@pytest.mark.parametrize("time_conditioned", [True, False])
@pytest.mark.parametrize(
    "positions", [[[3], [0], [4]], [[4, 0], [1, 1], [2, 3]], [[0, 1, 2, 3, 4]] * 3, [[]] * 3]
)
def test_features_of_some_positions_are_those_of_all(positions, time_conditioned):
    model = trained(time_conditioned=time_conditioned).double()
    where = torch.tensor(positions, dtype=torch.int64)
    z, t = inputs()
    expected = model.features(z, t.double()).take_along_dim(where[..., None], 1)
    torch.testing.assert_close(
        model.features_at(z, t.double(), where), expected, atol=1e-12, rtol=1e-12
    )


def at_positions(positions):
    return build().features_at(*inputs(), torch.tensor(positions))


test_positions_that_are_not_there_are_refused = refuses(r"""
    at_positions([[0], [1]]) | ValueError
        | positions has shape \(2, 1\): expected \(B, n\) with B = 3
    at_positions([0, 1, 2]) | ValueError | positions has shape \(3,\)
    at_positions([[0], [5], [1]]) | ValueError | positions holds 0..5: must lie in 0..L-1=4
    at_positions([[0], [-1], [1]]) | ValueError | positions holds -1..1
""")


def test_activations_are_overwritten_only_where_no_gradient_needs_them():
    layer = GELU()
    x = torch.randn(3, 4)
    expected = torch.nn.functional.gelu(x, approximate="tanh")
    assert torch.equal(layer(x), expected) and not torch.equal(x, expected)
    with torch.no_grad():
        assert layer(x) is x and torch.equal(x, expected)
    model = trained()
    (z, t) = inputs()
    with torch.no_grad():
        alone = model(z, t)
    assert torch.equal(model(z, t), alone)


def test_a_fresh_model_is_uniform():
    assert (build()(*inputs()) == 0).all()


def test_attention_turns_with_the_sequence():
    """Rotary scores depend on differences of positions: the same window gives the same scores
    anywhere.
    """
    torch.manual_seed(0)
    q = torch.randn(2, 6, 3, 8)
    k = torch.randn(2, 6, 3, 8)
    near = rotary_angles(6, 8, q.device)
    far = rotary_angles(106, 8, q.device)[100:]
    scores = [
        torch.einsum("bihk,bjhk->bhij", rotate(q, rotation), rotate(k, rotation))
        for rotation in (cos_sin(near), cos_sin(far))
    ]
    torch.testing.assert_close(*scores, atol=1e-4, rtol=1e-4)


def test_rotation_is_the_half_split_one():
    x = torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(1, 3, 1, 4)
    turned = rotate(x, cos_sin(rotary_angles(3, 4, x.device)))[0, :, 0]
    position = torch.arange(3.0)
    torch.testing.assert_close(
        turned, torch.stack([position.cos(), 0 * position, position.sin(), 0 * position], -1)
    )


def test_cosines_are_computed_once_for_all_blocks():
    model = trained()
    z, t = inputs()

    class Cosines(TorchFunctionMode):
        count = 0

        def __torch_function__(self, function, types, arguments=(), options=None):
            self.count += function is torch.Tensor.cos
            return function(*arguments, **(options or {}))

    with Cosines() as cosines:
        model(z, t)
    assert len(model.blocks) > 1
    assert cosines.count == 2  # of positions and of times


def test_without_rotation_attention_is_equivariant():
    layer = SelfAttention(16, 2)
    x = torch.randn(2, 6, 16)
    order = torch.randperm(6)
    still = cos_sin(torch.zeros(6, 4))
    torch.testing.assert_close(layer(x, still)[:, order], layer(x[:, order], still))


def test_sequences_do_not_see_each_other():
    model = trained()
    z, t = inputs()
    torch.testing.assert_close(model(z, t)[1:2], model(z[1:2], t[1:2]), atol=1e-5, rtol=1e-5)


def test_every_position_sees_every_other():
    model = trained()
    z, t = inputs(batch=1)
    for changed in range(5):
        other = z.clone()
        other[0, changed] = (z[0, changed] + 1) % STATES
        assert ((model(z, t) - model(other, t)).abs().amax(-1) > 1e-6).all()


@pytest.mark.parametrize("time_conditioned", [True, False])
def test_gradient_reaches_every_parameter(time_conditioned):
    model = trained(time_conditioned=time_conditioned)
    model(torch.arange(STATES)[None], torch.tensor([0.3])).square().sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and (parameter.grad != 0).any(), name


def test_one_step_wakes_a_fresh_model():
    """Zero gates and a zero head block each other only until the head has moved."""
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    z, t = inputs()
    for _ in range(3):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(
            model(z, t).flatten(0, 1), (z % WORDS).flatten()
        ).backward()
        optimizer.step()
    assert all((parameter.grad != 0).any() for parameter in model.parameters())


def test_time_matters_once_trained_but_not_at_birth():
    z, _ = inputs(batch=1)
    early = torch.tensor([0.1])
    late = torch.tensor([0.9])
    assert torch.equal(build()(z, early), build()(z, late))
    assert (trained()(z, early) - trained()(z, late)).abs().max() > 1e-3
    unconditioned = trained(time_conditioned=False)
    assert torch.equal(unconditioned(z, early), unconditioned(z, late))


def test_bfloat16_autocast_is_finite_and_close():
    model = trained()
    z, t = inputs()
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(z, t)
    assert logits.dtype == torch.bfloat16 and logits.isfinite().all()
    torch.testing.assert_close(logits.float(), model(z, t), atol=0.5, rtol=0.1)
    logits.float().square().sum().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_bfloat16_weights_keep_float32_statistics():
    norm = LayerNorm(64).bfloat16()
    x = (torch.randn(4, 64) + 200).bfloat16()
    exact = torch.nn.functional.layer_norm(x.double(), (64,))
    torch.testing.assert_close(norm(x).double(), exact, atol=0.02, rtol=0.01)
    assert trained().bfloat16()(*inputs()).isfinite().all()
    assert TimeEmbedding(8).bfloat16()(torch.rand(3)).dtype == torch.bfloat16


@pytest.mark.parametrize("time_conditioned", [True, False])
def test_double_precision_loses_no_digits(time_conditioned):
    """Moving one weight by 1e-6 moves the logits by their derivative.

    Float32 anywhere would hide it.
    """
    model = trained(time_conditioned=time_conditioned).double()
    (z, t) = inputs()
    weight = model.embedding.weight
    (slope,) = torch.autograd.grad(model(z, t).square().sum(), weight)
    direction = torch.randn_like(slope)
    values = []
    with torch.no_grad():
        for sign in (1, -2):
            weight += sign * 1e-6 * direction
            values.append(model(z, t).square().sum())
    assert (values[0] - values[1]).item() / 2e-6 == pytest.approx(
        (slope * direction).sum().item(), rel=1e-7
    )


def test_a_fresh_table_is_that_of_the_reference():
    """MDLM, GIDD and HDLM: Kaiming-uniform with a = sqrt(5), which is uniform in +-1/sqrt(dim)."""
    weight = build(num_states=3000, dim=64).embedding.weight
    assert weight.abs().max() <= 1 / 8 and weight.std().item() == pytest.approx(
        1 / 8 / 3**0.5, rel=0.01
    )


def test_dropout_acts_in_training_only():
    model = trained(dropout=0.5)
    z, t = inputs()
    assert not torch.equal(model(z, t), model(z, t))
    model.eval()
    assert torch.equal(model(z, t), model(z, t))


test_refuses_bad_sizes = refuses(r"""
    build(dim=15) | ValueError | dim=15, heads=2
    build(heads=0) | ValueError | heads=0
    build(dim=6) | ValueError | dim/heads=3
    build(vocab_size=15) | ValueError | vocab_size=15.*num_states=14
    build(vocab_size=0) | ValueError | vocab_size=0
    build(depth=0) | ValueError | depth=0
    build(dropout=1.0) | ValueError | dropout=1\.0
    build(pad_to=0) | ValueError | pad_to=0
    build(num_clusters=-1) | ValueError | num_clusters=-1
    build(attention="flash") | ValueError
        | attention='flash': must be one of sdpa, varlen, flex, xformers
""")


def test_refuses_bad_inputs(as_users_call):
    model = build()
    z, t = inputs()
    refused_with(model=model, t=t, z=z)(r"""
        model(torch.tensor([[0, STATES]]), torch.rand(1)) | ValueError
            | states 0\.\.14.*num_states-1=13
        model(torch.tensor([[0, -1]]), torch.rand(1)) | ValueError | -1\.\.0
        model(z, t[:2]) | ValueError | expected \(B, L\) and \(B,\)
    """)


CHANGES = {
    "beside": dict(block_size=2),
    "labels": dict(num_classes=3),
    "no_time": dict(time_conditioned=False),
}
"""Arguments of the network of a case."""


@pytest.mark.parametrize(
    "case", ["plain", "own_times", "beside", "packed", "labels", "some_positions"]
)
def test_the_trunk_is_one_graph_with_the_same_features_and_gradients(case):
    """``fullgraph`` fails at anything that a compiler cannot put into one graph."""
    results = []
    for compiled in (False, True):
        model = trained(**CHANGES.get(case, {})).eval()
        if compiled:
            model.compile_trunk(backend="aot_eager", fullgraph=True)
        features = features_of(model, case)
        features.square().sum().backward()
        results.append([features, *(p.grad for p in model.parameters() if p.grad is not None)])
    torch.testing.assert_close(*results)


def test_the_residual_stream_is_as_wide_as_the_products():
    """Features have the dtype of the products; without autocast nothing changes."""
    z, t = inputs()
    wide = trained()
    half = trained(half_residual=True)
    torch.testing.assert_close(half(z, t), wide(z, t), rtol=0, atol=0)
    with torch.autocast("cpu", torch.bfloat16):
        assert wide.features(z, t).dtype == torch.float32
        assert half.features(z, t).dtype == torch.bfloat16
        difference = (half(z, t).float() - wide(z, t).float()).norm() / wide(z, t).float().norm()
    assert 0 < difference < 0.05


class Products(TorchFunctionMode):
    """Counts products of weights with the conditions of sequences, whose width is 8."""

    count = 0

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function is torch.nn.functional.linear and args[1].shape[1] == 8:
            self.count += args[1].shape[0] != 8
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("case", "compiled"),
    [
        *((name, False) for name in ("plain", "own_times", "beside", "labels", "some_positions")),
        ("packed", True),
        ("packed", False),
        ("no_time", False),
    ],
)
def test_one_product_of_the_condition_for_all_blocks(case, compiled):
    """The same features and gradients, by the same weights, but for a time per position."""
    results = []
    for joint in (False, True):
        model = trained(cond_dim=8, joint_modulation=joint, **CHANGES.get(case, {})).eval()
        if compiled and joint:
            model.compile_trunk(backend="aot_eager", fullgraph=True)
        with Products() as products:
            features = features_of(model, case)
        features.square().sum().backward()
        gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        results.append({"features": features} | gradients)
        if not compiled:
            apart = 0 if case == "no_time" else len(model.blocks) + 1
            together = joint and apart and case not in ("own_times", "beside")
            assert products.count == (1 if together else apart)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-6)


def test_options_of_speed_are_not_part_of_saved_weights():
    fast = trained(joint_modulation=True, fused_norms=True, half_residual=True)
    assert fast.state_dict().keys() == trained().state_dict().keys()

"""The linear layer: when oneDNN multiplies, that it multiplies right, and who is not kept from seeing it."""

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from tiny import inputs, trained
from torch import nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from ddlib_models import linear
from ddlib_models.linear import Linear

ONEDNN = "mkldnn::_linear_pointwise"

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch was built without oneDNN")


@pytest.fixture(scope="module", autouse=True)
def all_are_large():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(linear, "LARGE", 0)
        yield


def layer(bias: bool = True) -> Linear:
    torch.manual_seed(0)
    return Linear(6, 4, bias=bias)


def operations(call) -> set[str]:
    """What torch ran."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    return {event.key for event in profile.key_averages()}


@given(st.lists(st.integers(0, 5), max_size=3), st.integers(1, 70), st.integers(1, 70), st.booleans(), st.booleans())
def test_it_is_the_product_of_torch(batch, wide, out, bias, turned):
    ours, x = Linear(wide, out, bias=bias), torch.randn(*batch, wide)
    if turned:  # strides of any order
        x = torch.randn(wide, *batch).movedim(0, -1)
    with torch.no_grad():
        torch.testing.assert_close(ours(x), F.linear(x, ours.weight, ours.bias), atol=1e-5, rtol=1e-5)


def test_onednn_multiplies_where_no_gradient_is_asked_for():
    model, (z, t) = trained(), inputs()
    with_gradients = operations(lambda: model(z, t))
    with torch.no_grad():
        without = operations(lambda: model(z, t))
        with torch.inference_mode():
            inference = operations(lambda: model(z, t))
    assert ONEDNN not in with_gradients and ONEDNN in without and ONEDNN in inference
    expected = model(z, t).detach()
    with torch.no_grad():
        torch.testing.assert_close(model(z, t), expected)


@torch.no_grad()
def test_small_products_are_torchs(monkeypatch):
    monkeypatch.setattr(linear, "LARGE", 3 * 6 * 4)
    assert ONEDNN in operations(lambda: layer()(torch.randn(3, 6)))
    assert ONEDNN not in operations(lambda: layer()(torch.randn(2, 6)))


@pytest.mark.filterwarnings("ignore:TF32 acceleration")
@torch.no_grad()
def test_it_is_turned_off_with_the_rest_of_onednn():
    with torch.backends.mkldnn.flags(enabled=False):
        assert ONEDNN not in operations(lambda: layer()(torch.randn(3, 6)))


@torch.no_grad()
def test_other_dtypes_are_torchs():
    double = layer().double()
    assert ONEDNN not in operations(lambda: double(torch.randn(3, 6, dtype=torch.float64)))
    with torch.autocast("cpu", torch.bfloat16):
        assert layer()(torch.randn(3, 6)).dtype == torch.bfloat16
    with pytest.raises(RuntimeError, match="dtype"):
        layer()(torch.randn(3, 6, dtype=torch.float64))


@torch.no_grad()
def test_a_shape_that_does_not_fit_is_refused():
    with pytest.raises(RuntimeError):
        layer()(torch.randn(3, 5))


@pytest.mark.parametrize("bias", [True, False])
@torch.no_grad()
def test_derivatives_without_gradients_are_derivatives(bias):
    ours, x, along = layer(bias), torch.randn(3, 6), torch.randn(3, 6)
    expected = along @ ours.weight.T
    torch.testing.assert_close(torch.func.jvp(ours, (x,), (along,))[1], expected)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(ours(forward_ad.make_dual(x, along))).tangent
    torch.testing.assert_close(tangent, expected)


@torch.no_grad()
def test_many_models_at_once():
    models, x = [layer(), layer()], torch.randn(3, 6)
    models[1].weight.mul_(2)
    parameters, _ = torch.func.stack_module_state(models)  # warnings, as of a missing rule, are errors
    got = torch.vmap(lambda one: torch.func.functional_call(models[0], one, (x,)))(parameters)
    torch.testing.assert_close(got, torch.stack([model(x) for model in models]))


@torch.no_grad()
def test_a_bias_of_any_stride_is_read_right():
    ours, x, bias = layer(), torch.randn(3, 6), torch.randn(8)[::2]
    got = torch.func.functional_call(ours, {"bias": bias}, (x,))
    torch.testing.assert_close(got, F.linear(x, ours.weight, bias))


@torch.no_grad()
def test_a_counter_of_operations_sees_it():
    with FlopCounterMode(display=False) as counter:
        layer()(torch.randn(3, 6))
    assert counter.get_total_flops() == 2 * 3 * 6 * 4


@pytest.mark.slow
@torch.no_grad()
def test_a_compiled_model_is_one_graph_of_torchs_products():
    model, (z, t), graphs = trained(), inputs(), []
    compiled = torch.compile(model, backend=lambda graph, _: graphs.append(graph.code) or graph.forward, fullgraph=True)
    torch.testing.assert_close(compiled(z, t), model(z, t))  # torch's products beside oneDNN's
    assert len(graphs) == 1 and "mkldnn" not in graphs[0]


@torch.no_grad()
def test_it_is_exported_as_a_linear_layer():
    program = torch.export.export(nn.Sequential(layer()), (torch.randn(3, 6),))
    assert "linear" in program.graph_module.code and "mkldnn" not in program.graph_module.code

"""The Triton kernels on a GPU: against the CPU, and without making the host wait."""

import copy
import warnings

import pytest
import torch

import ddlib as dd
from ddlib.kernels import dispatch as plans
from ddlib.kernels import fused, gpu
from ddlib.kernels.fused import FlatBatch
from ddlib.objective.training import LossOptions

pytestmark = pytest.mark.gpu

V = 5003
WORDS = torch.arange(V) % 37
ABOVE = torch.arange(37) % 5
MANY = {
    "masked": dd.presets.mdlm(V),
    "clusters": dd.presets.hdlm(WORDS),
    "levels": dd.presets.hdlm_levels([WORDS, ABOVE]),
    "xi-above": dd.presets.hdlm_levels([WORDS, ABOVE], xi=[1.0, 0.8]),
}
every = pytest.mark.parametrize("process", MANY.values(), ids=MANY)
SYNCHRONISES = "called a synchronizing CUDA operation"


def batch(process, dtype=torch.float32, rows=16, length=40, dim=75, own=False):
    """Hidden states, matrix and bias of ``dtype``; tokens, states, times: on the CPU."""
    generator = torch.Generator().manual_seed(0)
    sizes = (rows, length, dim), (V, dim), (V,)
    layer = [(torch.randn(size, generator=generator) * 0.3).to(dtype) for size in sizes]
    x = torch.randint(V, (rows, length), generator=generator)
    t = torch.rand((rows, length) if own else (rows,), generator=generator, dtype=torch.float64)
    return layer, (x, process.sample(x, t, generator), t)


def moved(process, layer, noisy):
    """The same on the GPU; the layer wants gradients."""
    layer = [p.cuda().requires_grad_() for p in layer]
    return copy.deepcopy(process).cuda(), layer, [column.cuda() for column in noisy]


def close(ours, theirs, tolerance):
    for one, other in zip(ours, theirs, strict=True):
        assert (one.cpu().double() - other).abs().max() <= tolerance * (1 + other.abs().max())


@every
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.02), (torch.float16, 0.02)]
)
@pytest.mark.parametrize("mode", ["standard", "hard", "edges"])
@pytest.mark.parametrize("own", [False, True])
def test_values_and_gradients_of_the_cpu(process, dtype, tolerance, mode, own):
    layer, noisy = batch(process, dtype, own=own)
    options = dict(mode=mode, weighting=dd.weightings.Clip(5.0))
    wide = [p.double().requires_grad_() for p in layer]
    values = dd.training_loss(
        process, torch.nn.functional.linear(*wide), *noisy, **options, reduction="none"
    )
    gradients = torch.autograd.grad(values.mean(), wide)
    there, on_gpu, noisy = moved(process, layer, noisy)
    assert gpu.usable(noisy[0].device, torch.float32)
    with torch.no_grad():
        ours = dd.training_loss(
            there, dd.Hidden(*on_gpu[:2], on_gpu[2]), *noisy, **options, reduction="none"
        )
    # the kernel keeps float32 sums of exact products; logits of levels that it does not support are
    # in half precision
    served = process is not MANY["xi-above"] and mode != "edges"
    close([ours], [values], 1e-4 if served else tolerance)
    loss, per_token = dd.summed_loss(
        there, dd.Hidden(*on_gpu), *noisy, 1 / noisy[0].numel(), **options
    )
    close([loss, per_token], [values.mean(), values], tolerance)
    close(torch.autograd.grad(loss, on_gpu), gradients, tolerance)


@every
@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.bfloat16, 0.02), (torch.float16, 0.02)]
)
def test_child_logits_as_on_the_cpu(process, dtype, tolerance):
    tree = dd.hierarchies.Tree([WORDS, ABOVE])
    (hidden, _, _), noisy = batch(process, dtype)
    generator = torch.Generator().manual_seed(1)
    shapes = (tree.num_states - 1, hidden.shape[-1]), (tree.num_states - 1,)
    layer = [
        hidden,
        *((torch.randn(shape, generator=generator) * 0.3).to(dtype) for shape in shapes),
    ]
    wide = [p.double().requires_grad_() for p in layer]
    meaning = dd.Children(tree)
    logits = torch.nn.functional.linear(*wide)
    options = dict(weighting=dd.weightings.Clip(5.0), parameterization=meaning)
    values = dd.training_loss(process, logits, *noisy, **options, reduction="none")
    gradients = torch.autograd.grad(values.mean(), wide)
    there, on_gpu, noisy = moved(process, layer, noisy)
    options |= dict(parameterization=dd.Children(copy.deepcopy(tree).cuda()))
    loss, per_token = dd.summed_loss(
        there, dd.Hidden(*on_gpu), *noisy, 1 / noisy[0].numel(), **options
    )
    close([loss, per_token], [values.mean(), values], tolerance)
    close(torch.autograd.grad(loss, on_gpu), gradients, tolerance)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rows_of_small_clusters_have_grouped_products(dtype, monkeypatch):
    from ddlib.kernels.gpu import vocab_order

    process = MANY["clusters"]
    layer, noisy = batch(process, dtype)
    there, on_gpu, noisy = moved(process, layer, noisy)
    found = []
    for sparse in (0, 1e9):
        monkeypatch.setattr(vocab_order, "SPARSE", sparse)
        monkeypatch.setattr(vocab_order, "EXTRA", -1 if sparse == 0 else 1 << 22)
        loss = dd.training_loss(there, dd.Hidden(*on_gpu), *noisy)
        found.append([loss.detach().cpu(), *(g.cpu() for g in torch.autograd.grad(loss, on_gpu))])
    tolerance = 1e-4 if dtype == torch.float32 else 0.02
    close(found[1], [one.double() for one in found[0]], tolerance)


@every
def test_the_path_without_triton_gives_the_same_result(process, monkeypatch):
    there, layer, noisy = moved(process, *batch(process))
    found = []
    for switch in "01":
        monkeypatch.setenv("DDLIB_TRITON", switch)
        loss = dd.training_loss(
            there, dd.Hidden(*layer[:2], layer[2]), *noisy, weighting=dd.weightings.Clip(5.0)
        )
        found.append([loss.detach().cpu(), *(g.cpu() for g in torch.autograd.grad(loss, layer))])
    close(found[1], [f.double() for f in found[0]], 1e-4)


@pytest.fixture
def waiting():
    """Sets what becomes of an operation that makes the host wait."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
        yield torch.cuda.set_sync_debug_mode
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("name", ["masked", "clusters", "levels"])
def test_evaluation_does_not_wait(name, waiting):
    there, layer, noisy = moved(MANY[name], *batch(MANY[name]))
    with torch.no_grad():
        dd.nelbo(there, dd.Hidden(*layer[:2], layer[2]), *noisy)  # compiles
        waiting("error")
        values = dd.nelbo(there, dd.Hidden(*layer[:2], layer[2]), *noisy)
    waiting("default")
    assert values.isfinite().all()


@pytest.mark.parametrize("name", ["masked", "clusters", "levels"])
def test_training_waits_once(name, waiting):
    """To learn how many tokens are in each state; what comes after that does not wait."""
    there, layer, noisy = moved(MANY[name], *batch(MANY[name]))

    def step():
        torch.autograd.grad(dd.training_loss(there, dd.Hidden(*layer[:2], layer[2]), *noisy), layer)

    step()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        waiting("warn")
        step()
        waiting("default")
    assert sum(SYNCHRONISES in str(one.message) for one in caught) == 1


@pytest.mark.parametrize("name", ["masked", "clusters", "levels"])
def test_after_the_count_nothing_waits(name, waiting, monkeypatch):
    from ddlib.kernels.gpu.vocab_order import Order

    there, layer, (x, z, t) = moved(MANY[name], *batch(MANY[name]))
    flat = fused.Layer(layer[0].detach().flatten(0, 1), layer[1].detach(), layer[2].detach())
    rows = FlatBatch(x.flatten(), z.flatten(), t[:, None].expand_as(x).flatten())
    blocks, weight = plans.plan(there, rows, LossOptions(), flat.hidden.dtype)
    order = Order(there.hierarchy, there.hierarchy.depth, hard=False)
    known = order.products(rows, order.level(rows))
    expected = fused.run(flat, blocks, rows, weight, None)[1]
    monkeypatch.setattr(Order, "products", lambda *_: known)
    waiting("error")
    found = fused.run(flat, blocks, rows, weight, None)[1]
    waiting("default")
    assert (found.weight - expected.weight).abs().max() <= 1e-6 * expected.weight.abs().max()


def test_evaluation_stores_no_logits():
    there, layer, noisy = moved(
        MANY["levels"], *batch(MANY["levels"], torch.bfloat16, rows=64, length=128)
    )
    with torch.no_grad():
        dd.nelbo(there, dd.Hidden(*layer[:2], layer[2]), *noisy)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        dd.nelbo(there, dd.Hidden(*layer[:2], layer[2]), *noisy)
    assert torch.cuda.max_memory_allocated() - before < 0.1 * noisy[0].numel() * V * 2


def test_noise_is_that_of_the_cpu():
    """Keyed numbers, their scramblings and copies, to the bit: one kernel on the GPU, the formula
    on the CPU.
    """
    found = []
    for device in ("cpu", "cuda"):
        index = torch.arange(1000, 1016, device=device)
        noise = dd.KeyedGenerator(3, 2**40 + 1, index)
        copies = noise.split(3)
        numbers = [
            noise.rand((16, 9)),
            noise.rand((16,)),
            copies.rand((48, 5)),
            noise.scramble(index),
        ]
        found.append(
            [*numbers, copies.split(2).rand((96, 2)), dd.sample_times(16, generator=noise)]
        )
    for wanted, ours in zip(*found, strict=True):
        assert ours.device.type == "cuda" and torch.equal(ours.cpu(), wanted)

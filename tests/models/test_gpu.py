"""Tests that need a GPU and the ``gpu`` extra: back ends against the formula, forward and
backward.
"""

import pytest
import torch
from tiny import STATES, WORDS, trained

from ddlib_models.attention.backends import SDPA, Flex, XFormers, backend

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("as_users_call")]

LENGTHS = [100, 1, 300, 111]
OFFSETS = torch.tensor([0, 100, 101, 401, 512], dtype=torch.int32)
NAMES = ["sdpa", "varlen", "flex", "xformers"]


def leaves(batch: int, length: int, heads: int = 4) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shape = (batch, length, heads, 64)
    return [
        torch.randn(shape, generator=generator).cuda().bfloat16().requires_grad_() for _ in range(3)
    ]


def results(attend, batch: int, length: int, mask) -> list[torch.Tensor]:
    """Output and gradients."""
    tensors = leaves(batch, length)
    out = attend(*tensors, mask)
    return [out, *torch.autograd.grad(out.float().square().sum(), tensors)]


def test_the_mask_of_xformers_is_that_of_sdpa():
    """Runs wherever xformers is installed, also without a GPU."""
    ours = SDPA().mask(OFFSETS)
    theirs = XFormers.block_diagonal(OFFSETS)
    assert torch.equal(theirs.materialize((512, 512)) == 0, ours)
    assert theirs.q_seqinfo.seqstart.tolist() == OFFSETS.tolist()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("packed", [False, True])
def test_a_back_end_agrees_with_the_formula_forward_and_backward(name, packed):
    attend = backend(name)
    batch, mask = (1, attend.mask(OFFSETS.cuda())) if packed else (3, None)
    tensors = [x.detach().float().requires_grad_() for x in leaves(batch, 512)]
    q, k, v = tensors
    scores = torch.einsum("bihk,bjhk->bhij", q, k) / 8
    if packed:
        scores = scores.masked_fill(~SDPA().mask(OFFSETS.cuda()), -torch.inf)
    exact = torch.einsum("bhij,bjhk->bihk", scores.softmax(-1), v)
    expected = [exact, *torch.autograd.grad(exact.square().sum(), tensors)]
    for given, wanted in zip(results(attend, batch, 512, mask), expected, strict=True):
        torch.testing.assert_close(given.float(), wanted, atol=0.05, rtol=0.05)


@torch.no_grad()
@pytest.mark.parametrize("name", NAMES)
def test_packed_sequences_give_the_logits_of_separate_ones(name):
    model = trained(dim=128, attention=name).cuda()
    t = torch.rand(4).cuda()
    z = torch.randint(STATES, (1, 512), generator=torch.Generator().manual_seed(3)).cuda()
    with torch.autocast("cuda", torch.bfloat16):
        packed = model(z, t, model.pack(OFFSETS.cuda()))
        separate = [model(part, t[i : i + 1]) for i, part in enumerate(z.split(LENGTHS, 1))]
    error = (packed - torch.cat(separate, 1)).float().square().mean().sqrt()
    assert error < 0.03 * packed.float().std()


@pytest.mark.parametrize("name", ["sdpa", "flex"])
def test_blocks_side_by_side_and_kept_are_those_of_single_precision(name):
    generator = torch.Generator().manual_seed(3)
    x, z = (torch.randint(most, (2, 256), generator=generator).cuda() for most in (WORDS, STATES))
    t = torch.rand(2, 256, generator=generator).cuda()
    exact, model = (trained(dim=128, block_size=32, attention=one).cuda() for one in ("sdpa", name))
    expected = exact(z, t, clean=x)
    with torch.autocast("cuda", torch.bfloat16):
        logits = model(z, t, clean=x)
        with torch.no_grad():
            cache = model.prefill(x[:, 64:192], model.prefill(x[:, :64]))
            window = model.extend(z[:, 192:224], t[:, 192:224], cache)
    for ours, wanted in ((logits, expected), (window, expected[:, 192:224])):
        assert (ours - wanted).float().square().mean().sqrt() < 0.03 * wanted.std()
    logits.float().square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


@pytest.mark.parametrize("name", ["xformers", "varlen"])
def test_a_packed_training_step_compiles_to_one_graph(name):
    model = trained(dim=128, attention=name).cuda()
    t = torch.rand(4).cuda()
    z = torch.randint(STATES, (1, 512)).cuda()
    packing = model.pack(OFFSETS.cuda())
    compiled = torch.compile(model, fullgraph=True, dynamic=False)
    with torch.autocast("cuda", torch.bfloat16):
        compiled(z, t, packing).float().square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())


def test_flex_has_a_backward_pass_here():
    assert all(x.isfinite().all() for x in results(Flex(), 1, 512, Flex().mask(OFFSETS.cuda())))


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_fused_norms_are_those_of_torch(compiled, half):
    results = []
    z = torch.randint(STATES, (3, 70), generator=torch.Generator().manual_seed(0)).cuda()
    t = torch.linspace(0.1, 0.9, 3).cuda()
    for fused in (False, True):
        model = trained(dim=96, heads=2, fused_norms=fused).cuda()
        if compiled:
            model.compile_trunk(fullgraph=True)
        with torch.autocast("cuda", torch.bfloat16, enabled=half):
            features = model.features(z, t)
        features.float().square().sum().backward()
        results.append(
            [features.float(), *(p.grad for p in model.parameters() if p.grad is not None)]
        )
    for ours, theirs in zip(*reversed(results), strict=True):
        assert (ours - theirs).norm() <= (0.02 if half else 1e-4) * theirs.norm()

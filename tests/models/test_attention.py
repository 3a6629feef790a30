"""Attention back ends: one result for all, packed or not; errors name what a back end needs."""

import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused_with
from tiny import STATES, build, trained
from zoo.trees import ELEVEN_IN_TWO

from ddlib_models.attention import backends as attention
from ddlib_models.attention.backends import SDPA, Attention, Flex, Varlen, XFormers, backend, owners
from ddlib_models.attention.masks import ByBlocks, PackedRows

LENGTHS = [4, 1, 7, 3]
OFFSETS = torch.tensor([0, 4, 5, 12, 15], dtype=torch.int32)
EVERYTHING = dict(parents=ELEVEN_IN_TWO, num_clusters=2, pad_to=32, tied=True)

flex_runs_unfused = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
HERE = [pytest.param(SDPA(), id="sdpa"), pytest.param(Flex(), id="flex", marks=flex_runs_unfused)]


def heads(batch: int, length: int, dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(batch, length, 2, 16, generator=generator).to(dtype) for _ in range(3)]


def by_hand(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    scores = torch.einsum("bihk,bjhk->bhij", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("bhij,bjhk->bihk", scores.softmax(-1), v)


@pytest.mark.parametrize("attend", HERE)
def test_attention_is_the_formula(attend):
    torch.testing.assert_close(attend(*heads(2, 6)), by_hand(*heads(2, 6)), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("attend", HERE)
def test_packed_sequences_attend_as_separate_ones(attend):
    packed = heads(1, 15)
    separate = [
        by_hand(*parts) for parts in zip(*(x.split(LENGTHS, 1) for x in packed), strict=True)
    ]
    torch.testing.assert_close(
        attend(*packed, attend.mask(OFFSETS)), torch.cat(separate, 1), atol=1e-6, rtol=1e-5
    )


RULES = [ByBlocks(3), ByBlocks(3, noisy=8), ByBlocks(4, first=8)]


@pytest.mark.parametrize("attend", HERE)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_rule_sets_which_positions_attend_to_which(attend, rule):
    """For the first queries, and for those of each sequence."""
    _, k, v = heads(2, 16)
    some = torch.tensor([[7, 0, 5], [1, 1, 6]])
    device = torch.device("cpu")
    for queries, chosen in ((8, torch.arange(8).expand(2, 8)), (some, some)):
        q = heads(2, chosen.shape[1])[0]
        scores = torch.einsum("bihk,bjhk->bhij", q, k) / 4
        seen = rule(chosen[:, None, :, None], torch.arange(16))
        expected = torch.einsum(
            "bhij,bjhk->bihk", scores.masked_fill(~seen, -torch.inf).softmax(-1), v
        )
        mask = attend.mask_by(rule, queries, 16, device)
        torch.testing.assert_close(attend(q, k, v, mask), expected, atol=1e-6, rtol=1e-5)


@torch.no_grad()
def packed_as_separate(
    attend: Attention, time_conditioned: bool, dtype: torch.dtype, tolerance: float
) -> None:
    model = trained(time_conditioned=time_conditioned, attention=attend, **EVERYTHING).to(dtype)
    z = torch.randint(STATES, (1, 15), generator=torch.Generator().manual_seed(3))
    t = torch.rand(4)
    separate = [
        model.with_clusters(part, t[i : i + 1]) for i, part in enumerate(z.split(LENGTHS, 1))
    ]
    for offsets in (OFFSETS, OFFSETS.long(), model.pack(OFFSETS)):
        packed = model.with_clusters(z, t, offsets)
        for one, parts in zip(packed, zip(*separate, strict=True), strict=True):
            torch.testing.assert_close(one, torch.cat(parts, 1), atol=tolerance, rtol=tolerance)
        assert torch.equal(model(z, t, offsets), packed[0])


@pytest.mark.parametrize("time_conditioned", [True, False])
@pytest.mark.parametrize("attend", HERE)
def test_packed_sequences_give_the_logits_of_separate_ones(attend, time_conditioned):
    packed_as_separate(attend, time_conditioned, torch.float32, 1e-5)


@pytest.mark.parametrize("time_conditioned", [True, False])
@pytest.mark.parametrize("attend", HERE[:2])  # the compiled kernel has no float64
def test_packed_sequences_give_the_logits_of_separate_ones_to_twelve_digits(
    attend, time_conditioned
):
    packed_as_separate(attend, time_conditioned, torch.float64, 1e-12)


def test_packed_sequences_give_the_gradients_of_separate_ones():
    model = trained().double()
    t = torch.rand(4)
    z = torch.randint(STATES, (1, 15), generator=torch.Generator().manual_seed(3))
    model(z, t, OFFSETS).square().sum().backward()
    packed = [parameter.grad.clone() for parameter in model.parameters()]
    model.zero_grad()
    for i, part in enumerate(z.split(LENGTHS, 1)):
        model(part, t[i : i + 1]).square().sum().backward()
    for parameter, gradient in zip(model.parameters(), packed, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-9, rtol=1e-9)


def test_positions_restart_with_every_sequence():
    packing = build().pack(OFFSETS)
    assert packing.position.tolist() == [0, 1, 2, 3, 0, 0, 1, 2, 3, 4, 5, 6, 0, 1, 2]
    assert packing.owner.tolist() == [0] * 4 + [1] + [2] * 7 + [3] * 3


@pytest.mark.usefixtures("compilable")
def test_a_packed_model_compiles_to_one_graph():
    model = trained(**EVERYTHING)
    t = torch.rand(4)
    z = torch.randint(STATES, (1, 15))
    packing = model.pack(OFFSETS)
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(z, t, packing), model(z, t, packing))


def test_mask_of_sdpa_is_block_diagonal():
    lengths = [12, 2]  # two rows of 12 would have more scores than the whole pack
    mask = SDPA().mask(torch.tensor([0, 12, 14]))
    assert torch.equal(mask, torch.block_diag(*(torch.ones(n, n) for n in lengths)).bool())


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(0, 2**32))
def test_rows_of_a_pack_have_the_attention_of_the_dense_mask(lengths, seed):
    generator = torch.Generator().manual_seed(seed)
    offsets = torch.tensor([0, *lengths]).cumsum(0)
    owner = owners(offsets)
    total = sum(lengths)
    width = max(lengths)
    rows = PackedRows.of(owner)
    assert rows.mask.numel() <= 2 * total * width + width**2
    q, k, v, weight = torch.randn(4, 1, total, 2, 4, generator=generator, dtype=torch.float64)
    inputs = [x.requires_grad_() for x in (q, k, v)]
    dense = torch.block_diag(*(torch.ones(n, n) for n in lengths)).bool()
    found = [SDPA()(*inputs, mask) for mask in (rows, dense)]
    grads = [torch.autograd.grad((out * weight).sum(), inputs) for out in found]
    torch.testing.assert_close(*found)
    torch.testing.assert_close(*grads)


@pytest.mark.parametrize("offsets", [[1, 3], [0], [0, 2, 2], [0, 3, 1], []])
def test_refuses_bad_offsets(offsets):
    with pytest.raises(ValueError, match="must start at 0 and increase"):
        owners(torch.tensor(offsets, dtype=torch.int64))


def test_refuses_a_pack_of_another_size(as_users_call):
    model = build()
    for z, t in [((1, 14), 4), ((2, 15), 4), ((1, 15), 1)]:
        with pytest.raises(ValueError, match=r"expected \(1, 15\) and \(4,\), as given by"):
            model(torch.zeros(z, dtype=torch.int64), torch.rand(t), OFFSETS)


def test_every_back_end_has_a_name():
    assert set(attention.BACKENDS) == {"sdpa", "varlen", "flex", "xformers"}
    assert backend("sdpa") == SDPA() and backend("flex") == Flex()
    with pytest.raises(
        ValueError, match="attention='paged': must be one of sdpa, varlen, flex, xformers"
    ):
        backend("paged")


@pytest.mark.parametrize("attend", [SDPA(), Flex()])
def test_back_ends_can_be_pickled(attend):
    assert pickle.loads(pickle.dumps(attend)) == attend


@pytest.mark.parametrize("name", ["varlen", "xformers"])
def test_without_a_gpu_the_error_of_a_gpu_back_end_names_the_reason(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(attention, "find_spec", lambda module: module)
    with pytest.raises(RuntimeError, match=f"'{name}' needs a CUDA device"):
        build(attention=name)


def test_the_error_of_a_missing_back_end_names_the_package_to_install(monkeypatch):
    monkeypatch.setattr(attention, "find_spec", lambda module: None)
    refused_with()(r"""
        build(attention="varlen") | ImportError | torch >= 2.10
        build(attention="xformers") | ImportError | pip install 'ddlib\[gpu\]'
        XFormers.block_diagonal(OFFSETS) | ImportError | xformers >= 0\.0\.35
    """)


@pytest.mark.parametrize("kind", [Varlen, XFormers])
def test_gpu_back_ends_refuse_rules_before_any_work_and_single_precision(kind, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(attention, "find_spec", lambda module: module)
    name = kind.__name__
    build(attention=name.lower())
    with pytest.raises(
        ValueError, match=f"attention {name}: does not support this attention mask; 'sdpa'"
    ):
        build(attention=name.lower(), block_size=2)
    with pytest.raises(TypeError, match=r"got torch\.float32: needs bfloat16 or float16"):
        kind()(*heads(1, 4))

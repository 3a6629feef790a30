"""Kernels between levels: dense products, masses that underflow, bounds, samplers, memory, plain
values, refusals.
"""

import json
import math
from contextlib import contextmanager

import pytest
import torch
from cases import examples
from exact_bounds import PAIR, entropy
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from scipy.stats import norm
from test_memory import LiveBytes
from zoo.joints import follows

import ddlib as dd
from ddlib.contrib import Overshoot, Psi
from ddlib.hierarchies import Banded, Blur, Dense, Kernels, Soft, Sparse, Tree
from ddlib.hierarchies.maps import to_masks
from ddlib.processes import Hierarchical, Noisy
from ddlib.samplers import Ancestral, Confidence, Euler, FirstHitting, LeftToRight, Remask
from ddlib.schedules import Cosine, Linear
from ddlib.testing.oracle import exact_cavity, integrate_bound

F64 = torch.float64
MEMBERS = [[1.0, 0.0], [0.5, 0.5], [0.2, 0.8], [0.0, 1.0]]
SIMILARITY = [
    [4.0, 1.0, 0.0, -2.0],
    [1.0, 5.0, -1.0, 0.0],
    [0.0, -1.0, 6.0, 2.0],
    [-2.0, 0.0, 2.0, 4.0],
]
BLOCKS = st.sampled_from([0, 2**20])
FEW = [[0, 1], [1, 2], [2, 0], [0, 0]]
SAMPLERS = [
    Ancestral(),
    Remask(),
    FirstHitting(),
    Psi(0.7),
    Overshoot(),
    Confidence(),
    LeftToRight(),
    Euler(),
]
PROCESSES = {
    "blur": Hierarchical(Blur(4, [0.8]), Cosine()),
    "cyclic": Hierarchical(Blur(4, [0.5, 0.6], cyclic=True), [Linear(), Cosine(), Linear()]),
    "similarity": Hierarchical(Blur.from_similarity(SIMILARITY, [1.0, 3.0]), Linear()),
    "soft": Hierarchical(Soft(MEMBERS, speed=[2.0, 1.0]), Linear()),
    "sparse": Hierarchical(Soft({"index": FEW, "probability": [[0.6, 0.4]] * 4}), Linear()),
    "banded": Hierarchical(
        Kernels([Banded(4, [1, 2, 1]), Dense(MEMBERS)], [0.7, 1.3, 2.0]), Linear()
    ),
}
every_process = pytest.mark.parametrize("name", PROCESSES)


def randn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=F64)


@contextmanager
def in_blocks(limit):
    """Multiply kernels of at most this many entries as dense matrices, bands above it in blocks of
    3 states.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ddlib.hierarchies.sparse_kernels._DENSE", limit)
        patch.setattr("ddlib.hierarchies.sparse_kernels._BLOCK", 3)
        yield


@st.composite
def chains(draw):
    """Kernels that follow each other, of any kind."""
    size = draw(st.integers(2, 8))
    found = []
    for _ in range(draw(st.integers(1, 3))):
        above = draw(st.integers(1, size))
        width = draw(st.integers(1, 3))
        seed = draw(st.integers(0, 10**6))
        kind = draw(st.sampled_from(["dense", "sparse", "banded"]))
        if kind == "dense":
            found.append(Dense(randn(size, above, seed=seed).softmax(1)))
        elif kind == "sparse":
            index = (
                torch.arange(size)[:, None] * width + torch.arange(width)
            ) % above  # may repeat
            found.append(Sparse(index, randn(size, width, seed=seed).softmax(1), above))
        else:
            weights = randn(2 * draw(st.integers(0, (size - 1) // 2)) + 1, seed=seed).exp()
            found.append(Banded(size, weights, draw(st.booleans())))
        size = found[-1].num_parents
    return found


@settings(max_examples=examples(60), deadline=None)
@given(chains(), BLOCKS)
def test_kernels_and_their_products_act_as_dense_matrices(kernels, limit):
    with in_blocks(limit):
        hierarchy = Kernels([*kernels, Dense(torch.ones(kernels[-1].num_parents, 1))])
        for i in range(len(kernels)):
            dense = torch.eye(hierarchy.levels[i], dtype=F64)
            for j, edge in enumerate(kernels[i:], start=i + 1):
                dense = dense @ edge.matrix()
                kernel = hierarchy.between(i, j)
                child, parent = (torch.arange(size)[None] for size in dense.shape)
                probs = randn(2, 3, len(dense), seed=i).softmax(-1)
                grid = (torch.arange(500, dtype=F64) + 0.5) / 500
                drawn = kernel.sample(child.T.expand(-1, 500), grid.expand(len(dense), -1))
                entry = kernel.entry(child.T.expand(dense.shape), parent.expand(dense.shape))
                for found in (
                    kernel.matrix(),
                    kernel.row(child)[0],
                    kernel.column(parent)[0].T,
                    entry,
                ):
                    assert torch.allclose(found, dense, rtol=1e-12, atol=1e-12)
                for found in (kernel.push(probs), kernel.log_push(probs.log()).exp()):
                    assert torch.allclose(found, probs @ dense, rtol=1e-12, atol=1e-12)
                assert torch.allclose(
                    (drawn[..., None] == parent).double().mean(1), dense, atol=2 / 500
                )
                last = kernel.sample(child[0], torch.full((len(dense),), 1 - 2**-53, dtype=F64))
                assert bool((kernel.entry(child[0], last) > 0).all())


@settings(max_examples=examples(60), deadline=None)
@given(
    chains(),
    st.sampled_from([torch.float32, F64]),
    st.floats(0, 800),
    BLOCKS,
    st.integers(0, 10**6),
)
def test_log_push_is_exact_where_the_mass_underflows(kernels, dtype, depth, limit, seed):
    slack = 1e-12 if dtype == F64 else 2e-6
    for kernel in kernels:
        logits = (
            (-depth * randn(2, 3, kernel.num_children, seed=seed).sigmoid())
            .to(dtype)
            .requires_grad_()
        )
        exact_logits = logits.detach().double().requires_grad_()
        parent = torch.arange(6).reshape(2, 3) % kernel.num_parents
        with in_blocks(limit):
            found = kernel.log_push(logits)
            one = kernel.log_mass(logits, parent)
        exact = (exact_logits[..., None] + kernel.matrix().log()).logsumexp(-2)
        assert found.dtype == dtype and torch.allclose(
            found.double(), exact, rtol=slack, atol=4 * slack
        )
        assert torch.allclose(
            one, found.gather(-1, parent[..., None])[..., 0], rtol=slack, atol=4 * slack
        )
        for value in (found, exact):
            (value * randn(*found.shape, seed=seed)).sum().backward()
        assert torch.allclose(logits.grad.double(), exact_logits.grad, rtol=1e-3, atol=20 * slack)


@pytest.mark.parametrize("dtype", [torch.float32, F64])
@pytest.mark.parametrize(
    "kernel", [Dense(MEMBERS), Sparse([[0, 1]] * 4, MEMBERS)], ids=["dense", "sparse"]
)
def test_tokens_of_probability_zero_have_gradients(kernel, dtype):
    logits = torch.tensor(
        [[0.0, -torch.inf, -torch.inf, -torch.inf], [-800.0, -800.0, -900.0, 0.0]], dtype=dtype
    )
    found = kernel.log_push(logits.requires_grad_())
    assert found[0].tolist() == [0.0, -torch.inf]
    assert found[1].tolist() == pytest.approx([-800 + math.log(1.5), 0.0], abs=1e-4)
    found[found.isfinite()].sum().backward()
    assert bool(logits.grad.isfinite().all())


@pytest.mark.parametrize("mode", ["standard", "hard", "edges"])
def test_a_tree_given_as_dense_matrices_is_the_tree(mode):
    parents = [[0, 0, 1, 1, 2, 2], [0, 0, 1]]
    matrices = [torch.eye(max(row) + 1)[row] for row in parents]
    options = {"speed": [0.7, 1.3, 2.0]}
    tree, dense = (
        Hierarchical(each, Cosine())
        for each in (Tree(parents, **options), Kernels(matrices, **options))
    )
    x = torch.arange(6).repeat(40, 2)
    t = torch.linspace(0.01, 0.99, 40, dtype=F64)
    z = tree.sample(x, t, torch.Generator().manual_seed(0))
    logits = randn(40, 12, 6)
    p = logits.softmax(-1)
    options = {"mode": mode, "reduction": "none"}
    results = [
        (
            each.marginal(x, t),
            each.transition(0.2, 0.7),
            each.posterior(p, z, t, t / 2),
            each.reverse_rate(p, z, t),
            dd.nelbo(each, logits, x, z, t),
            dd.training_loss(each, logits, x, z, t, **options),
        )
        for each in (tree, dense)
    ]
    for exact, found in zip(*results, strict=True):
        assert torch.allclose(found, exact, rtol=1e-10, atol=1e-10)


def kl_over_descendants(hierarchy, logits, x, z):
    """KL of the descendants in each level of each state, (levels, positions), from dense matrices
    in float64.
    """
    eye = torch.eye(hierarchy.vocab_size, dtype=F64)
    found = []
    log_u = [logits.double().log_softmax(-1)]
    u_x = [eye]
    for edge in hierarchy.maps:
        log_u.append((log_u[-1][..., None] + edge.matrix().log()).logsumexp(-2))
        u_x.append(u_x[-1] @ edge.matrix())
    for i in range(hierarchy.depth):
        one = torch.zeros(len(x), dtype=F64)
        product = torch.eye(hierarchy.levels[i], dtype=F64)
        for j in range(i + 1, hierarchy.depth + 1):
            product = product @ hierarchy.maps[j - 1].matrix()
            here = hierarchy.level_of(z) == j
            column = torch.where(here[:, None], product.T[hierarchy.local(z, j)], 1.0)
            true = column * u_x[i][x]
            model = (column.log() + log_u[i]).log_softmax(-1)
            true = true / true.sum(-1, keepdim=True)
            terms = torch.where(true > 0, true * (true.log() - model), 0.0)
            one = torch.where(here, terms.sum(-1), one)
        found.append(one)
    return torch.stack(found)


@settings(max_examples=examples(60), deadline=None)
@given(
    chains(),
    st.sampled_from([torch.float32, F64]),
    st.sampled_from([1e-7, 0.5, 1 - 1e-7]),
    BLOCKS,
    st.booleans(),
    st.integers(0, 10**6),
)
def test_losses_are_those_of_dense_matrices(kernels, dtype, t, limit, compiled, seed):
    """In a compiled graph positions are not sorted by level."""
    process = Hierarchical(Kernels(kernels), Linear())
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(process.vocab_size, (3, 7), generator=generator)
    states = process.sample(
        x, torch.rand(3, generator=generator, dtype=F64), generator
    )  # of all levels, at any t
    logits = (3 * randn(3, 7, process.vocab_size, seed=seed)).to(dtype)
    time = torch.full((3,), t, dtype=F64)
    flat = logits.detach().double().flatten(0, 1).requires_grad_()
    logits.requires_grad_()
    kl = kl_over_descendants(process.hierarchy, flat, x.flatten(), states.flatten()).unflatten(
        1, x.shape
    )
    level = process.level_of(states)
    n = process.hierarchy.depth
    below = torch.where(level > 0, kl.gather(0, (level - 1).clamp_min(0)[None])[0], 0.0)
    above = torch.cat([kl[1:], torch.zeros_like(kl[:1])])
    jumps = process.level_posterior(level, time, time / 2)
    shares = process.edge_shares(states, time)
    with in_blocks(limit), pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.compiler.is_compiling", lambda: compiled)
        found = (
            process.weighted_divergence(logits, x, states, time)[1],
            process.edges_weighted_divergence(logits, x, states, time)[1],
            process.step_divergence(logits, x, states, time, time / 2),
        )
    steps = torch.where(torch.arange(n) < level[..., None], jumps[..., :-1], 0.0).movedim(-1, 0)
    sums = below, (shares.movedim(-1, 0) * (kl - above)).sum(0), (steps * kl).sum(0)
    cases = dict(zip(("standard", "edges", "step"), zip(found, sums, strict=True), strict=True))
    for name, (found, exact) in cases.items():
        slack = (1e-12 if dtype == F64 else 1e-5) * float(exact.detach().abs().max() + 1)
        assert found.dtype == dtype and torch.allclose(found.double(), exact, rtol=0, atol=slack), (
            name
        )
        grad, expected = (
            torch.autograd.grad(value.sum(), leaf, retain_graph=True)[0].flatten()
            for value, leaf in ((found, logits), (exact, flat))
        )
        assert torch.allclose(grad.double(), expected, rtol=0, atol=10 * slack), name


def test_rows_of_a_blur_are_gaussian_and_those_of_a_similarity_a_softmax():
    for edge, temperature in zip(
        Blur.from_similarity(SIMILARITY, [0.5, 2.0]).maps, (0.5, 2.0), strict=False
    ):
        assert torch.allclose(
            edge.matrix(),
            (torch.tensor(SIMILARITY, dtype=F64) / temperature).softmax(1),
            atol=1e-15,
        )
    blur = Blur(101, [2.0, 5.0])
    token = 50
    values = torch.arange(101, dtype=F64)
    for edge, width in zip(blur.maps, (2.0, math.sqrt(21)), strict=False):
        for child in (0, 3, token):  # at the ends normalised over the values that there are
            exact = torch.tensor(norm.pdf(values, child, width))
            assert torch.allclose(edge.row(torch.tensor(child)), exact / exact.sum(), atol=1e-8)
    far = blur.between(0, 2).row(torch.tensor(token))
    assert float(far @ (values - token) ** 2) == pytest.approx(25.0, rel=1e-6)


@pytest.mark.parametrize("widths", [[0.5, 1.3], [5.0, 13.0]])
def test_rows_of_a_cyclic_blur_are_circulant(widths):
    steps = widths[0], math.sqrt(widths[1] ** 2 - widths[0] ** 2)
    for edge, step in zip(Blur(40, widths, cyclic=True).maps, steps, strict=False):
        matrix = edge.matrix()
        turns = 40 * torch.arange(-4, 5)
        exact = torch.tensor(norm.pdf(torch.arange(40)[:, None] + turns, 0, step)).sum(1)
        assert torch.allclose(matrix[0], exact / exact.sum(), atol=1e-8)
        assert torch.allclose(matrix.roll((1, 1), (0, 1)), matrix, atol=1e-15) and torch.allclose(
            matrix, matrix.T
        )


@every_process
def test_the_bound_of_the_exact_denoiser_is_the_entropy(name):
    found = integrate_bound(PROCESSES[name], PAIR, exact_cavity(PROCESSES[name], PAIR), points=80)
    assert float(found) == pytest.approx(2 * entropy(PAIR), abs=1e-6)


@pytest.mark.parametrize("sampler", SAMPLERS, ids=lambda each: type(each).__name__)
@every_process
def test_samplers_keep_the_distribution_of_a_token(name, sampler):
    process = PROCESSES[name]
    truth = torch.tensor([0.45, 0.10, 0.25, 0.20], dtype=F64)
    steps = 400 if isinstance(sampler, Euler) else 12
    generator = torch.Generator().manual_seed(1)
    tokens = dd.sample(
        process, exact_cavity(process, truth), (3000, 1), sampler, steps, generator=generator
    )
    assert follows(tokens, truth)


@pytest.mark.parametrize("scale", [1.0, 40.0])
def test_a_loss_builds_nothing_over_states(scale):
    """Three blurred levels have 1,025 states: tensors have an entry for each position and token, or
    4 million.
    """
    process = Hierarchical(Blur(256, [2.0, 6.0, 20.0]), Linear())
    x = torch.randint(256, (4, 64))
    t = torch.rand(4, dtype=F64)
    z = process.sample(x, t)
    logits = (scale * torch.randn(4, 64, 256)).requires_grad_()
    for mode in ("standard", "edges"):
        with LiveBytes() as recorder:
            dd.training_loss(process, logits, x, z, t, mode=mode).backward()
        assert recorder.largest <= (
            2**22 if scale > 1 else max(logits.numel(), 256**2)
        )  # where masses underflow


@pytest.mark.parametrize("masks", [1, 3])
def test_memberships_of_a_large_vocabulary_are_not_built_densely(masks):
    """The product with the edge to the masks has equal rows, so no matrix of 5,000 times 1,000
    entries is needed.
    """
    index = torch.arange(10_000).view(-1, 2) % 1000
    probability = torch.full((5000, 2), 0.5)
    with LiveBytes() as recorder:
        hierarchy = Kernels([Sparse(index, probability), to_masks(1000, masks)])
    assert recorder.largest < 2**17
    assert torch.allclose(
        hierarchy.between(0, 2).row(torch.arange(5)), torch.full((5, masks), 1 / masks).double()
    )


@pytest.mark.parametrize("name", PROCESSES)
def test_plain_values_and_states_give_the_same_process(name):
    process = PROCESSES[name]
    values = dd.values(PROCESSES[name])
    again = dd.build("processes", json.loads(json.dumps(values)))
    assert dd.values(again) == values and type(again.hierarchy) is type(process.hierarchy)
    again.load_state_dict(process.state_dict())
    assert torch.equal(again.transition(0.2, 0.7), process.transition(0.2, 0.7))


def test_kernels_are_built_from_nested_lists_and_mappings():
    band = {"size": 4, "weights": [1, 2, 1]}
    sparse = {"index": [[0], [1], [1], [0]], "probability": [[1]] * 4}
    given = {
        "kind": "ddlib.hierarchies:Kernels",
        "kernels": [band, sparse, [[0.5, 0.5], [0.1, 0.9]]],
    }
    assert [type(edge).__name__ for edge in dd.build("hierarchies", given).maps] == [
        "Banded",
        "Sparse",
        "Dense",
        "Map",
    ]


@pytest.mark.usefixtures("compilable")
@pytest.mark.parametrize("name", ["banded", "sparse"])
def test_a_loss_compiles_as_one_graph(name):
    process = PROCESSES[name]
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(4, (2, 5), generator=generator)
    t = torch.tensor([0.3, 0.9], dtype=F64)
    arguments = randn(2, 5, 4), x, process.sample(x, t, generator), t
    compiled = torch.compile(process.weighted_divergence, backend="eager", fullgraph=True)
    for found, exact in zip(
        compiled(*arguments), process.weighted_divergence(*arguments), strict=True
    ):
        assert torch.allclose(found, exact, rtol=1e-12, atol=1e-12)


def test_a_matrix_with_one_parent_for_each_child_is_verified():
    """It is right, and slower than a map of parents."""
    assert dd.verify(Kernels([Dense(MEMBERS), [[1, 0], [0, 1]]])).ok


def test_a_blur_that_changes_next_to_nothing_is_verified():
    assert dd.verify(Hierarchical(Blur(5, [0.1, 0.15, 0.2]), Linear())).ok


@pytest.mark.parametrize(
    "hierarchy", [Blur(5, [1.0]), Soft(MEMBERS), Kernels.examples()[1]], ids=str
)
def test_tokens_can_be_wrong_below_any_kernel(hierarchy):
    assert dd.verify(Noisy(hierarchy, Linear(), 0.3)).ok


test_refusals = refuses(
    r"""
    Dense([[0.5, 0.4]]) | ValueError | matrix row 0 sums to 0.9, must sum to 1
    Dense([[1.5, -0.5]]) | ValueError | matrix row 0 holds -0.5, must be at least 0
    Dense([[1.0, 0.0]]) | ValueError | gives state \[1\] of the upper level no child
    Sparse([[0, 1]], [[1.0]]) | ValueError | must both be \(children, k\)
    Sparse([[0.7, 1.2]], [[0.5, 0.5]]) | TypeError | index has dtype torch.float32, must be integers
    Banded(3, [1] * 7) | ValueError | must be \(n,\) with n odd and at most 5 for 3 states
    Banded(3, [1] * 5, cyclic=True) | ValueError | with n odd and at most 3 for 3 states
    Banded(4, [1, 1]) | ValueError | weights has shape \(2,\), must be \(n,\) with n odd
    Banded(4, [1, -1, 1]) | ValueError | weights holds -1.0
    Kernels([Dense(MEMBERS), Banded(3, [1])]) | ValueError
        | maps\[0\] leads to 2 clusters, maps\[1\] starts from 3
    Kernels(Dense(MEMBERS)) | TypeError | kernels is a Dense, must be a list
    Kernels([[[0.5, 0.4]]]) | ValueError | kernels\[0\]: matrix row 0 sums to 0.9
    Blur(1, [1.0]) | ValueError | size is 1
    Blur(5, [0.05]) | ValueError | widths\[0\] is 0.05, must be a width of at least 0.1
    Blur(5, [1.0, 1.0]) | ValueError | widths\[1\] is 1, must be above widths\[0\] = 1
    Blur.from_similarity([[1.0, 2.0]], [1.0]) | ValueError
        | matrix has shape \(1, 2\), must be square
    Blur.from_similarity(SIMILARITY, [2.0, 1.0]) | ValueError
        | temperatures\[1\] is 1, must be above
    dd.Children(Blur(5, [1.0])) | ValueError | must have one parent for each state
    """
)


@every_process
@pytest.mark.parametrize("blocks", [0, 2**20])
def test_an_autocast_region_changes_no_loss(name, blocks, monkeypatch):
    """It multiplied probabilities in bfloat16."""
    monkeypatch.setattr("ddlib.hierarchies.sparse_kernels._DENSE", blocks)
    process = PROCESSES[name]
    seeded = torch.Generator().manual_seed(0)
    x = torch.randint(process.vocab_size, (64, 4), generator=seeded)
    t = torch.rand(64, generator=seeded) * 0.98 + 0.01
    z = process.sample(x, t, seeded)
    logits = torch.zeros(64, 4, process.vocab_size).scatter(-1, x[..., None], 9.0)
    loss = dd.training_loss(process, logits, x, z, t, reduction="none")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = dd.training_loss(process, logits, x, z, t, reduction="none")
    assert torch.equal(inside, loss)

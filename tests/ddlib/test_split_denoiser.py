"""A denoiser in two halves draws from the distribution of the whole.

Each jump computes only the logits it needs.
"""

import itertools

import pytest
import torch
from refusals import refuses
from zoo.calls import context, generate, seeded
from zoo.joints import PAIR_OF_FOUR
from zoo.networks import D, Halves, plain
from zoo.processes import F64, FOUR_TOKENS, LEVELS, V
from zoo.samplers import SAMPLERS, every_pair
from zoo.trees import PARENTS

import ddlib as dd
from ddlib.hierarchies import Soft, Tree
from ddlib.hierarchies.base import descendant_logits
from ddlib.processes import Hierarchical, Masked
from ddlib.samplers import Ancestral, Confidence, FirstHitting
from ddlib.samplers.state_draws import child_log_probs
from ddlib.schedules import Cosine
from ddlib.testing.oracle import exact_cavity
from ddlib.typing import SparseDenoiser, SplitDenoiser, implements
from ddlib_models import DiT
from recipes.engine.model_protocols import HasBlocks


class ExactHalves:
    """The exact denoiser of PAIR_OF_FOUR: its features are its logits, its output layer is the
    identity.
    """

    def __init__(self, process):
        self.features = exact_cavity(process, PAIR_OF_FOUR)

    def output_weights(self):
        return torch.eye(4, dtype=F64), None

    def __call__(self, z, t):
        raise AssertionError("the whole is not needed")


def chi_square(counts, expected, freedom):
    """The statistic in units of its standard deviation above its mean."""
    return (float(((counts - expected) ** 2 / expected).sum()) - freedom) / (2 * freedom) ** 0.5


def pairs(tokens):
    return torch.bincount(4 * tokens[:, 0] + tokens[:, 1], minlength=16).double()


def test_a_network_that_computes_in_two_parts_is_found_by_its_attributes():
    halves = Halves(LEVELS["masked"])
    network = DiT(7, V, 8, 1, 2)
    assert implements(halves, SplitDenoiser) and not implements(plain(halves), SplitDenoiser)
    assert implements(network, SparseDenoiser) and not implements(halves, SparseDenoiser)
    # attributes that isinstance ignores from Python 3.12 on
    assert implements(torch.compile(network), SplitDenoiser) and implements(network, HasBlocks)
    halves.features = None
    assert not implements(halves, SplitDenoiser)


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", LEVELS)
def test_each_jump_is_shown_the_columns_that_it_needs(name, force):
    """The tokens under the state, where the logits of all others do not matter."""
    process = LEVELS[name]
    generator = seeded(1)
    now = torch.tensor([0.8], dtype=F64)
    then = torch.tensor([0.4], dtype=F64)
    logits = torch.randn(1, 1, V, generator=generator, dtype=F64)
    for state in range(V, process.num_states):
        z = torch.tensor([[state]])
        for target in range(int(process.level_of(z))):
            level = int(process.level_of(z))
            below = process.hierarchy.between(0, level).parents == process.hierarchy.local(
                z[0, 0], level
            )
            tokens = process.hierarchy.under(state)
            assert tokens.tolist() == below.nonzero()[:, 0].tolist()
            if not process.subtree_logits_suffice(level, target, force):
                continue
            hidden = torch.full_like(logits, -torch.inf)
            hidden[..., tokens] = logits[..., tokens]
            drawn = [
                process.sample_given_level(
                    v, z, now, then, torch.tensor([[target]]), seeded(seed), force=force
                )
                for v in (logits, hidden)
                for seed in range(20)
            ]
            assert drawn[:20] == drawn[20:]


def test_a_closed_cluster_needs_the_logits_of_its_own_tokens_only():
    def suffices(name, *levels):
        return LEVELS[name].subtree_logits_suffice(*levels)

    assert {
        name
        for name, process in LEVELS.items()
        if process.hierarchy.depth > 1 and suffices(name, 1, 0)
    } == {"hdlm", "levels", "levels-xi-above", "geometric"}
    assert suffices("hdlm", 2, 1) and suffices("levels", 2, 1)
    assert suffices("hdlm-xi", 2, 0) and suffices("levels-xi", 2, 0, True)
    assert not any(
        suffices(*levels) for levels in [("hdlm", 1, 1), ("hdlm-xi", 2, 1), ("levels-xi", 2, 0)]
    )
    assert not suffices("levels-xi", 2, 1, True)  # the cluster's mass is that of all tokens
    for name, state, under in [
        ("hdlm", V + 1, [2, 3]),
        ("hdlm", 4, [4]),
        ("levels", V + 4, [0, 1, 5]),
    ]:
        assert LEVELS[name].hierarchy.under(state).tolist() == under


SEVERAL_MASKS = {
    "flat": Masked(V, Cosine(), masks=3),
    "tree": Hierarchical(Tree([PARENTS], masks=3), Cosine()),
    "tree-xi": Hierarchical(Tree([PARENTS], xi=0.7, masks=3), Cosine()),
}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("sampler", [Ancestral, FirstHitting, Confidence])
@pytest.mark.parametrize("name", SEVERAL_MASKS)
def test_each_of_several_masks_needs_the_logits_of_all_tokens(name, sampler, force):
    process = SEVERAL_MASKS[name]
    sampler = sampler(force_transition=force)
    halves = Halves(process)
    drawn = generate(process, halves, sampler, shape=(8, 5))
    assert torch.equal(drawn, generate(process, plain(halves), sampler, shape=(8, 5)))
    for mask in range(process.num_states - 3, process.num_states):
        assert process.hierarchy.under(mask).tolist() == list(range(V))


@pytest.mark.parametrize("split", [False, True])
def test_child_logits_serve_each_of_several_masks(split):
    """Masked diffusion with child logits of a tree with one mask."""
    process = SEVERAL_MASKS["flat"]
    children = dd.Children(dd.hierarchies.Flat(V))
    halves = Halves(process)
    denoiser = halves if split else plain(halves)
    drawn = generate(process, denoiser, parameterization=children)
    assert torch.equal(drawn, generate(process, plain(halves)))


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.statistical
@pytest.mark.parametrize("name", FOUR_TOKENS)
@pytest.mark.parametrize("sampler", ["ancestral", "first"])
def test_halves_follow_the_joint_distribution_and_that_of_the_plain_sampler(name, sampler):
    """One sample against the distribution, two against each other.

    Both by five standard deviations of chi-square.
    """
    process = FOUR_TOKENS[name]
    sampler = SAMPLERS[sampler]
    n = 2500
    steps = 2 * process.hierarchy.depth if isinstance(sampler, FirstHitting) else 80
    split, whole = (
        pairs(dd.sample(process, denoiser, (n, 2), sampler, steps, generator=seeded(seed)))
        for seed, denoiser in enumerate(
            (ExactHalves(process), exact_cavity(process, PAIR_OF_FOUR)), start=1
        )
    )
    assert chi_square(split, n * PAIR_OF_FOUR.flatten(), 15) < 5
    assert chi_square(split, (split + whole) / 2, 15) < 5 and not torch.equal(split, whole)


@pytest.mark.statistical
def test_the_two_sample_test_detects_a_wrong_distribution():
    process = FOUR_TOKENS["masked"]
    n = 4000
    few, many = (
        pairs(dd.sample(process, ExactHalves(process), (n, 2), steps=k, generator=seeded(k)))
        for k in (1, 120)
    )
    assert chi_square(few, (few + many) / 2, 15) > 20


@pytest.mark.statistical
def test_positions_that_jump_together_are_drawn_apart():
    """Two tokens, each uniform, drawn in one step.

    Each pair is as frequent as any; by five standard deviations.
    """
    process = LEVELS["masked"]
    n = 4000
    halves = Halves(process)
    halves.weight.zero_()
    halves.bias.zero_()
    tokens = generate(process, halves, shape=(n, 2), steps=1)
    counts = torch.bincount(V * tokens[:, 0] + tokens[:, 1], minlength=V * V).double()
    assert chi_square(counts, n / V**2, V**2 - 1) < 5


def test_a_dit_is_evaluated_by_its_features_and_draws_the_tokens_of_its_logits():
    process = LEVELS["levels"]
    torch.manual_seed(0)
    model = DiT(process.num_states, V, 16, 2, 2, pad_to=8).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    for sampler in (Ancestral(), FirstHitting()):
        drawn = generate(process, model, sampler, shape=(3, 6), steps=24)
        assert torch.equal(
            drawn, generate(process, lambda z, t: model(z, t), sampler, shape=(3, 6), steps=24)
        )
        assert len(drawn.unique()) > 2
    model.forward = None
    generate(process, model, shape=(3, 6), steps=24)


class Sparse(Halves):
    """Halves that can leave out positions; records the arguments of its calls."""

    def __init__(self, process):
        super().__init__(process)
        self.calls_at = []

    def features_at(self, z, t, positions):
        self.calls_at.append((z, positions))
        return self.features(z, t).take_along_dim(positions[..., None], 1)


@pytest.mark.parametrize("compact", [False, True])
@every_pair
def test_sparse_features_are_computed_at_jumping_positions_only(name, sampler, compact):
    """The tokens of the plain denoiser, and no sequence is evaluated at more positions than the
    most that jump.
    """
    process = LEVELS[name]
    sparse = Sparse(process)
    halves = Halves(process)
    states = []
    drawn = generate(
        process,
        sparse,
        sampler,
        controls=[*([] if compact else [dd.controls.WholeBatch()])],
        on_step=lambda k, t, z: states.append(z.clone()),
    )
    assert torch.equal(
        drawn,
        generate(
            process, halves, sampler, controls=[*([] if compact else [dd.controls.WholeBatch()])]
        ),
    )
    assert sparse.calls == len(sparse.calls_at) == halves.calls
    assert all(
        len(row.unique()) == len(row) for _, positions in sparse.calls_at for row in positions
    )
    moved = [int((a != b).sum(1).max()) for a, b in itertools.pairwise(states)]
    if all(
        edge.spread is None for edge in process.hierarchy.maps
    ):  # then every jump changes the state
        assert [positions.shape[1] for _, positions in sparse.calls_at] == [n for n in moved if n]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_halves_in_other_precisions_are_raised_not_drawn_from(dtype):
    for process in LEVELS.values():
        halves = Halves(process)
        halves.weight, halves.bias, features = (
            halves.weight.to(dtype),
            halves.bias.to(dtype),
            halves.features,
        )
        halves.features = lambda z, t, f=features: f(z, t).to(dtype)
        tokens = generate(process, halves)
        assert bool((tokens < V).all()) and len(tokens.unique()) > 1
        with torch.autocast("cpu", torch.bfloat16):
            assert bool((generate(process, halves, steps=2) < V).all())


def drawn_by(weight=(V, D), bias=V, features=D):
    """Tokens of halves whose weight, bias and features have these sizes."""
    halves = Halves(LEVELS["masked"])
    halves.weight, halves.bias = torch.zeros(weight), None if bias is None else torch.zeros(bias)
    halves.features = lambda z, t: torch.zeros(*z.shape, features)
    return generate(LEVELS["masked"], halves, steps=1)


test_halves_that_do_not_fit_are_refused = refuses(r"""
    drawn_by((7, 5), None) | ValueError | denoiser's weight has shape \(7, 5\), must be \(V, D\)
    drawn_by(bias=7) | ValueError | denoiser's bias has shape \(7,\), must be \(V,\)
    drawn_by(features=6) | ValueError | features has shape \(4, 5, 6\), must be \(B, L, D\)
""")


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_a_broken_half_is_refused(bad):
    halves = Halves(LEVELS["hdlm"])
    halves.table[:] = bad
    with pytest.raises(ValueError, match="NaN"):
        generate(LEVELS["hdlm"], halves)


@pytest.mark.parametrize(
    "hierarchy", [Soft([[1.0, 0.0], [0.5, 0.5], [0.2, 0.8], [0.0, 1.0]]), Tree([[0, 0, 1, 1]], 0.7)]
)
@pytest.mark.parametrize("force", [False, True])
def test_scores_are_those_of_the_distributions_that_are_drawn_from(hierarchy, force):
    process = Hierarchical(hierarchy, Cosine())
    z = torch.tensor([[4, 5, 6]])
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=F64).log()
    run = context(process, lambda z, t: logits.expand(*z.shape, 4), z.shape)
    (part,) = run.network.at(
        z, torch.tensor([0.5], dtype=F64), torch.ones_like(z, dtype=torch.bool)
    )
    for rows, _, members, log_probs in child_log_probs(part, torch.zeros_like(part.z), force):
        level = int(process.level_of(part.z[None, rows[:1]]))
        drawn = descendant_logits(
            process.hierarchy, logits.expand(len(rows), 4), part.z[rows], level, 0, force
        ).softmax(-1)
        found = torch.zeros_like(drawn).scatter_add(1, members, log_probs.exp())
        torch.testing.assert_close(found, drawn)

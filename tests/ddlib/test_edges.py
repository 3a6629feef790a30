"""Losses on all edges below a state: the mathematics by enumeration, then the code."""

import itertools

import pytest
import torch
from cases import examples
from fused_loss_inputs import NESTED, agree, agree_under_autocast, batch, close, logits_of
from hypothesis import given, settings
from hypothesis import strategies as st
from zoo.joints import PAIR_OF_FOUR

import ddlib as dd
from ddlib.hierarchies import Flat, Tree
from ddlib.processes import Hierarchical
from ddlib.testing import strategies
from ddlib.testing.oracle import exact_cavity, tanh_sinh
from ddlib.verification.claims.objective import edges as claims
from ddlib.verification.framework.inputs import at, pairs

F64 = torch.float64
TREES = {
    "two": dd.presets.hdlm([0, 0, 1, 1], gamma=0.7),
    "two-xi": dd.presets.hdlm([0, 0, 1, 1], gamma=2.0, xi=0.8),
    "three-xi": dd.presets.hdlm_levels(
        [[0, 0, 1, 2], [0, 1, 1]], xi=[0.9, 0.7], speed=[2.0, 0.5, 1.0]
    ),
}
TIMES = (1e-3, 0.2, 0.6, 0.95)


def every(process, joint=PAIR_OF_FOUR):
    """All texts of two tokens with all states of theirs."""
    tokens = range(joint.shape[0])
    states = range(process.num_states)
    x = torch.tensor(list(itertools.product(tokens, tokens))).repeat_interleave(len(states) ** 2, 0)
    z = torch.tensor(list(itertools.product(states, states))).repeat(len(tokens) ** 2, 1)
    return x, z


def mean(process, denoiser, t, loss):
    """Exact mean of a loss per sequence, over two dependent tokens and their noise at t."""
    x, z = every(process)
    when = at(t, len(x))
    mass = PAIR_OF_FOUR[x[:, 0], x[:, 1]] * process.likelihood(z, x, when).prod(1)
    kept = mass > 0
    x = x[kept]
    z = z[kept]
    when = when[kept]
    return float((mass[kept, None] * loss(process, denoiser(z, when), x, z, when)).sum())


def on_edges(weights=None):
    return lambda *given: dd.training_loss(*given, mode=weights or "edges", reduction="none")


@pytest.mark.parametrize("process", TREES.values(), ids=TREES)
def test_for_the_best_network_the_mean_is_the_bound_at_every_time(process):
    best = exact_cavity(process, PAIR_OF_FOUR)
    for t in TIMES:
        bound = mean(process, best, t, dd.nelbo)
        assert mean(process, best, t, on_edges()) == pytest.approx(bound, rel=1e-10)


def looking(process, seed):
    """A network that looks at the token itself: a table over both states."""
    noise = torch.Generator().manual_seed(seed)
    table = torch.randn(process.num_states, process.num_states, 4, generator=noise, dtype=F64)
    return lambda z, t: torch.stack([table[z[:, 0], z[:, 1]], table[z[:, 1], z[:, 0]]], 1)


def climbing(process, denoiser, t):
    """Bound per sequence of the model that lets a token climb with a_i / (a_j + ... + a_n) before
    its evaluation.
    """
    tree = process.hierarchy
    when = at(t)
    share = process.occupancies(when)[0]
    flux = share * process.weights(when)[0]
    x, z = every(process)
    total = 0.0
    for position in (0, 1):
        other = 1 - position
        chance = PAIR_OF_FOUR[x[:, 0], x[:, 1]] * process.likelihood(z, x, at(t, len(x)))[:, other]
        for j in range(1, tree.depth + 1):
            here = (process.level_of(z)[:, position] == j) & (chance > 0)
            token = x[here, position]
            state = z[here, position]
            context = z[here, other]
            u = tree.between(0, j).entry(token, tree.local(state, j))
            possible = u > 0
            token, state, context = (each[possible] for each in (token, state, context))
            mass = (chance[here] * u)[possible]
            local = tree.local(state, j)
            probs = torch.zeros(len(token), tree.levels[j - 1], dtype=F64)
            for i in range(j, tree.depth + 1):
                for member in range(tree.levels[i]):
                    same = torch.full_like(local, member)
                    climb = (
                        tree.between(j, i).entry(local, same)
                        if i > j
                        else (local == member).double()
                    )
                    pair = same + tree.offsets[i], context
                    both = torch.stack(pair if position == 0 else pair[::-1], 1)
                    tokens = denoiser(both, at(t, len(both)))[:, position].softmax(-1)
                    u_p = tree.level_probs(tokens)[j - 1]
                    joint = tree.between(j - 1, j).column(local) * u_p
                    pi = joint / joint.sum(-1, keepdim=True)
                    probs += (share[i] / share[j:].sum() * climb)[:, None] * pi
            lower = (
                torch.eye(tree.levels[0], dtype=F64) if j == 1 else tree.between(0, j - 1).matrix()
            )
            truth = tree.between(j - 1, j).column(local) * lower[token]
            truth = truth / truth.sum(-1, keepdim=True)
            kl = (torch.xlogy(truth, truth) - torch.xlogy(truth, probs)).sum(-1)
            total += float((flux[j] * mass * kl).sum())
    return total


@pytest.mark.parametrize("name", TREES)
def test_a_network_that_looks_at_the_token_itself_is_bounded_as_one_that_climbs_first(name):
    """For such a network the loss is neither above nor below its own bound, but above that of
    another model.
    """
    process = TREES[name]
    above = []
    for seed in range(3):
        network = looking(process, seed)
        for t in (0.2, 0.8):
            loss = mean(process, network, t, on_edges())
            assert loss >= climbing(process, network, t) - 1e-12
            above.append(loss > mean(process, network, t, dd.nelbo))
    assert any(above) and not all(above)
    best = exact_cavity(process, PAIR_OF_FOUR)  # which does not look: all three are one
    assert climbing(process, best, 0.4) == pytest.approx(
        mean(process, best, 0.4, dd.nelbo), rel=1e-9
    )


@pytest.mark.parametrize("name", TREES)
def test_edge_weights_that_sum_to_one_over_time_are_an_upper_bound_of_the_best_network(name):
    """The weight comes later, with less evidence in the context: at least the bound over all times,
    not at each.
    """
    process = TREES[name]
    (nodes, weights) = tanh_sinh(40)
    shared = [1 / j for j in range(process.hierarchy.depth, 0, -1)]
    best = exact_cavity(process, PAIR_OF_FOUR)
    losses, bounds = (
        torch.tensor([mean(process, best, float(t), loss) for t in nodes], dtype=F64)
        for loss in (on_edges(shared), dd.nelbo)
    )
    total = float(weights @ losses)
    bound = float(weights @ bounds)
    entropy = -float(torch.xlogy(PAIR_OF_FOUR, PAIR_OF_FOUR).sum())
    assert bound == pytest.approx(entropy, rel=1e-3) and total > bound + 1e-3
    assert (losses < bounds).any()


@settings(max_examples=examples(24))
@given(strategies.hierarchies(), strategies.exact_schedules(), strategies.times, st.integers(0, 99))
def test_drawn_hierarchies(hierarchy, schedule, t, seed):
    """The mean is the bound's, all edges give the token's probability, weights of at least 1 at
    least the bound.
    """
    process = Hierarchical(hierarchy, schedule)
    for claim in (claims._mean, claims._way):
        for found in claim(process, {"t": t, "distribution": seed}):
            assert ((found.got - found.expected).abs() <= found.allowed).all(), found.quantity


@settings(max_examples=examples(20))
@given(
    strategies.hierarchies(max_depth=4),
    strategies.exact_schedules(),
    st.floats(0.02, 0.98),
    st.integers(0, 99),
)
def test_drawn_hierarchies_from_hidden_states(hierarchy, schedule, t, seed):
    process = Hierarchical(hierarchy, schedule)
    for found in claims._fused_loss(process, {"t": t, "distribution": seed}):
        assert ((found.got - found.expected).abs() <= found.allowed).all(), found.quantity


@settings(max_examples=examples(20))
@given(strategies.hierarchies(), strategies.times)
def test_shares_keep_the_weight_of_each_edge_at_every_time(hierarchy, t):
    process = Hierarchical(hierarchy, dd.schedules.Linear())
    z = torch.tensor([hierarchy.offsets])
    when = at(t)
    share = process.occupancies(when)
    weight = process.weights(when)
    shares = process.edge_shares(z, when)[0]
    assert (shares.triu(0)[: hierarchy.depth] == 0).all() and (shares >= 0).all()
    each = (share[0] * weight[0])[:, None] * shares
    assert torch.allclose(each.sum(0), (share * weight)[0, 1:], rtol=1e-9, atol=1e-300)
    assert torch.allclose(shares[-1, -1], torch.ones((), dtype=F64))


def test_hard_mode_is_all_edges_at_full_weight_with_one_level_of_clusters():
    for process in (
        dd.presets.hdlm([0, 0, 1, 1, 2, 3], gamma=2.0),
        dd.presets.mdlm(6),
        TREES["two-xi"],
    ):
        layer, noisy = batch(process)
        logits = logits_of(layer)
        ones = [1.0] * process.hierarchy.depth
        hard = dd.training_loss(process, logits, *noisy, mode="hard", reduction="none")
        assert torch.allclose(hard, on_edges(ones)(process, logits, *noisy), rtol=1e-10)


def test_hard_mode_of_a_posterior_is_all_edges_at_full_weight_at_any_depth():
    process = dd.presets.hdlm_levels(NESTED)
    layer, noisy = batch(process)
    logits = logits_of(layer)
    both = [
        dd.training_loss(
            process, logits, *noisy, parameterization="posterior", reduction="none", **how
        )
        for how in (dict(mode="hard"), dict(mode=[1.0] * 4))
    ]
    assert torch.allclose(*both, rtol=1e-10)
    cavity = dd.training_loss(process, logits, *noisy, mode="hard", reduction="none")
    between = (process.level_of(noisy[1]) > 1) & (process.level_of(noisy[1]) < 4)
    assert (
        cavity[between] > both[1][between] + 1e-6
    ).any()  # for a cavity it needs edges above the state too


NOISE = {
    "levels": dd.presets.hdlm_levels(NESTED, speed=[1.0, 2.0, 0.5, 1.5]),
    "hdlm": dd.presets.hdlm(NESTED[0]),
    "hdlm-xi": dd.presets.hdlm(NESTED[0], xi=0.8),
    "xi-above": dd.presets.hdlm_levels(NESTED, xi=[1.0, 0.8, 1.0]),
    "xi-below": dd.presets.hdlm_levels(NESTED, xi=[0.7, 1.0, 1.0]),
    "masked": dd.presets.mdlm(8),
    "coarse": dd.presets.hdlm([0, 0, 1, 1, 1, 0, 0, 0]),  # none of the tree's levels
    "second": dd.presets.hdlm([0, 0, 1, 1, 1, 0, 0, 2]),  # the second level of the tree
}
MEANINGS = {"cavity": "cavity", "posterior": "posterior"}
MEANINGS |= {
    "children": dd.Children(Tree(NESTED)),
    "children, posterior": dd.Children(Tree(NESTED), "posterior"),
}
MEANINGS |= {"flat": dd.Children(Flat(8))}
CASES = list(itertools.product(NOISE, MEANINGS))


@pytest.mark.parametrize(("noise", "meaning"), CASES)
def test_every_option_of_the_training_loss(noise, meaning):
    process = NOISE[noise]
    meaning = MEANINGS[meaning]
    tree = None if isinstance(meaning, str) else meaning.tree
    layer, noisy = batch(process, tree, rows=6, length=4)
    depth = process.hierarchy.depth
    mask = torch.rand(noisy[0].shape, generator=torch.Generator().manual_seed(2)) < 0.6
    given = dict(parameterization=meaning, mask=mask)
    for weights in (None, [0.3 + j for j in range(depth)], [0.0] * (depth - 1) + [1.0]):
        rule = dd.weightings.PerLevel([0.5 + i for i in range(depth)], dd.weightings.Clip(2.0))
        options = given | dict(mode=weights or "edges", weighting=rule)
        for reduction in ("mean", "none"):
            agree(process, layer, noisy, **options, reduction=reduction, chunk=19)


@pytest.mark.parametrize("meaning", ["cavity", "posterior"])
def test_clusters_of_very_different_sizes(meaning):
    """One cluster has half of the tokens, another has one, at three levels of clusters."""
    first = torch.cat([torch.zeros(300), torch.arange(1, 61).repeat_interleave(5)]).long()[:599]
    process = dd.presets.hdlm_levels(
        [first, torch.arange(61) % 7, torch.arange(7) % 2], speed=[1.0, 2.0, 0.5, 1.0]
    )
    layer, noisy = batch(process, rows=9, length=31)
    for weights, chunk in ((None, None), ([1.0, 0.5, 0.0, 2.0], 997)):
        agree(
            process,
            layer,
            noisy,
            mode=weights or "edges",
            parameterization=meaning,
            chunk=chunk,
        )


def test_gradients_are_those_of_finite_differences():
    for process in TREES.values():
        x, z, t = pairs(process, 0.6, 2)
        logits = torch.randn(
            *x.shape, 4, dtype=F64, generator=torch.Generator().manual_seed(0)
        ).requires_grad_()
        assert torch.autograd.gradcheck(
            lambda v, p=process, a=(x, z, t): on_edges()(p, v, *a), logits, atol=1e-6
        )


def test_under_autocast_the_gradients_stay_float32():
    process = NOISE["levels"]
    tree = Tree(NESTED)
    agree_under_autocast(
        process, *batch(process, tree, rows=40), parameterization=dd.Children(tree), mode="edges"
    )


def test_a_token_needs_the_sibling_logits_on_its_path_only():
    process = NOISE["levels"]
    tree = Tree(NESTED)
    layer, (x, z, t) = batch(process, tree, rows=60)
    for state in range(process.num_states):
        here = z == state
        if not here.any():
            continue
        given = dict(mode="edges", parameterization=dd.Children(tree), reduction="none")
        loss = dd.training_loss(process, dd.Hidden(*layer[:2]), x, z, t, **given)[here].sum()
        used = torch.autograd.grad(loss, layer[1])[0].abs().sum(1) > 0
        level = int(process.level_of(torch.tensor([[state]])))
        wanted = torch.zeros(tree.num_states - 1, dtype=torch.bool)
        for token in x[here].unique():
            for at_level in range(level):
                families = dd.Children(tree).families(at_level)
                child = token if at_level == 0 else tree.between(0, at_level).parents[token]
                low, high = families.bounds[int(families.parents[child]) :][:2]
                wanted[families.columns[low:high]] = 1
        assert not (used & ~wanted).any()
        assert used.any() or level < process.hierarchy.depth  # an only child is certain


class Careful(Hierarchical):
    """A hierarchy whose losses on all edges are its own."""

    def edges_weighted_divergence(self, logits, x, z, t, edge_weights=None):
        weight, divergence = super().edges_weighted_divergence(logits, x, z, t, edge_weights)
        return weight, 3 * divergence


def test_a_custom_process_has_its_edges():
    process = Careful(Tree(NESTED[:1]), dd.schedules.Linear())
    layer, noisy = batch(process)
    plain = dd.training_loss(process, logits_of(layer), *noisy, mode="edges")
    ours = dd.training_loss(process, dd.Hidden(*layer[:2], layer[2]), *noisy, mode="edges")
    close([ours], [plain])
    theirs = Hierarchical(process.hierarchy, process.schedule)
    close([plain], [3 * dd.training_loss(theirs, logits_of(layer), *noisy, mode="edges")])

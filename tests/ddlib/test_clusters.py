"""Semantic clustering: bounds that hold, an objective that falls, nested levels, fingerprints of
tokenizers.
"""

import json
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from cases import examples
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from refusals import refuses
from scipy.optimize import linear_sum_assignment
from sklearn.cluster import KMeans

import ddlib as dd
from ddlib.hierarchies import (
    Tree,
    csv_parents,
    load_clusters,
    random_parents,
    save_clusters,
    semantic_clusters,
    table_parents,
)
from ddlib.hierarchies.clusters import Clusters
from ddlib.hierarchies.clusters.kmeans import Points, lloyd, seeds
from ddlib.hierarchies.clusters.sizes import bounded_assignment
from ddlib.vocabulary import fingerprint

VOCABULARY = {"cat": 0, "dog": 1, "ivy": 2, "oak": 3}
METRICS = pytest.mark.parametrize("metric", ["cosine", "euclidean"])
NESTED = pytest.mark.parametrize("nested", ["up", "down"])


def normal(num, dim, seed=0, dtype=torch.float64):
    return torch.randn(num, dim, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def points_of(rows, metric):
    return torch.nn.functional.normalize(rows) if metric == "cosine" else rows


def means(points, label, clusters):
    return torch.stack([points[label == k].mean(0) for k in range(clusters)])


@st.composite
def assignments(draw):
    """Costs, some of them tied, and feasible bounds, different for each cluster."""
    num = draw(st.integers(1, 24))
    clusters = draw(st.integers(1, 6))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    costs = (
        rng.integers(0, 4, (num, clusters)).astype(float)
        if draw(st.booleans())
        else rng.random((num, clusters))
    )
    sizes = rng.multinomial(
        num, rng.dirichlet(np.ones(clusters))
    )  # a solution to build the bounds around
    lower = np.maximum(sizes - rng.integers(0, 3, clusters), 0)
    return costs, lower, sizes + rng.integers(0, 3, clusters)


def best_cost(costs, lower, upper):
    """By the Hungarian method on one column per place.

    Places below the lower bound must be taken.
    """
    clusters = costs.shape[1]
    reward = 1 + costs.max() * len(costs) * 2
    place = np.repeat(np.arange(clusters), upper)
    must = np.concatenate([np.arange(u) < low for low, u in zip(lower, upper, strict=True)])
    row, column = linear_sum_assignment(costs[:, place] - reward * must)
    return costs[row, place[column]].sum()


@given(assignments(), st.booleans(), st.integers(0, 99))
def test_the_assignment_keeps_its_bounds_at_the_least_cost_wherever_the_prices_start(
    case, warm, seed
):
    costs, lower, upper = case
    prices = np.random.default_rng(seed).normal(size=costs.shape[1]) if warm else None
    label, prices = bounded_assignment(costs, lower, upper, prices)
    sizes = np.bincount(label, minlength=costs.shape[1])
    assert (sizes >= lower).all() and (sizes <= upper).all()
    total = costs[np.arange(len(label)), label].sum()
    assert total == pytest.approx(best_cost(costs, lower, upper), abs=1e-9)
    priced = (
        costs + prices
    )  # complementary slackness proves the optimum without the Hungarian method
    assert (priced[np.arange(len(label)), label] <= priced.min(1) + 1e-9).all()
    assert (sizes[prices > 1e-9] == upper[prices > 1e-9]).all()
    assert (sizes[prices < -1e-9] == lower[prices < -1e-9]).all()


@pytest.mark.parametrize("num", [300, 3000])
def test_thousands_of_equal_words_are_spread_over_the_clusters(num):
    costs = np.tile(np.array([0.0, 1.0, 1.0, 2.0]), (num, 1))
    label, _ = bounded_assignment(costs, np.full(4, num // 4), np.full(4, num // 4))
    assert (np.bincount(label) == num // 4).all()


def greedy(costs, lower, upper):
    """The paper's size control with its two gaps closed: clusters request members, and a small
    cluster gives none.
    """
    label = costs.argmin(1)
    sizes = np.bincount(label, minlength=costs.shape[1])
    for move_in in (False, True):
        while True:
            wanting = np.flatnonzero(sizes < lower) if move_in else np.flatnonzero(sizes > upper)
            if not len(wanting):
                break
            k = wanting[0]
            moves = costs - costs[np.arange(len(label)), label][:, None]
            if move_in:
                allowed = (sizes > lower)[label][:, None] & (np.arange(len(sizes)) == k)
            else:
                allowed = (label == k)[:, None] & (sizes < upper)
            moves[~allowed | (np.arange(len(sizes)) == label[:, None])] = np.inf
            row, to = np.unravel_index(moves.argmin(), moves.shape)
            sizes[label[row]] -= 1
            sizes[to] += 1
            label[row] = to
    return label


@given(assignments())
def test_the_assignment_costs_no_more_than_greedy_moves(case):
    costs = case[0]
    rows = np.arange(len(case[0]))
    assert (
        costs[rows, bounded_assignment(*case)[0]].sum() <= costs[rows, greedy(*case)].sum() + 1e-9
    )


@st.composite
def problems(draw):
    """Words, some of them equal, with clusters and feasible ratios."""
    num = draw(st.integers(2, 40))
    clusters = draw(st.integers(1, num - 1))
    rows = normal(num, draw(st.integers(1, 5)), seed=draw(st.integers(0, 999)))
    if draw(st.booleans()):
        rows[num // 2 :] = rows[: num - num // 2].clone()
    assume(clusters <= len(rows.unique(dim=0)))
    mean = num / clusters
    low = draw(st.floats(0, math.floor(mean) / mean).map(lambda r: round(r, 6)))
    high = draw(st.floats(math.ceil(mean) / mean, 10).map(lambda r: round(r, 6)))
    assume(math.ceil(low * mean) <= math.floor(mean) and math.floor(high * mean) >= math.ceil(mean))
    return rows, clusters, low, high


@METRICS
@given(problem=problems())
def test_every_feasible_bound_holds_at_return(metric, problem):
    rows, clusters, low, high = problem
    found = semantic_clusters(
        rows, clusters, metric=metric, min_ratio=low, max_ratio=high, max_iters=5
    )
    (sizes,) = found.sizes
    mean = len(rows) / clusters
    assert len(sizes) == clusters and (sizes > 0).all()
    assert low * mean <= int(sizes.min()) and int(sizes.max()) <= high * mean
    assert found.tree().levels == (len(rows), clusters, 1) == Tree(found.parents).levels


@METRICS
@NESTED
@pytest.mark.parametrize("low, high", [(0.1, 5.0), (0.75, 1.25), (0.5, math.pi)])
def test_the_bounds_hold_at_every_level(metric, nested, low, high):
    counts = [120, 40, 10, 3]
    found = semantic_clusters(
        normal(120, 4),
        counts[1:],
        metric=metric,
        nested=nested,
        min_ratio=low,
        max_ratio=min(high, 5),
        max_iters=9,
    )
    for sizes, (fine, coarse) in zip(found.sizes, pairwise(counts), strict=True):
        assert len(sizes) == coarse and int(sizes.min()) >= max(low * fine / coarse, 1)
        assert int(sizes.max()) <= high * fine / coarse
    assert found.tree().levels == (*counts, 1)


@METRICS
@pytest.mark.parametrize("low, high", [(0, 40), (12, 18)])
@given(seed=st.integers(0, 50))
def test_the_objective_never_increases(metric, low, high, seed):
    rows = normal(60, 3, seed)
    points = Points(points_of(rows, metric), metric == "cosine")
    start = seeds(points, 4, torch.Generator().manual_seed(seed))
    fit = lloyd(points, start, torch.full((4,), max(low, 1)), torch.full((4,), high), 50, 0.0)
    history = [*fit.history, points.objective(fit.label, fit.centroids)]
    assert all(after <= before * (1 + 1e-12) for before, after in pairwise(history))
    assert len(fit.history) < 50


@METRICS
@NESTED
def test_same_seed_same_clusters_and_another_seed_others(metric, nested):
    rows = normal(200, 8, dtype=torch.float32)
    first, again, other = (
        semantic_clusters(rows, [20, 4], metric=metric, nested=nested, seed=s) for s in (1, 1, 2)
    )
    for a, b in zip(
        (*first.parents, *first.centroids), (*again.parents, *again.centroids), strict=True
    ):
        assert torch.equal(a, b)
    assert first.objective == again.objective and not torch.equal(
        first.parents[0], other.parents[0]
    )


@settings(max_examples=examples(30))
@given(st.lists(st.integers(-40, 40), min_size=30, max_size=30), st.sampled_from(["up", "down"]))
def test_angles_do_not_see_the_length_of_a_row(exponents, nested):
    rows = normal(30, 4)
    longer = rows * 2.0 ** torch.tensor(exponents)[:, None]  # a power of 2 rounds nothing
    for a, b in zip(
        *(semantic_clusters(x, [6, 2], nested=nested).parents for x in (rows, longer)), strict=True
    ):
        assert torch.equal(a, b)


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_angles_of_very_long_and_very_short_rows(size):
    rows = normal(30, 4, dtype=torch.float32)
    found = semantic_clusters(rows * size, 5)
    assert torch.isfinite(found.centroids[0]).all() and math.isfinite(found.objective[0])
    assert torch.isfinite(found.coherence[0]).all()


@METRICS
@NESTED
def test_centroids_objective_and_coherence_are_those_of_the_words_below(metric, nested):
    rows = normal(90, 5) + 3.0
    found = semantic_clusters(rows, [12, 3], metric=metric, nested=nested)
    points = points_of(rows, metric)
    for level, centroids in enumerate(found.centroids):
        label = found.of_tokens(level)
        count = len(centroids)
        inner = means(points, label, count)
        torch.testing.assert_close(centroids, points_of(inner, metric))
        squares = (points - centroids[label]).square().sum() * (0.5 if metric == "cosine" else 1.0)
        assert found.objective[level] == pytest.approx(float(squares), rel=1e-9)
        cosine = torch.cosine_similarity(points, inner[label])
        torch.testing.assert_close(found.coherence[level], means(cosine, label, count))
    assert torch.equal(found.of_tokens(1), found.parents[1][found.of_tokens(0)])
    assert found.objective[1] > found.objective[0]


@METRICS
def test_weights_of_centroids_stand_for_the_words_below(metric):
    points = Points(torch.nn.functional.normalize(normal(50, 4)), metric == "cosine")
    label = torch.arange(50) % 7
    fine = points.centroids(label, points.rows[:7])
    coarse = normal(2, 4)
    above = Points(fine, points.cosine, points.masses(label, 7))
    parent = torch.arange(7) % 2
    if metric == "cosine":
        coarse = torch.nn.functional.normalize(coarse)
        rest = len(label) - float(points.masses(label, 7).sum())
    else:
        rest = points.objective(label, fine)
    assert points.objective(parent[label], coarse) == pytest.approx(
        rest + above.objective(parent, coarse)
    )


@METRICS
def test_clear_clusters_are_found(metric):
    kind = torch.arange(120) % 4
    rows = 8 * torch.eye(4, dtype=torch.float64)[kind] + 0.1 * normal(120, 4)
    found = semantic_clusters(rows, [4, 2], metric=metric).of_tokens()
    assert all(len(found[kind == k].unique()) == 1 for k in range(4)) and len(found.unique()) == 4


@pytest.mark.parametrize("low, high", [(0.1, 5.0), (0.8, 1.2)])
def test_the_objective_is_no_worse_than_that_of_sklearn_with_the_same_size_control(low, high):
    rows = normal(1500, 16) * (1 + torch.arange(16)) ** -0.5
    found = semantic_clusters(
        rows, 20, metric="euclidean", min_ratio=low, max_ratio=high, restarts=4
    )
    theirs = KMeans(20, n_init=4, random_state=0).fit(rows.numpy()).cluster_centers_
    costs = ((rows[:, None] - torch.from_numpy(theirs)) ** 2).sum(-1).numpy()
    label, _ = bounded_assignment(
        costs, np.full(20, math.ceil(low * 75)), np.full(20, math.floor(high * 75))
    )
    points = Points(rows, cosine=False)
    best = torch.from_numpy(label)
    objective = points.objective(best, points.centroids(best, rows[:20]))
    assert found.objective[0] <= objective * 1.005


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_low_precision_is_read_as_float32(dtype):
    found = semantic_clusters(normal(50, 4).to(dtype).requires_grad_(), 5)
    assert found.centroids[0].dtype == torch.float32 and not found.centroids[0].requires_grad


def clustered(embeddings=None, num_clusters=2, **change):
    return semantic_clusters(
        normal(6, 3) if embeddings is None else embeddings, num_clusters, **change
    )


test_refusals_name_the_argument_its_value_and_the_rule = refuses(r"""
    clustered(embeddings=torch.zeros(6, 2, dtype=torch.int64)) | TypeError
        | embeddings has type torch.int64
    clustered(embeddings=[[1.0]]) | TypeError | embeddings has type list
    clustered(embeddings=torch.ones(6)) | ValueError | embeddings has shape \(6,\)
    clustered(embeddings=torch.ones(0, 3)) | ValueError | embeddings has shape \(0, 3\)
    clustered(embeddings=torch.tensor([[1.0], [math.nan], [2.0]])) | ValueError
        | NaN or inf in row 1
    clustered(embeddings=torch.tensor([[1.0], [2.0], [-math.inf]])) | ValueError
        | NaN or inf in row 2
    clustered(embeddings=torch.eye(4)[:, :3]) | ValueError
        | embeddings is zero in row 3 .1 such rows.
    clustered(embeddings=torch.ones(6, 2)) | ValueError
        | num_clusters is 2, must be at most 1, the number of different
    clustered(num_clusters=0) | ValueError | num_clusters is 0
    clustered(num_clusters=6) | ValueError | num_clusters is 6, must be less than the 6 rows
    clustered(num_clusters=2.0) | TypeError | num_clusters is 2.0
    clustered(num_clusters=[]) | ValueError | num_clusters is empty
    clustered(num_clusters=[3, 3]) | ValueError | num_clusters is \[3, 3\], must decrease
    clustered(num_clusters=[4, 0]) | ValueError | num_clusters\[1\] is 0
    clustered(metric="manhattan") | ValueError | metric is 'manhattan'
    clustered(nested="sideways") | ValueError | nested is 'sideways'
    clustered(min_ratio=1.1) | ValueError | min_ratio is 1.1
    clustered(max_ratio=0.9) | ValueError | max_ratio is 0.9
    clustered(num_clusters=4, min_ratio=0.9) | ValueError
        | min_ratio is 0.9: at least 2 per cluster, 8 in total
    clustered(num_clusters=4, max_ratio=1.0) | ValueError
        | max_ratio is 1.0: at most 1 per cluster.*at least 1.33333
    clustered(num_clusters=[3, 2], max_ratio=1.2) | ValueError
        | max_ratio is 1.2.*3 clusters into 2 clusters
    clustered(max_iters=0) | ValueError | max_iters is 0
    clustered(restarts=0) | ValueError | restarts is 0
    clustered(tolerance=-1.0) | ValueError | tolerance is -1.0
    clustered(seed=-1) | ValueError | seed is -1
""")


def test_zero_rows_are_words_like_others_for_euclid():
    rows = torch.cat([torch.zeros(40, 3), normal(20, 3, dtype=torch.float32)])
    (sizes,) = semantic_clusters(rows, 6, metric="euclidean", max_ratio=2.0).sizes
    assert int(sizes.max()) <= 20


@pytest.fixture
def saved(tmp_path):
    rows = normal(4, 3)
    found = semantic_clusters(rows, [3, 2], fingerprint=fingerprint(VOCABULARY))
    save_clusters(tmp_path / "words.v1", found)
    return tmp_path / "words.v1", rows, found


def test_saved_networks_are_loaded(saved):
    path, rows, found = saved
    loaded = load_clusters(path, fingerprint(VOCABULARY), embeddings=rows)
    for name in ("parents", "centroids", "coherence"):
        assert all(
            torch.equal(a, b)
            for a, b in zip(getattr(found, name), getattr(loaded, name), strict=True)
        )
    for name in ("objective", "iterations", "metric", "source", "fingerprint"):
        assert getattr(found, name) == getattr(loaded, name)
    process = dd.processes.Hierarchical(loaded.tree(), dd.schedules.Linear())
    dd.check_vocabulary(process, VOCABULARY)
    assert sorted(file.name for file in path.parent.iterdir()) == [
        "words.v1.json",
        "words.v1.safetensors",
    ]


def test_another_tokenizer_or_other_embeddings_are_refused(saved):
    path, rows, _ = saved
    with pytest.raises(ValueError, match="another tokenizer"):
        load_clusters(path, fingerprint(VOCABULARY | {"cat": 1, "dog": 0}))
    with pytest.raises(ValueError, match="embeddings have hash"):
        load_clusters(path, fingerprint(VOCABULARY), embeddings=rows.float())


def test_files_that_do_not_belong_together_are_refused(saved):
    path, _, found = saved
    facts = json.loads((path.parent / "words.v1.json").read_text())
    assert facts["sizes"] == [sizes.tolist() for sizes in found.sizes] and facts[
        "num_clusters"
    ] == [3, 2]
    tensors = path.parent / "words.v1.safetensors"
    tensors.write_bytes(tensors.read_bytes() + b"?")
    with pytest.raises(ValueError, match="SHA-256 differs"):
        load_clusters(path, fingerprint(VOCABULARY))
    (path.parent / "words.v1.json").write_text("[]")
    with pytest.raises(ValueError, match="has format None"):
        load_clusters(path, fingerprint(VOCABULARY))
    with pytest.raises(ValueError, match="clusters has no fingerprint"):
        save_clusters(path, semantic_clusters(normal(4, 3), 2))


def test_the_hash_depends_on_values_shape_and_dtype():
    rows = torch.zeros(2, 3)
    hashes = [
        Clusters.source_of(x)
        for x in (rows, rows + 1, rows.view(3, 2), rows.half(), rows.bfloat16())
    ]
    assert len(set(hashes)) == 5 and Clusters.source_of(rows.T.contiguous().T) == hashes[0]


@given(st.integers(2, 60), st.data())
def test_random_clusters_are_balanced(vocab_size, data):
    counts = [vocab_size, data.draw(st.integers(1, vocab_size - 1))]
    if counts[-1] > 1:
        counts.append(data.draw(st.integers(1, counts[-1] - 1)))
    parents = random_parents(vocab_size, counts[1:], seed=3)
    assert Tree(parents).levels == (*counts, 1)
    assert all(int(x.bincount().max() - x.bincount().min()) <= 1 for x in parents)
    assert all(
        torch.equal(a, b)
        for a, b in zip(parents, random_parents(vocab_size, counts[1:], seed=3), strict=True)
    )


def test_random_clusters_differ_between_seeds_and_must_be_coarser():
    assert not torch.equal(random_parents(50, 5, seed=0)[0], random_parents(50, 5, seed=1)[0])
    with pytest.raises(ValueError, match="every level must be coarser"):
        random_parents(5, 5)


def test_a_table_of_ancestors_gives_a_tree():
    table = {"cat": ["pet", "animal"], "dog": ["pet", "animal"], "oak": ["tree", "plant"]}
    parents, names = table_parents(table, VOCABULARY, other="?")
    assert [x.tolist() for x in parents] == [[1, 1, 0, 2], [0, 1, 2]]
    assert names == [["?", "pet", "tree"], ["?", "animal", "plant"]]


def from_table(**table):
    return table_parents(table, VOCABULARY)


test_bad_tables_are_refused = refuses(r"""
    from_table() | ValueError | table is empty
    from_table(cow=["animal"]) | ValueError | 1 tokens that are not in vocabulary: ..cow
    from_table(cat=["animal"]) | ValueError
        | table lacks 3 tokens of vocabulary: ..dog', 'ivy', 'oak
    from_table(cat=["a"], dog=["a", "b"], ivy=["a"], oak=["a"]) | ValueError
        | 'dog', must be 1 names
    from_table(cat="a", dog="b", ivy="a", oak="b") | ValueError
        | table has 'a' for 'cat', must be 1 names
    from_table(**{token: [] for token in VOCABULARY}) | ValueError
        | table has \[\] for 'cat', must be 1 names
    from_table(cat=["a", "x"], dog=["a", "y"], ivy=["b", "x"], oak=["b", "x"])
        | ValueError | two parents of 'a': 'x' and
""")


def test_a_csv_file_gives_a_tree(tmp_path):
    file = tmp_path / "parents.csv"
    file.write_text(
        'token,parent\ncat,"pets, mostly"\ndog,"pets, mostly"\n\nivy,plant\noak,plant\n',
        encoding="utf-8",
    )
    parents, names = csv_parents(file, VOCABULARY)
    assert parents[0].tolist() == [0, 0, 1, 1] and names == [["pets, mostly", "plant"]]
    file.write_bytes(
        b"\xef\xbb\xbf" + file.read_bytes()
    )  # a byte order mark, as spreadsheets write it
    assert csv_parents(file, VOCABULARY)[1] == names
    file.write_text("token,kind,living\ncat,pets,yes\ndog,pets,yes\nivy,plant,yes\noak,plant,yes\n")
    assert csv_parents(file, VOCABULARY)[1] == {"kind": ["pets", "plant"], "living": ["yes"]}
    file.write_text("cat,a\ncat,b\n")
    with pytest.raises(ValueError, match="line 2: token 'cat' occurs twice"):
        csv_parents(file, VOCABULARY)
    with pytest.raises(ValueError, match="vocabulary must contain exactly the ids"):
        table_parents({"cat": ["a"]}, {"cat": 1})


@METRICS
def test_memberships_are_a_softmax_over_the_nearest_centroids(metric):
    rows = normal(60, 5, dtype=torch.float32)
    clusters = dd.hierarchies.semantic_clusters(rows, 8, metric=metric)
    found = dd.hierarchies.soft_memberships(clusters, rows, temperature=0.3, most=3)
    index = torch.tensor(found["index"])
    probability = torch.tensor(found["probability"], dtype=torch.float64)
    centroids = clusters.centroids[0].double()
    own = clusters.of_tokens()
    if metric == "cosine":
        distance = 1 - torch.nn.functional.cosine_similarity(
            rows.double()[:, None], centroids[None], dim=-1
        )
    else:
        distance = ((rows.double()[:, None] - centroids) ** 2).sum(-1)
    assert torch.allclose(probability, (-distance.gather(1, index) / 0.3).softmax(1), atol=1e-12)
    assert bool((index == own[:, None]).any(1).all())
    nearest = distance.argsort(1)
    assert all(set(nearest[w, :2].tolist()) <= set(row) for w, row in enumerate(index.tolist()))
    hard = dd.hierarchies.Soft(
        dd.hierarchies.soft_memberships(clusters, rows, temperature=1e-6, most=1)
    )
    assert torch.equal(hard.maps[0].matrix(), dd.hierarchies.Tree([own]).maps[0].matrix())


CLUSTERS = dd.hierarchies.semantic_clusters(torch.eye(4), 2)
test_memberships_are_refused = refuses("""
    soft_memberships(CLUSTERS, torch.eye(4), 0.0) | ValueError | temperature is 0.0
    soft_memberships(CLUSTERS, torch.eye(4), most=0) | ValueError | most is 0
    soft_memberships(CLUSTERS, torch.eye(4)[:3]) | ValueError | embeddings has shape
""")


def test_clusters_stand_for_their_parents_and_fit_on_a_screen():
    found = semantic_clusters(normal(400, 8, dtype=torch.float32), [20, 4])
    assert repr(found) == "Clusters(400 tokens in 20, 4 clusters, metric='cosine')"
    assert repr(dd.presets.hdlm_levels(found)) == repr(dd.presets.hdlm_levels(found.parents))
    bytes_of = dd.presets.hdlm_levels([vector.to(torch.uint8) for vector in found.parents])
    assert repr(bytes_of) == repr(dd.presets.hdlm_levels(found))

"""Claims about hierarchies."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ddlib.hierarchies import Hierarchy, Kernel, Map
from ddlib.verification.claims.arguments import PART_CLAIMS
from ddlib.verification.framework.cases import LARGE, REDUCED
from ddlib.verification.framework.claim import Claim, Comparison, Point, condition
from ddlib.verification.framework.dependencies import evaluate_claims, explain
from ddlib.verification.report import Check


def _rows(hierarchy: Hierarchy, point: Point) -> Iterator[Comparison]:
    for i, edge in enumerate(hierarchy.maps):
        dense = edge.matrix()
        ones = torch.ones(len(dense), dtype=torch.float64)
        yield Comparison(f"sum of the row of maps[{i}]", ("child",), dense.sum(1), ones, 1e-12)
        yield Comparison(
            f"entry of maps[{i}]", ("child", "parent"), dense, dense.clamp(0, 1), 1e-15
        )


def _surjective(hierarchy: Hierarchy, point: Point) -> Iterator[Comparison]:
    for i, edge in enumerate(hierarchy.maps):
        yield from _compare_children(edge, f"of a member of level {i + 1}")
        yield Comparison(
            f"mass into level {i + 1} is positive",
            ("parent",),
            (edge.matrix().sum(0) > 0).double(),
            torch.ones(edge.num_parents),
            0.0,
        )


def _compare_children(edge: Kernel, name: str) -> Iterator[Comparison]:
    if isinstance(edge, Map):
        children = torch.bincount(edge.parents, minlength=edge.num_parents)
        least = children.clamp_max(1)
        ones = torch.ones_like(children)
        yield Comparison(f"children {name}, at least one", ("parent",), least, ones, 0.0)


def _levels(hierarchy: Hierarchy, point: Point) -> Iterator[Comparison]:
    sizes = torch.tensor(
        [hierarchy.maps[0].num_children, *(edge.num_parents for edge in hierarchy.maps)]
    )
    states = torch.arange(int(sizes.sum()))
    level = torch.arange(len(sizes)).repeat_interleave(sizes)
    yield Comparison("levels", ("level",), torch.tensor(hierarchy.levels), sizes, 0.0)
    rows = hierarchy.between(0, hierarchy.depth).row(_indices(hierarchy.vocab_size, 64))
    yield Comparison(
        "the top level, given the token", ("x", "z"), rows, rows[:1].expand_as(rows), 1e-12
    )
    yield Comparison("vocab_size", (), torch.tensor(hierarchy.vocab_size), sizes[0], 0.0)
    yield Comparison("num_states", (), torch.tensor(hierarchy.num_states), sizes.sum(), 0.0)
    yield Comparison("depth", (), torch.tensor(hierarchy.depth), torch.tensor(len(sizes) - 1), 0.0)
    ends = torch.cat([sizes.new_zeros(1), sizes.cumsum(0)])
    yield Comparison("starts", ("level",), hierarchy.starts, ends, 0.0)
    named = torch.tensor([len(names) for names in hierarchy.names.members], dtype=torch.int64)
    yield Comparison(
        "names per level of clusters", ("",), named, sizes[1:-1] if len(named) else named, 0.0
    )
    yield Comparison(
        "speeds per edge",
        (),
        torch.tensor(len(hierarchy.speeds)),
        torch.tensor(len(sizes) - 1),
        0.0,
    )
    positive = torch.tensor(hierarchy.speeds) > 0
    yield Comparison("speed > 0", ("edge",), positive.double(), torch.ones(len(positive)), 0.0)
    yield Comparison("level_of", ("z",), hierarchy.level_of(states), level, 0.0)
    for i, offset in enumerate((sizes.cumsum(0) - sizes).tolist()):
        members = states[level == i]
        local = hierarchy.local(members, i)
        yield Comparison(
            f"local index in level {i}", (), local, members - offset, 0.0, {"z": members}
        )
        yield Comparison(
            "offset", (), torch.tensor(hierarchy.offsets[i]), torch.tensor(offset), 0.0
        )
        yield Comparison(f"states({i})", ("",), states[hierarchy.states(i)], members, 0.0)


def _composition(hierarchy: Hierarchy, point: Point) -> Iterator[Comparison]:
    for i in range(hierarchy.depth):
        product = torch.eye(hierarchy.levels[i], dtype=torch.float64)
        for j in range(i, hierarchy.depth):
            product = product @ hierarchy.maps[j].matrix()
            got = hierarchy.between(i, j + 1).matrix()
            yield Comparison(
                f"K from level {i} to {j + 1}", ("child", "ancestor"), got, product, 1e-12
            )


def _level_probs(hierarchy: Hierarchy, point: Point) -> Iterator[Comparison]:
    generator = torch.Generator().manual_seed(1)
    probs = torch.randn(3, hierarchy.vocab_size, generator=generator, dtype=torch.float64).softmax(
        -1
    )
    distributions = hierarchy.level_probs(probs)
    levels = torch.tensor(len(hierarchy.levels))
    yield Comparison(
        "distributions of level_probs", (), torch.tensor(len(distributions)), levels, 0.0
    )
    for i, got in enumerate(distributions):
        yield Comparison(f"level_probs of level {i}", ("distribution", "state"), got, probs, 1e-12)
        if i < hierarchy.depth:
            probs = hierarchy.maps[i].push(probs)


def _descendants(hierarchy: Hierarchy, point: Point) -> Iterator[Comparison]:
    tokens = torch.arange(hierarchy.vocab_size)
    for level, offset in enumerate(hierarchy.offsets):
        for member in _indices(hierarchy.levels[level], 24).tolist():
            if level in (0, hierarchy.depth):
                expected = tokens[member, None] if level == 0 else tokens
            else:
                edge = hierarchy.between(0, level)
                leads = (
                    edge.parents == member
                    if isinstance(edge, Map)
                    else edge.column(torch.tensor(member)) > 0
                )
                expected = tokens[leads]
            yield Comparison(
                f"under({offset + member})", ("",), hierarchy.under(offset + member), expected, 0.0
            )


def _small_copy(hierarchy: Hierarchy, point: Point) -> Iterator[Comparison]:
    copy = hierarchy.small_copy(hierarchy.vocab_size)
    vocab_size = hierarchy.vocab_size
    call = f"small_copy({vocab_size})"
    same_class = type(copy) is type(hierarchy)
    yield condition(
        f"class of {call}",
        same_class,
        f"{call} is {copy!r}, must be of class {type(hierarchy).__name__}",
    )
    yield Comparison(
        f"levels of {call}", (), torch.tensor(copy.depth), torch.tensor(hierarchy.depth), 0.0
    )
    size = torch.tensor(copy.vocab_size)
    yield Comparison(f"tokens of {call}", (), size, size.clamp_max(vocab_size), 0.0)
    speeds = torch.tensor([copy.speeds, hierarchy.speeds], dtype=torch.float64)
    yield Comparison(f"speeds of {call}", ("edge",), speeds[0], speeds[1], 0.0)


def _compare_actions(
    edge: Kernel,
    name: str,
    child: Tensor,
    parent: Tensor,
    seed: int,
    tolerance: float,
    samples: int,
) -> Iterator[Comparison]:
    """Compare the actions of a map with its rows, at some children and parents."""
    columns = edge.column(parent)
    expected = edge.row(child)[:, parent].flatten()
    pairs = {"child": child.repeat_interleave(len(parent)), "parent": parent.repeat(len(child))}
    yield Comparison(f"column {name}", (), columns.T[child].flatten(), expected, tolerance, pairs)
    yield Comparison(
        f"entry {name}", (), edge.entry(pairs["child"], pairs["parent"]), expected, tolerance, pairs
    )
    generator = torch.Generator().manual_seed(seed)
    log_probs = torch.randn(
        3, edge.num_children, generator=generator, dtype=torch.float64
    ).log_softmax(-1)
    mass = columns @ log_probs.exp().T
    for action, got in (
        ("push", edge.push(log_probs.exp())),
        ("log_push", edge.log_push(log_probs).exp()),
    ):
        yield Comparison(
            f"{action} {name}",
            ("", "distribution"),
            got.T[parent],
            mass,
            100 * tolerance,
            {"parent": parent},
        )
    likeliest = _indices(edge.num_children, 8)
    steep = (
        torch.randn(len(likeliest), edge.num_children, generator=generator, dtype=torch.float64)
        - 300
    )
    steep = steep.index_put(
        (torch.arange(len(likeliest)), likeliest), steep.new_zeros(())
    ).log_softmax(-1)
    logs = (steep[:, None] + columns.log()).logsumexp(-1)
    log_masses = edge.log_mass(
        steep[:, None].expand(-1, len(parent), -1), parent.expand(len(steep), -1)
    )
    for action, got in (("log_push", edge.log_push(steep)[:, parent]), ("log_mass", log_masses)):
        yield Comparison(
            f"{action} {name} of small masses",
            ("", "distribution"),
            got.T,
            logs.T,
            100 * tolerance * (1 + logs.T.abs()),
            {"parent": parent},
        )
    every = torch.arange(edge.num_parents, dtype=torch.float64).expand(len(child), -1)
    chances, part, place = edge.at_parents(child, every)
    rows = edge.row(child)
    index = place.long()
    sums = torch.zeros_like(rows).scatter_add(1, index, part)
    yield Comparison(
        f"at_parents {name}, summed", ("", "parent"), sums, rows, tolerance, {"child": child}
    )
    expected_chances = torch.where(part > 0, rows.gather(1, index), chances)
    yield Comparison(
        f"at_parents {name}", ("", "entry"), chances, expected_chances, tolerance, {"child": child}
    )
    # an even grid of uniforms hits every parent in proportion to its probability, without
    # randomness
    grid = (torch.arange(2000, dtype=torch.float64) + 0.5) / 2000
    for first in child[:: max(1, len(child) // samples)].tolist():
        hits = (
            torch.bincount(
                edge.sample(torch.full((2000,), first), grid), minlength=edge.num_parents
            )
            / 2000
        )
        yield Comparison(
            f"sample {name} for child {first}",
            ("parent",),
            hits,
            edge.row(torch.tensor(first)),
            1e-3,
        )


def _actions(hierarchy: Hierarchy, point: Point) -> Iterator[Comparison]:
    for i, edge in enumerate(hierarchy.maps):
        child = torch.arange(edge.num_children)
        parent = torch.arange(edge.num_parents)
        yield Comparison(
            f"row of maps[{i}]", ("child", "parent"), edge.row(child), edge.matrix(), 1e-15
        )
        yield from _compare_actions(edge, f"of maps[{i}]", child, parent, i, 1e-15, 8)
        positive = (edge.matrix() > 0).all(0)
        yield Comparison(
            f"parents_of_all of maps[{i}]", ("parent",), edge.parents_of_all, positive, 0.0
        )
        if edge.plain:
            one_parent = (edge.matrix().gather(1, edge.parents[:, None]) == 1).all().double()
            yield Comparison(
                f"plain of maps[{i}]", (), torch.ones_like(one_parent), one_parent, 0.0
            )


def _indices(count: int, limit: int) -> Tensor:
    """Return at most ``limit`` of the numbers below ``count``, evenly spaced."""
    return torch.linspace(0, count - 1, min(limit, count), dtype=torch.float64).long()


def _actions_at_size(hierarchy: Hierarchy, point: Point) -> Iterator[Comparison]:
    pairs = [(i, j) for i in range(hierarchy.depth) for j in range(i + 1, hierarchy.depth + 1)]
    for i, j in pairs:
        edge = hierarchy.between(i, j)
        name = f"of the map from level {i} to {j}"
        yield from _compare_children(edge, name)
        child = _indices(edge.num_children, 64)
        parent = _indices(edge.num_parents, 16)
        rows = edge.row(child)
        labels = {"child": child}
        ones = torch.ones(len(child), dtype=torch.float64)
        yield Comparison(f"sum of a row {name}", (), rows.sum(1), ones, 1e-12, labels)
        yield Comparison(
            f"least entry {name} >= 0", (), rows.amin(1), rows.amin(1).clamp_min(0), 0.0, labels
        )
        yield from _compare_actions(edge, name, child, parent, i, 1e-14, 4)


AT_SIZE = (
    Claim(
        "hierarchy as given",
        "level order at size",
        "states are tokens, then levels upwards, masks last",
        "exactly",
        _levels,
    ),
    Claim(
        "hierarchy as given",
        "actions at size",
        "row, column, entry, push and sample act as one matrix",
        "1e-12; draws 1e-3",
        _actions_at_size,
        rests_on=("level order at size",),
    ),
    Claim(
        "hierarchy as given",
        "level probabilities at size",
        "level_probs are the pushes of p",
        "1e-12",
        _level_probs,
        rests_on=("level order at size", "actions at size"),
    ),
    Claim(
        "hierarchy as given",
        "descendants at size",
        "under returns the tokens that lead to a state",
        "exactly",
        _descendants,
        rests_on=("level order at size",),
    ),
)
"""Claims about a hierarchy at its full size, in addition to those about its small copy."""

CLAIMS = (
    Claim("hierarchy", "stochastic rows", "every map's rows are distributions", "1e-12", _rows),
    Claim(
        "hierarchy",
        "surjective",
        "every cluster has a child and receives mass",
        "exactly",
        _surjective,
        rests_on=("stochastic rows",),
    ),
    Claim(
        "hierarchy",
        "level order",
        "states are tokens, then levels upwards, masks last",
        "exactly",
        _levels,
    ),
    Claim(
        "hierarchy",
        "composition",
        "maps between distant levels are products of those between",
        "1e-12",
        _composition,
        rests_on=("stochastic rows", "level order"),
    ),
    Claim(
        "hierarchy",
        "actions",
        "row, column, entry, push and sample act as the dense matrix",
        "1e-13; draws 1e-3",
        _actions,
        rests_on=("stochastic rows", "surjective"),
    ),
    Claim(
        "hierarchy",
        "level probabilities",
        "level_probs are the pushes of p, distributions over each level",
        "1e-12",
        _level_probs,
        rests_on=("level order", "actions"),
    ),
    Claim(
        "hierarchy",
        "descendants",
        "under returns the tokens that lead to a state, in ascending order",
        "exactly",
        _descendants,
        rests_on=("level order", "composition"),
    ),
    Claim(
        "hierarchy",
        "small copy",
        "small_copy keeps class, levels and speeds, and at most that many tokens",
        "exactly",
        _small_copy,
        rests_on=("level order",),
    ),
)


def verify(hierarchy: Hierarchy, full: bool) -> tuple[list[Check], str]:
    """Check a hierarchy, or its small copy and itself by the claims about its full size."""
    large = hierarchy.vocab_size > LARGE
    subject = hierarchy.small_copy(REDUCED) if large else hierarchy
    note = f"verified on its reduction {subject!r}, and at its size as given" if large else ""
    at_its_size = evaluate_claims(AT_SIZE, hierarchy, full) if large else []
    return explain(evaluate_claims((*CLAIMS, *PART_CLAIMS), subject, full) + at_its_size), note

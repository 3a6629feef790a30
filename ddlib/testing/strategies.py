"""Hypothesis strategies for schedules, hierarchies, processes, times and token distributions."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from ddlib import schedules
from ddlib import times as densities
from ddlib.hierarchies import Blur, Flat, Hierarchy, Tree
from ddlib.processes import (
    GIDD,
    ForwardProcess,
    Hierarchical,
    Masked,
    Product,
    RateMatrix,
    Uniform,
    examples,
)
from ddlib.schedules.window import in_turn

_FORMULAS = (
    "(1 - t)**2 * exp(-t)",
    "1 - t**2",
    "1 - sqrt(t)",
    "(1 - t) / (1 + 3*t)",
    "1 - sin(pi*t/2)",
)
_SYMBOLIC = {formula: schedules.Symbolic(formula) for formula in _FORMULAS}

speeds = st.one_of(
    st.floats(0.5, 4.0),
    st.sampled_from([0.5, 1.0, 2.0, 4.0]),  # so that equal speeds are common
    st.sampled_from([1.0 + 1e-9, 1.0 - 1e-9, 2.0 + 1e-9]),  # and nearly equal ones
)
"""Jump speeds from 0.5 to 4, often equal or 1e-9 apart."""

xis = st.one_of(st.just(1.0), st.floats(0.05, 1.0))
"""Probabilities of the right parent, often exactly 1."""

times = st.one_of(
    st.floats(1e-8, 1 - 2**-24), st.sampled_from([1e-8, 1e-4, 0.5, 1 - 1e-4, 1 - 2**-24])
)
"""Times inside (0, 1), often near an end."""


def exact_schedules() -> st.SearchStrategy[schedules.Schedule]:
    """Strategy of schedules that run from exactly 1 to exactly 0."""
    return st.one_of(
        st.just(schedules.Linear()),
        st.builds(schedules.Polynomial, st.floats(0.5, 4.0)),
        st.just(schedules.Cosine()),
        st.sampled_from(list(_SYMBOLIC.values())),
    )


def all_schedules() -> st.SearchStrategy[schedules.Schedule]:
    """Strategy of ``exact_schedules`` and geometric noise."""
    return st.one_of(
        exact_schedules(),
        st.builds(schedules.Geometric, st.floats(1e-4, 1e-2), st.floats(5.0, 20.0)),
    )


@st.composite
def parents(draw: Callable[..., Any], children: int, clusters: int) -> list[int]:
    """Strategy of surjective maps from ``children`` to ``clusters``."""
    rest = draw(
        st.lists(
            st.integers(0, clusters - 1), min_size=children - clusters, max_size=children - clusters
        )
    )
    return draw(st.permutations([*range(clusters), *rest]))


@st.composite
def hierarchies(draw: Callable[..., Any], max_depth: int = 5, max_words: int = 9) -> Hierarchy:
    """Strategy of hierarchies with 1 to ``max_depth`` edges, any xi on any edge, any speeds."""
    depth = draw(st.integers(1, max_depth))
    if depth == 1:
        return Flat(draw(st.integers(1, max_words)))
    sizes = [draw(st.integers(depth, max_words))]
    for above in range(
        depth - 1, 0, -1
    ):  # leaves enough members for the levels above, each smaller than the one below
        sizes.append(draw(st.integers(above, sizes[-1] - 1)))
    maps = [draw(parents(a, b)) for a, b in pairwise(sizes)]
    xi = [draw(xis) if size > 1 else 1.0 for size in sizes[1:]]
    return Tree(maps, xi=xi, speed=[draw(speeds) for _ in range(depth)])


@st.composite
def rate_matrices(draw: Callable[..., Any], max_states: int = 6) -> Tensor:
    """Strategy of irreducible generators."""
    n = draw(st.integers(2, max_states))
    rates = torch.tensor(
        draw(st.lists(st.floats(0.05, 2.0), min_size=n * n, max_size=n * n)), dtype=torch.float64
    )
    rates = rates.view(n, n).fill_diagonal_(0)
    return rates - torch.diag(rates.sum(1))


@st.composite
def _rate_matrix_process(
    draw: Callable[..., Any], schedule: st.SearchStrategy[schedules.Schedule]
) -> ForwardProcess:
    matrix = draw(rate_matrices())
    return RateMatrix(matrix, draw(schedule), draw(st.integers(1, len(matrix))))


@st.composite
def per_edge_processes(
    draw: Callable[..., Any], max_depth: int = 5, max_words: int = 9
) -> Hierarchical:
    """Strategy of processes with a schedule for each edge: unlike ones, or windows that overlap by
    any share.
    """
    tree = draw(hierarchies(max_depth, max_words))
    schedule = exact_schedules()
    if draw(st.booleans()):
        return Hierarchical(tree, [draw(schedule) for _ in range(tree.depth)])
    overlap = draw(st.one_of(st.just(0.0), st.floats(0.0, 1.0)))
    return Hierarchical(tree, in_turn([draw(schedule) for _ in range(tree.depth)], overlap))


def processes(
    schedule: st.SearchStrategy[schedules.Schedule] | None = None,
    max_depth: int = 5,
    max_words: int = 9,
) -> st.SearchStrategy[ForwardProcess]:
    """Strategy of processes over small vocabularies, among them ``ddlib.processes.examples`` of
    every kind.
    """
    schedule = exact_schedules() if schedule is None else schedule
    every = [*examples.three().values(), *examples.four().values(), *examples.special().values()]
    small = [process for process in every if process.vocab_size <= max_words]
    return st.one_of(
        st.builds(Hierarchical, hierarchies(max_depth, max_words), schedule),
        per_edge_processes(max_depth, max_words),
        st.builds(Masked, st.integers(1, max_words), schedule),
        st.builds(Uniform, st.integers(2, max_words), schedule),
        st.builds(
            GIDD,
            st.integers(1, max_words),
            st.one_of(st.just(0.0), st.floats(0.01, 0.9)),
            st.floats(0.2, 2.0),
        ),
        _rate_matrix_process(schedule),
        st.sampled_from(small) if small else st.nothing(),
    )


@st.composite
def products(draw: Callable[..., Any], max_length: int = 3, max_words: int = 3) -> Product:
    """Strategy of products of up to three fields over small vocabularies, of every kind of noise
    that has forgotten the tokens at t = 1.
    """
    kinds = st.one_of(
        st.builds(Hierarchical, hierarchies(2, max_words), exact_schedules()),
        st.builds(Masked, st.integers(1, max_words), exact_schedules()),
        st.builds(Uniform, st.integers(2, max_words), exact_schedules()),
        st.builds(GIDD, st.integers(1, max_words), st.sampled_from([0.0, 0.3])),
        st.builds(
            Hierarchical,
            st.builds(Blur, st.integers(2, max_words), st.just([0.6])),
            st.just(schedules.Linear()),
        ),
    )
    length = draw(st.integers(1, max_length))
    number = draw(st.integers(1, length))
    every = {name: draw(kinds) for name in "abc"[:number]}
    rest = draw(
        st.lists(st.integers(0, number - 1), min_size=length - number, max_size=length - number)
    )
    return Product(every, draw(st.permutations([*range(number), *rest])))


@st.composite
def _tables(draw: Callable[..., Any]) -> densities.Tabulated:
    widths = torch.tensor(
        draw(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=8)), dtype=torch.float64
    )
    edges = torch.cat([widths.new_zeros(1), widths.cumsum(0) / widths.sum()])
    edges[-1] = 1.0
    return densities.Tabulated(edges, [draw(st.floats(0.05, 5.0)) for _ in widths])


def time_densities() -> st.SearchStrategy[densities.TimeDensity]:
    """Strategy of all densities of times."""
    return st.one_of(
        st.just(densities.Uniform()),
        st.builds(densities.Beta, st.floats(0.3, 4.0), st.floats(0.3, 4.0)),
        st.builds(densities.Bell, st.floats(-2.0, 2.0), st.floats(0.7, 3.0)),
        _tables(),
    )


@st.composite
def token_logits(draw: Callable[..., Any], *shape: int, scale: float = 3.0) -> Tensor:
    """Strategy of float64 logits of the given shape, from a drawn seed."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    return torch.randn(*shape, dtype=torch.float64, generator=generator) * draw(
        st.floats(0.0, scale)
    )

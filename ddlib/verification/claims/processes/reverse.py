"""Claims about the reverse process: the posterior follows from Bayes's rule, the reverse rate is
its limit.
"""

import itertools
from collections.abc import Iterator

import torch
from torch import Tensor

from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.inputs import at, distribution, logits, marginals
from ddlib.verification.framework.reference import states

_UNIFORMS = 64


def _predictions(process: ForwardProcess, point: Point, t: float) -> tuple[Tensor, Tensor]:
    """Return a token distribution p for every state, (1, S, V), and q_t(.|p) for each, (S, S)."""
    p = distribution(process, point["distribution"], process.num_states)
    return p, p[0] @ marginals(process, t)


def bayes(process: ForwardProcess, point: Point, z: Tensor | None = None) -> Iterator[Comparison]:
    """Compare the posterior with Bayes's rule, for states z (1, N) or for all."""
    s = float(point["s"])
    t = float(point["t"])
    z = states(process) if z is None else z
    p = distribution(process, point["distribution"], z.shape[1])
    # row z_t, column z_s
    joint = p[0] @ marginals(process, s) * process.transition(s, t)[:, z[0]].T
    total = joint.sum(1, keepdim=True)
    reached = (total > 1e-200).expand_as(joint)
    expected = torch.where(reached, joint / total, 0.0)
    got = torch.where(reached, process.posterior(p, z, at(t), at(s))[0], 0.0)
    yield Comparison("p(z_s|z_t)", ("", "z_s"), got, expected, 1e-8, {"z_t": z[0]})


def _level_weights(process: LevelProcess, point: Point) -> Iterator[Comparison]:
    """Compare occupancies and weights of the levels with marginals and with the flux into each
    level.
    """
    t = float(point["t"])
    level = process.level_of(states(process))[0]
    predictive = distribution(process, point["distribution"])[0, 0] @ marginals(process, t)
    ascends = level[:, None] < level
    none = torch.zeros(len(process.levels), dtype=torch.float64)
    flux = none.index_add(0, level, predictive @ (process.rate_matrix(t) * ascends))
    occupancies = none.index_add(0, level, predictive)
    weights = torch.where(occupancies > 0, flux / occupancies, 0.0)
    yield Comparison("occupancies", ("level",), process.occupancies(at(t))[0], occupancies, 1e-9)
    yield Comparison(
        "weights", ("level",), process.weights(at(t))[0], weights, 1e-7 * (1 + weights)
    )
    mean = occupancies @ torch.arange(len(occupancies), dtype=torch.float64)
    yield Comparison("expected_level", (), process.expected_level(at(t)), mean[None], 1e-9)


def _remasked_levels(process: LevelProcess, point: Point) -> Iterator[Comparison]:
    """Compare the levels at s after the largest remasking with the occupancies at s."""
    s = at(float(point["s"]))
    t = at(float(point["t"]))
    level = torch.arange(len(process.levels))[None]
    for later in (t, s):
        lift = process.max_remask_prob(later, s)
        probs = process.level_posterior(level, later, s, lift)[0]
        got = process.occupancies(later)[0] @ probs
        yield Comparison(
            f"occupancies of {float(s):g} from {float(later):g}, remasked",
            ("level",),
            got,
            process.occupancies(s)[0],
            1e-9,
        )


def _descend(process: LevelProcess, scores: Tensor, z: Tensor, level: int, force: bool) -> Tensor:
    """Descend from states z (N,) to a level, each with the same even uniforms, (U, N)."""
    shape = (_UNIFORMS, len(z))
    u = (torch.arange(_UNIFORMS, dtype=torch.float64) + 0.5) / _UNIFORMS
    target = torch.full(shape, level)
    return process.descend(
        scores.expand(*shape, -1), z.expand(shape), target, u[:, None].expand(shape), force=force
    )


def _subtree(process: LevelProcess, point: Point) -> Iterator[Comparison]:
    """Compare draws with and without the logits of tokens that are not below the state."""
    z = torch.arange(process.vocab_size, process.num_states)
    every = logits(process, point["distribution"], len(z))[0]
    below = torch.full_like(every, -torch.inf)
    for row, state in enumerate(z.tolist()):
        tokens = process.hierarchy.under(state)
        below[row, tokens] = every[row, tokens]
    level = process.level_of(z)
    for (i, j), force in itertools.product(
        itertools.combinations(range(len(process.levels)), 2), (False, True)
    ):
        if process.subtree_logits_suffice(j, i, force):
            here = level == j
            yield Comparison(
                f"states of level {i} with the logits below z alone",
                ("", "z_t"),
                _descend(process, below[here], z[here], i, force),
                _descend(process, every[here], z[here], i, force),
                0.0,
                hint=f"subtree_logits_suffice({j}, {i}, {force}) must be False",
            )


def _no_levels(process: ForwardProcess) -> str:
    return "" if isinstance(process, LevelProcess) else "no weight belongs to a level alone"


def _rate(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    t = float(point["t"])
    p, predictive = _predictions(process, point, t)
    current = predictive.diagonal()[:, None]
    reached = (current > 1e-200).expand_as(predictive)
    expected = torch.where(
        reached, process.rate_matrix(t).T * predictive / current, 0.0
    ).fill_diagonal_(0)
    got = torch.where(reached, process.reverse_rate(p, states(process), at(t))[0], 0.0)
    allowed = 1e-7 * expected.abs() + 1e-9 * (1 + expected.max())
    yield Comparison("reverse rate", ("z_t", "y"), got, expected, allowed)
    left = torch.where(reached[:, 0], process.exit_rate(states(process), at(t), p.log())[0], 0.0)
    yield Comparison("exit rate", ("z_t",), left, expected.sum(-1), allowed.sum(-1))


def _reach(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    z = states(process)
    edges = [0.0, *process.breaks, 1.0]
    likely = sum(
        process.token_likelihood(z, at((start + end) / 2))
        for start, end in itertools.pairwise(edges)
    )
    assert isinstance(likely, Tensor)
    number = (likely > 0).sum(-1)[0]
    yield Comparison(
        "reachable_from_all_tokens",
        ("z",),
        process.reachable_from_all_tokens(z)[0],
        number == process.vocab_size,
        0.0,
    )
    tokens = z[:, : process.vocab_size]
    yield Comparison(
        "replaceable",
        ("z",),
        process.replaceable(tokens)[0],
        number[: process.vocab_size] > 1,
        0.0,
    )


def _limit(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    t = float(point["t"])
    p, predictive = _predictions(process, point, t)
    reached = (predictive.diagonal() > 1e-12)[:, None]
    rate = torch.where(reached, process.reverse_rate(p, states(process), at(t))[0], 0.0)
    step = 1e-7 / (1 + float(rate.max()))
    posterior = process.posterior(p, states(process), at(t), at(t) - step)[0]
    posterior = torch.where(reached, posterior, 0.0).fill_diagonal_(0)
    yield Comparison(
        "reverse rate", ("z_t", "y"), rate, posterior / step, 1e-4 * rate + 1e-4 * (1 + rate.max())
    )


_POINTS = (
    {"s": 0.25, "t": 0.5, "distribution": 1},
    {"s": 0.3, "t": 0.9, "distribution": 2},
    {"s": 0.0, "t": 0.5, "distribution": 0},
)
_MORE = (
    {"s": 1e-6, "t": 1e-3, "distribution": 3},
    {"s": 0.5, "t": 1.0, "distribution": 4},
    {"s": 0.4, "t": 0.41, "distribution": 5},
)

CLAIMS = (
    Claim(
        "reverse",
        "posterior",
        "p(z_s|z_t) is Bayes's rule, by enumeration of all states",
        "1e-8",
        bayes,
        _POINTS,
        _MORE,
        rests_on=("linearity", "marginals"),
    ),
    Claim(
        "reverse",
        "level weights",
        "the weight of a level is the flux into it over its occupancy",
        "relative 1e-7",
        _level_weights,
        ({"t": 0.5, "distribution": 1},),
        ({"t": 0.1, "distribution": 2},),
        _no_levels,
        ("rates", "marginals"),
    ),
    Claim(
        "reverse",
        "remasking",
        "max_remask_prob keeps the occupancies of the levels",
        "1e-9",
        _remasked_levels,
        ({"s": 0.25, "t": 0.5}, {"s": 0.0, "t": 0.9}),
        ({"s": 0.5, "t": 1.0},),
        _no_levels,
        ("level weights", "posterior"),
    ),
    Claim(
        "reverse",
        "subtree logits",
        "where subtree_logits_suffice, draws are those without the logits of other tokens",
        "exactly",
        _subtree,
        ({"distribution": 1},),
        ({"distribution": 2},),
        _no_levels,
        ("posterior",),
    ),
    Claim(
        "reverse",
        "reverse rate",
        "it is Q_t(y, z) q_t(y|p) / q_t(z|p), and its sum over y the exit rate",
        "relative 1e-7",
        _rate,
        ({"t": 0.5, "distribution": 1}, {"t": 0.9, "distribution": 2}),
        ({"t": 1e-3, "distribution": 3}, {"t": 0.25, "distribution": 0}),
        rests_on=("linearity", "marginals", "level weights"),
    ),
    Claim(
        "reverse",
        "reach",
        "the states that any token may become, and tokens that may replace another",
        "exactly",
        _reach,
        rests_on=("linearity",),
    ),
    Claim(
        "reverse",
        "limit",
        "the reverse rate is the limit of the posterior",
        "relative 1e-4",
        _limit,
        ({"t": 0.5, "distribution": 1},),
        ({"t": 0.1, "distribution": 2}, {"t": 0.9, "distribution": 3}),
        rests_on=("posterior", "reverse rate"),
    ),
)

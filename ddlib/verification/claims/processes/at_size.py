"""Claims about a process at its full size, with hundreds of states or more."""

import math
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from ddlib.objective.nelbo import nelbo
from ddlib.processes import ForwardProcess
from ddlib.verification.claims.objective.bound import entropy
from ddlib.verification.claims.processes.process import from_data
from ddlib.verification.claims.processes.reverse import bayes
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.inputs import (
    at,
    compare_draws,
    distribution,
    draws,
    logits,
    marginals,
    no_closed_form,
    per_pair,
    some_tokens,
)

WHOLE, DENSE = 1_000, 4_096
"""Up to ``WHOLE`` states all rows of a transition are compared, up to ``DENSE`` products with drawn
rows; beyond that
no transition is built."""

_QUICK = 400
"""Number of states beyond which the bound is compared with the entropy for cavity logits only."""

_SEEN = 1e-30
"""Probabilities below this need no relative accuracy: they practically never occur in draws."""


def too_many(limit: int, process: ForwardProcess) -> str:
    """Return the reason why a claim does not apply to a process of more than ``limit`` states.

    Empty if it applies.
    """
    return (
        f"{process.num_states} states, of at most {limit:,}" if process.num_states > limit else ""
    )


def _rows(process: ForwardProcess) -> Tensor | None:
    """Draw distributions of states, (8, S), by which transitions are multiplied.

    None for all rows.
    """
    if process.num_states <= WHOLE:
        return None
    generator = torch.Generator().manual_seed(3)
    peaked = torch.randn(8, process.num_states, generator=generator, dtype=torch.float64) * 8
    return peaked.softmax(-1)


def _times(rows: Tensor | None, *matrices: Tensor) -> Tensor:
    """Multiply matrices from the left, starting with ``rows``."""
    result, *factors = matrices if rows is None else (rows, *matrices)
    for matrix in factors:
        result = result @ matrix
    return result


def _tokens(process: ForwardProcess) -> Tensor:
    return some_tokens(process, 32)[None]


def _posterior(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare at evenly spaced states, from the first to the last."""
    count = min(64, process.num_states)
    z = torch.linspace(0, process.num_states - 1, count, dtype=torch.float64).long()
    yield from bayes(process, point, z[None])


def _marginals(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x = _tokens(process)
    t = at(float(point["t"]))
    marginal = process.marginal(x, t)
    total = marginal.sum(-1)[0]
    least = marginal.amin(-1)[0]
    yield Comparison("sum of q_t(.|x)", (), total, torch.ones_like(total), 1e-9, {"x": x[0]})
    yield Comparison("least q_t(z|x) >= 0", (), least, least.clamp_min(0), 0.0, {"x": x[0]})
    z = process.sample(x, t, torch.Generator().manual_seed(1))
    chance = marginal.gather(-1, z[..., None])[..., 0]
    yield per_pair("z_t is possible", x, z, (chance > 0).double(), torch.ones_like(chance), 0.0)
    yield per_pair("likelihood q_t(z|x)", x, z, process.likelihood(z, x, t), chance, 1e-9 * chance)
    evidence = process.token_likelihood(z, t)[0]
    for i in range(x.shape[1]):
        expected = process.marginal(x, t)[0, :, z[0, i]]
        yield Comparison(
            "token_likelihood q_t(z|x)",
            (),
            evidence[i, x[0]],
            expected,
            1e-9 * expected,
            {"x": x[0]},
        )
    p = distribution(process, 1)
    mixed = process.predictive(p, t)[0]
    yield Comparison("sum of q_t(.|p)", (), mixed.sum(-1), torch.ones(1, dtype=torch.float64), 1e-9)


def _transitions(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    s = float(point["s"])
    t = float(point["t"])
    rows = _rows(process)
    step = _times(rows, process.transition(s, t))
    ones = torch.ones(len(step), dtype=torch.float64)
    yield Comparison("sum of the row of q_{t|s}", ("from",), step.sum(1), ones, 1e-9)
    yield Comparison("q_{t|s} >= 0", ("from", "to"), step, step.clamp_min(0), 0.0)
    rates = process.rate_matrix(t)
    size = 1e-12 * (1 + rates.abs().sum(1))
    yield Comparison("sum of the row of Q_t", ("from",), rates.sum(1), torch.zeros_like(size), size)
    off = rates.clone().fill_diagonal_(0)
    yield Comparison("least Q_t(y, z) >= 0", ("from",), off.amin(1), off.amin(1).clamp_min(0), 0.0)


def _chapman_kolmogorov(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    s, u, t = (float(point[name]) for name in ("s", "u", "t"))
    rows = _rows(process)
    direct = _times(rows, process.transition(s, t))
    stepwise = _times(rows, process.transition(s, u), process.transition(u, t))
    yield Comparison("q_{t|s}", ("from", "to"), direct, stepwise, 1e-9)
    relevant = stepwise > _SEEN
    yield Comparison(
        "digits of q_{t|s}", ("from", "to"), direct * relevant, stepwise * relevant, 1e-6 * stepwise
    )


def _from_data(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    yield from from_data(process, point, _tokens(process), 1e-9)
    t = float(point["t"])
    p = distribution(process, 2)
    mixed = p[0] @ marginals(process, 0.0) @ process.transition(0.0, t)
    yield Comparison("q_t(z|p)", ("p", "z"), process.predictive(p, at(t))[0], mixed, 1e-9)


def _rates_integrate(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare the change of a transition over short and long spans around t with the integral of
    its product with Q.

    The integral is computed by Simpson's rule; the error is estimated from a coarser Simpson's
    rule. Long spans detect chains that wrongly stop after their fast modes have decayed, when
    derivatives are far smaller than the rates.
    """
    s = float(point["s"])
    t = float(point["t"])
    rows = _rows(process)
    exits = float(-process.rate_matrix(t).diagonal().min())
    long = 0.1 * min(t - s, 1 - t)
    short = min(long, 0.1 / max(exits, 1e-300))
    for half in sorted({short, math.sqrt(short * long), long}):
        nodes = [t + share * half for share in (-1.0, -0.5, 0.0, 0.5, 1.0)]
        at_nodes = [_times(rows, process.transition(s, node)) for node in nodes]
        a, b, c, d, e = (
            step @ process.rate_matrix(node) for step, node in zip(at_nodes, nodes, strict=True)
        )
        fine = half / 6 * (a + 4 * b + 2 * c + 4 * d + e)
        error = (fine - half / 3 * (a + 4 * c + e)).abs().amax(1, keepdim=True)
        allowed = (error + 1e-12 * (1 + half * exits) + 1e-11).expand_as(fine)
        got = at_nodes[-1] - at_nodes[0]
        yield Comparison(
            f"change of q_{{t|s}} over {2 * half:.3g}", ("from", "to"), got, fine, allowed
        )


def _linear(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Check consistency with one chain without a transition matrix: q_t(z|p) p(z_s|z_t, p) is
    linear in p.

    Also, the forward exit rate of a state, computed from the flow into it, must be the same for all
    distributions.
    """
    s = float(point["s"])
    t = float(point["t"])
    first, second = (distribution(process, seed) for seed in (1, 2))
    # states reached by noise, and the tokens themselves
    x = _tokens(process)[:, :8]
    z = torch.cat([process.sample(x, at(t), torch.Generator().manual_seed(4)), x[:, :4]], 1)
    mixtures = [
        p.expand(1, z.shape[1], -1).contiguous() for p in (first, second, (first + second) / 2)
    ]
    masses = [process.predictive(p, at(t)).gather(-1, z[..., None]) for p in mixtures]
    joint = [
        mass * process.posterior(p, z, at(t), at(s))
        for mass, p in zip(masses, mixtures, strict=True)
    ]
    quantity = "q_t(z_t|p) p(z_s|z_t, p) of a mixture"
    expected = (joint[0] + joint[1])[0] / 2
    yield Comparison(
        quantity, ("", "z_s"), joint[2][0], expected, 1e-9 + 1e-8 * expected, {"z_t": z[0]}
    )
    step = 1e-4 * min(t, 1 - t)
    leaving = []
    for p, mass in zip(mixtures, masses, strict=True):
        before, after = (
            process.predictive(p, at(time)).gather(-1, z[..., None])
            for time in (t - step, t + step)
        )
        slope = (after - before) / (2 * step * mass)
        leaving.append((process.reverse_rate(p, z, at(t)).sum(-1, keepdim=True) - slope)[0, :, 0])
    for rate in leaving[1:]:
        allowed = 1e-5 * (1 + leaving[0].abs() + 1 / min(t, 1 - t))
        yield Comparison(
            "rate at which a state is left", (), rate, leaving[0], allowed, {"z": z[0]}
        )


def _draws(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    s = float(point["s"])
    t = float(point["t"])
    n = max(draws(process), 2000)
    x = some_tokens(process, 3)
    generator = torch.Generator().manual_seed(5)
    z = process.sample(x.expand(n, -1).contiguous(), at(t, n), generator)
    marginal = process.marginal(x[None], at(t))[0]
    yield compare_draws("draws of z_t", ("", "z"), z, marginal, x=x)
    n = max(100, min(n, 2 * 10**7 // (3 * process.vocab_size)))
    scores = logits(process, 1)
    start = process.sample(x[None], at(t), generator).expand(n, -1).contiguous()
    landed = process.sample_given_level(
        scores.expand(n, 3, -1), start, at(t, n), at(s, n), None, generator
    )
    expected = process.posterior(scores.exp().expand(1, 3, -1), start[:1], at(t), at(s))[0]
    yield compare_draws("draws of z_s", ("", "z_s"), landed, expected, z_t=start[0])
    prior = process.sample_prior((n, 2), generator)
    yield compare_draws(
        "draws from the prior", ("position", "z"), prior, process.prior().expand(2, -1)
    )


def _bound(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x = _tokens(process)
    t = at(float(point["t"]))
    generator = torch.Generator().manual_seed(2)
    z = process.sample(x, t, generator)
    scores = torch.randn(1, x.shape[1], process.vocab_size, generator=generator)
    single, double = (nelbo(process, each, x, z, t) for each in (scores, scores.double()))
    yield per_pair("bound >= 0", x, z, double, double.clamp(0, 1e300), 0.0)
    yield per_pair("float32 bound", x, z, single, double, 1e-3 * (1 + double))


def _closed_form(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x = _tokens(process)
    t = at(float(point["t"]))
    z = process.sample(x, t, torch.Generator().manual_seed(6))
    scores = logits(process, 3, x.shape[1])
    closed, generic = (nelbo(process, scores, x, z, t, method) for method in ("auto", "generic"))
    yield per_pair("bound", x, z, closed, generic, 1e-8 * (1 + generic))


def _entropy(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    tokens = max(2, min(int(point["most tokens"]), 400_000 // process.num_states**2))
    kinds = 2 if process.num_states <= _QUICK else 1
    yield from entropy(process, {**point, "most tokens": tokens, "kinds": kinds})


_dense = partial(too_many, DENSE)
_whole = partial(too_many, WHOLE)

_ST = ({"s": 0.0, "t": 0.3}, {"s": 0.0, "t": 0.7}, {"s": 0.4, "t": 0.9})
_SUT = (
    {"s": 0.0, "u": 3e-5, "t": 1e-4},
    {"s": 0.0, "u": 0.3, "t": 0.6},
    {"s": 0.2, "u": 0.6, "t": 0.95},
    {"s": 0.0, "u": 0.9, "t": 0.99},
)
_FREEZES = (
    "transition and rate_matrix disagree: expected is the transition computed from the rates. "
    "Is a duration clamped?"
)

CLAIMS = (
    Claim(
        "as given",
        "distributions at size",
        "marginals sum to 1, draws are possible, likelihoods are the marginal's",
        "1e-9",
        _marginals,
        ({"t": 0.5}, {"t": 1e-6}),
        ({"t": 0.9}, {"t": 1.0}),
    ),
    Claim(
        "as given",
        "transitions at size",
        "rows of q_{t|s} sum to 1, rows of Q_t to 0, none is negative",
        "1e-9",
        _transitions,
        (*_ST, {"s": 0.0, "t": 1e-4}, {"s": 0.0, "t": 1 - 1e-6}),
        ({"s": 0.0, "t": 1e-8}, {"s": 0.9, "t": 0.901}),
        _dense,
    ),
    Claim(
        "as given",
        "Chapman-Kolmogorov at size",
        "q_{t|s} = q_{u|s} q_{t|u}",
        "1e-9; relative 1e-6",
        _chapman_kolmogorov,
        _SUT,
        ({"s": 0.0, "u": 1e-6, "t": 1e-3}, {"s": 0.0, "u": 0.5, "t": 1 - 1e-8}),
        _dense,
        rests_on=("transitions at size",),
    ),
    Claim(
        "as given",
        "rates at size",
        "transitions change by their product with Q_t, over short and long spans",
        "Simpson's rule and its error",
        _rates_integrate,
        _ST,
        ({"s": 0.0, "t": 0.01}, {"s": 0.0, "t": 0.97}),
        _dense,
        rests_on=("Chapman-Kolmogorov at size",),
        means=_FREEZES,
    ),
    Claim(
        "as given",
        "marginals at size",
        "q_0 is the data and q_t = q_0 q_{t|0}",
        "1e-9",
        _from_data,
        ({"t": 0.3}, {"t": 0.9}),
        ({"t": 1e-6}, {"t": 1.0}),
        _dense,
        rests_on=("rates at size",),
    ),
    Claim(
        "as given",
        "posterior at size",
        "p(z_s|z_t) is Bayes's rule at drawn states",
        "1e-8",
        _posterior,
        ({"s": 0.25, "t": 0.5, "distribution": 1},),
        ({"s": 0.0, "t": 0.9, "distribution": 2}, {"s": 0.49, "t": 0.5, "distribution": 0}),
        _dense,
        rests_on=("marginals at size",),
    ),
    Claim(
        "as given",
        "one chain at size",
        "posteriors and reverse rates of any two distributions share one chain",
        "1e-8; relative 1e-5",
        _linear,
        ({"s": 0.25, "t": 0.5},),
        ({"s": 0.1, "t": 0.9}, {"s": 0.0, "t": 0.05}),
        rests_on=("distributions at size",),
    ),
    Claim(
        "as given",
        "draws at size",
        "z_t, z_s and the prior follow their distributions",
        "binomial bounds, false alarm 1e-6",
        _draws,
        ({"s": 0.25, "t": 0.5},),
        ({"s": 0.0, "t": 0.9},),
        rests_on=("distributions at size", "one chain at size"),
    ),
    Claim(
        "as given",
        "bound",
        "the bound is finite and >= 0, in float32 as in float64",
        "relative 1e-3",
        _bound,
        ({"t": 0.5}, {"t": 1e-3}),
        ({"t": 0.99},),
        no_closed_form,
        rests_on=("closed = generic", "float32", "distributions at size"),
    ),
    Claim(
        "as given",
        "closed = generic at size",
        "the closed form is the bound from rates and marginals",
        "relative 1e-8",
        _closed_form,
        ({"t": 0.5}, {"t": 0.05}),
        ({"t": 0.95},),
        lambda process: no_closed_form(process) or _dense(process),
        rests_on=("distributions at size", "one chain at size"),
    ),
    Claim(
        "as given",
        "bound = entropy at size",
        "with the best distribution, bound and end terms are H(X)",
        "relative 1e-6",
        _entropy,
        ({"distribution": 1, "largest log-odds of t": 4.0, "most tokens": 3, "most nodes": 40},),
        ({"distribution": 2, "largest log-odds of t": 9.0, "most tokens": 12},),
        _whole,
        rests_on=("posterior at size", "closed = generic at size"),
    ),
)

"""Claims about the bound: closed form = generic form, nonnegative, tight for the exact model."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ddlib.objective.bound import reconstruction
from ddlib.objective.nelbo import nelbo
from ddlib.parameterization.logits import Parameterization, cavity_logits, posterior_logits
from ddlib.processes import ForwardProcess
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.inputs import (
    at,
    logits,
    marginals,
    no_closed_form,
    pairs,
    pairs_with_logits,
    per_pair,
    product,
    some_tokens,
    tokens,
)
from ddlib.verification.framework.reference import composite, logistic

# times at once, such that thousands of pairs fit into the CPU's caches
_NODES = 8
_HELD = 2**24
PARAMETERIZATIONS = ("cavity", "posterior")
_REACHED = 1e-250  # states below this probability do not contribute to a bound

_ENUMERATED = 8  # tokens, of which equivalence_classes has all by default


def turnover(process: ForwardProcess, x: Tensor, z: Tensor, t: Tensor, p: Tensor) -> Tensor:
    """Compute 1 + the reverse exit rates of z under the truth and under the model, (1, N).

    The bound is a difference of terms of this size, so this is the unit of its rounding errors.
    """
    truth = torch.nn.functional.one_hot(x, process.vocab_size).to(torch.float64)
    return 1 + process.reverse_rate(truth, z, t).sum(-1) + process.reverse_rate(p, z, t).sum(-1)


def _closed_form(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x, z, t, scores = pairs_with_logits(process, point)
    for kind in PARAMETERIZATIONS:
        closed = nelbo(process, scores, x, z, t, "auto", kind)
        generic = nelbo(process, scores, x, z, t, "generic", kind)
        p = cavity_logits(process, scores, z, t, kind).softmax(-1)
        allowed = 1e-10 * turnover(process, x, z, t, p) + 1e-8 * generic
        yield per_pair(f"bound from {kind} logits", x, z, closed, generic, allowed)


def _weights(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x, z, t = pairs(process, float(point["t"]))
    parts = [
        process.weighted_divergence(logits(process, seed).expand(*x.shape, -1), x, z, t)
        for seed in (0, point["distribution"])
    ]
    (flat, _), (weight, divergence) = parts
    yield per_pair("weight for another distribution", x, z, weight, flat, 0.0)
    yield per_pair("loss_weight", x, z, process.loss_weight(x, z, t), weight, 1e-12 * weight)
    yield per_pair("weight >= 0", x, z, weight, weight.clamp_min(0), 0.0)
    yield per_pair("divergence >= 0", x, z, divergence, divergence.clamp_min(0), 0.0)


def _positive(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x, z, t = pairs(process, float(point["t"]))
    truth = torch.nn.functional.one_hot(x, process.vocab_size).to(torch.float64)
    for method in ("auto", "generic"):
        for name, scores in (
            ("a drawn distribution", logits(process, point["distribution"])),
            ("the truth", truth.log().clamp_min(-600)),
        ):
            value = nelbo(process, scores.expand(*x.shape, -1), x, z, t, method)
            yield per_pair(
                f"{method} bound of {name} is >= 0", x, z, value, value.clamp_min(0), 0.0
            )
            if name == "the truth":
                allowed = 1e-9 * turnover(process, x, z, t, truth)
                yield per_pair(
                    f"{method} bound of the true token",
                    x,
                    z,
                    value,
                    torch.zeros_like(value),
                    allowed,
                )


def integrate(
    process: ForwardProcess,
    point: Point,
    denoiser: Callable[[Tensor, Tensor], Tensor],
    kind: Parameterization,
) -> tuple[Tensor, float, float, Tensor]:
    """Integrate the bound of each token from t = a to t = b, with the exact mean over noise.

    0 for tokens left out.

    The quadrature is refined until it converges, or has more than ``point["most nodes"]`` nodes,
    default 150.

    Returns the integrals (V,), a, b, and the change of the integrals in the last refinement (V,).
    """
    reach = float(point["largest log-odds of t"])
    (token, every) = product(process, point["most tokens"])
    together = max(1, min(_NODES, _HELD // (token.shape[1] * process.vocab_size)))

    def integral(points: int) -> Tensor:
        total = torch.zeros(process.vocab_size, dtype=torch.float64)
        for t, weight in zip(
            *(v.split(together) for v in _times(process, reach, points)), strict=True
        ):
            x = token.expand(len(t), -1)
            z = every.expand(len(t), -1)
            mass = process.likelihood(z, x, t)
            # replace impossible states, and those so unlikely that ratios overflow, by the most
            # likely state
            likeliest = mass.unflatten(1, (-1, process.num_states)).argmax(-1)
            z = torch.where(mass > _REACHED, z, likeliest.repeat_interleave(process.num_states, 1))
            mass = torch.where(mass > _REACHED, mass, 0.0)
            value = mass * nelbo(process, denoiser(z, t), x, z, t, "auto", kind)
            total.index_add_(0, token[0], weight @ value)
        return total

    points = 24
    value = integral(points)
    while True:
        points = 2 * points
        coarse = value
        value = integral(points)
        change = (value - coarse).abs()
        if points > point.get("most nodes", 150) or bool(
            (change <= 1e-7 * (1 + value.abs())).all()
        ):
            break
    a, b = torch.special.expit(torch.tensor([-reach, reach], dtype=torch.float64)).tolist()
    return value, a, b, change


def _times(process: ForwardProcess, reach: float, points: int) -> tuple[Tensor, Tensor]:
    """Return nodes and weights in the log-odds of t.

    Separate ones in each interval between ends of the schedules.
    """
    inner = process.breaks
    if not inner:
        return logistic(reach, points)
    a, b = torch.special.expit(torch.tensor([-reach, reach], dtype=torch.float64)).tolist()
    return composite([a, *(end for end in inner if a < end < b), b], logistic(34.0, points))


def removed_information(process: ForwardProcess, t: float, p: Tensor) -> Tensor:
    """Compute the information removed by noise after t, KL(q_t(.|x) || q_t(.|p)), for every token,
    (V,).
    """
    noisy = marginals(process, t)
    return (torch.xlogy(noisy, noisy) - torch.xlogy(noisy, p @ noisy)).sum(-1)


def _telescopes(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare the integrated bound with the KL difference: d/dt KL(q_t(.|x) || q_t(.|p)) is minus
    the bound's mean.
    """
    scores = logits(process, point["distribution"])[0, 0]
    value, a, b, change = integrate(
        process, point, lambda z, t: scores.expand(*z.shape, -1), "cavity"
    )
    lost = removed_information(process, a, scores.exp()) - removed_information(
        process, b, scores.exp()
    )
    tokens = some_tokens(process, point["most tokens"])
    quantity = f"integral of the bound from t = {a:.3g} to {b:.3g}"
    allowed = (1e-6 * (1 + lost) + change)[tokens]
    yield Comparison(quantity, (), value[tokens], lost[tokens], allowed, {"x": tokens})


def entropy(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare the bound of a drawn distribution of tokens, with the best model, to its entropy."""
    support = some_tokens(process, point["most tokens"])
    best = torch.full((process.vocab_size,), -torch.inf, dtype=torch.float64)
    best[support] = logits(process, point["distribution"])[0, 0, support].log_softmax(-1)
    truth = best.exp()
    nats = -torch.xlogy(truth, truth).sum()
    denoisers: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "cavity": lambda z, t: best.expand(*z.shape, -1),
        "posterior": lambda z, t: posterior_logits(process, best.expand(*z.shape, -1), z, t),
    }
    for kind in PARAMETERIZATIONS[: int(point.get("kinds", 2))]:
        denoiser = denoisers[kind]
        inner, a, b, change = integrate(process, point, denoiser, kind)
        x, z, t = pairs(process, a, point["most tokens"])
        scores = cavity_logits(process, denoiser(z, t), z, t, kind)
        reconstruction_nats = (
            truth[x] * process.likelihood(z, x, t) * reconstruction(process, scores, x, z, t)
        ).sum()
        prior_nats = truth @ process.prior_kl(tokens(process), at(b))[0]
        # the prior is that of uniform tokens, not of the data: at b this adds the KL between the
        # two
        noisy = marginals(process, b)
        mismatch = torch.xlogy(
            truth @ noisy, (truth @ noisy) / noisy.mean(0).clamp_min(1e-300)
        ).sum()
        got = truth @ inner + reconstruction_nats + prior_nats
        allowed = 1e-6 * (1 + nats) + truth @ change
        yield Comparison(f"bound from {kind} logits", (), got, nats + mismatch, allowed)


def _gradients(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x, z, t = pairs(process, float(point["t"]))
    for dtype in (torch.float32, torch.float64):
        for scale in (0.0, 1.0, 40.0):  # uniform, typical and very confident networks
            for kind in PARAMETERIZATIONS:
                scores = logits(process, 1, scale=scale).to(dtype).expand(*x.shape, -1).clone()
                with torch.enable_grad():
                    scores.requires_grad_()
                    value = nelbo(process, scores, x, z, t.to(dtype), parameterization=kind)
                    (slope,) = torch.autograd.grad(value.sum(), scores)
                finite = (value.isfinite() & slope.isfinite().all(-1)).double()
                quantity = f"finite bound and gradient, {kind} logits of scale {scale:g} in {dtype}"
                yield per_pair(quantity, x, z, finite, torch.ones_like(finite), 0.0)


_T = (
    {"t": 0.5, "distribution": 1},
    {"t": 0.1, "distribution": 2},
    {"t": 1e-6, "distribution": 3},
    {"t": 1 - 1e-6, "distribution": 4},
)
_MORE = (
    {"t": 0.9, "distribution": 5},
    {"t": 1e-3, "distribution": 0},
    {"t": 1e-8, "distribution": 6},
    {"t": 1 - 1e-8, "distribution": 7},
)
_BRIEF = {"distribution": 1, "largest log-odds of t": 4.0, "most tokens": 12}
_LONG = (
    {"distribution": 2, "largest log-odds of t": 9.0, "most tokens": 50},
    {"distribution": 0, "largest log-odds of t": 9.0, "most tokens": 50},
)


def _alike(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare sums over the representatives of ``equivalence_classes`` with those over all
    pairs.
    """
    if process.vocab_size > _ENUMERATED:
        return
    every = product(process, _ENUMERATED)
    x, z, count = process.equivalence_classes()

    def moments(x: Tensor, z: Tensor, count: Tensor) -> Tensor:
        t = at(float(point["t"]))
        mass = process.likelihood(z, x, t)[0] * count
        weight = torch.where(mass > 0, process.loss_weight(x, z, t)[0], 0.0)
        return torch.stack([mass @ weight, mass @ weight**2]) / mass.sum()

    expected = moments(*every, torch.ones(every[0].shape[1], dtype=torch.float64))
    got = moments(x[None], z[None], count)
    yield Comparison(
        "mean and mean square of loss_weight over equivalence_classes",
        ("moment",),
        got,
        expected,
        1e-9 * (1 + expected),
    )


CLAIMS = (
    Claim(
        "objective",
        "closed = generic",
        "the closed form is the sum of theory section 1, for every (x, z)",
        "1e-10 of the turnover",
        _closed_form,
        _T,
        _MORE,
        no_closed_form,
        ("reverse rate",),
        "weighted_divergence disagrees with rate_matrix and marginal: expected is the bound "
        "from these two",
    ),
    Claim(
        "objective",
        "weights",
        "the weight is that of loss_weight, >= 0, and does not depend on the prediction; the "
        "divergence is >= 0",
        "exactly; 1e-12 of the weight",
        _weights,
        ({"t": 0.5, "distribution": 1},),
        ({"t": 1e-6, "distribution": 2}, {"t": 0.99, "distribution": 3}),
        no_closed_form,
        ("closed = generic",),
    ),
    Claim(
        "objective",
        "non-negative",
        "the bound's integrand is >= 0, and 0 for the true token",
        "exactly; 1e-9 of the turnover",
        _positive,
        ({"t": 0.5, "distribution": 1},),
        ({"t": 1e-4, "distribution": 2}, {"t": 0.99, "distribution": 3}),
        rests_on=("closed = generic", "reverse rate"),
    ),
    Claim(
        "objective",
        "telescopes",
        "the bound's integral is the KL that noise removes, for every token",
        "relative 1e-6",
        _telescopes,
        (_BRIEF,),
        _LONG,
        rests_on=("closed = generic", "limit"),
    ),
    Claim(
        "objective",
        "bound = entropy",
        "with the exact model, bound and end terms are H(X), in both parameterizations",
        "relative 1e-6",
        entropy,
        (_BRIEF,),
        _LONG,
        rests_on=("telescopes", "prior"),
    ),
    Claim(
        "objective",
        "gradients",
        "bound and gradient are finite at the ends of time",
        "exactly",
        _gradients,
        ({"t": 1e-6}, {"t": 1 - 1e-6}),
        ({"t": 0.0}, {"t": 1.0}),
        rests_on=("non-negative",),
    ),
    Claim(
        "objective",
        "classes of pairs",
        "equivalence_classes represent all pairs of token and state",
        "relative 1e-9",
        _alike,
        ({"t": 0.5},),
        ({"t": 0.1}, {"t": 0.9}),
        no_closed_form,
    ),
)

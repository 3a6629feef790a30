"""What holds for the bound: closed form = generic, never negative, tight for the best model."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ddlib.bound import reconstruction
from ddlib.denoiser import cavity_logits
from ddlib.nelbo import nelbo
from ddlib.processes import ForwardProcess
from ddlib.verification.cases import at, law, logits, marginals, pairs, words
from ddlib.verification.claim import Claim, Comparison, Point
from ddlib.verification.oracle import exact_cavity, exact_posterior, logistic

PARAMETERIZATIONS = ("cavity", "posterior")


def turnover(process: ForwardProcess, x: Tensor, z: Tensor, t: Tensor, p: Tensor) -> Tensor:
    """1 + the rates at which z is left backwards in time under the truth and under the model, (N, 1).

    The bound adds and subtracts terms of this size, so it is the unit of its rounding errors.
    """
    truth = torch.nn.functional.one_hot(x, process.vocab_size).to(torch.float64)
    return 1 + process.reverse_rate(truth, z, t).sum(-1) + process.reverse_rate(p, z, t).sum(-1)


def _closed(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x, z, t = pairs(process, float(point["t"]))
    scores = logits(process, point["law"]).expand(len(x), 1, -1)
    for kind in PARAMETERIZATIONS:
        closed = nelbo(process, scores, x, z, t, "auto", kind)
        generic = nelbo(process, scores, x, z, t, "generic", kind)
        p = cavity_logits(process, scores, z, t, kind).softmax(-1)
        allowed = 1e-10 * turnover(process, x, z, t, p) + 1e-8 * generic
        cases = {"x": x[:, 0], "z": z[:, 0]}
        yield Comparison(f"bound from {kind} logits", (), closed[:, 0], generic[:, 0], allowed[:, 0], cases)


def _weights(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x, z, t = pairs(process, float(point["t"]))
    parts = [
        process.weighted_divergence(logits(process, seed).expand(len(x), 1, -1), x, z, t) for seed in (0, point["law"])
    ]
    cases = {"x": x[:, 0], "z": z[:, 0]}
    (flat, _), (weight, divergence) = [part for part in parts if part is not None]
    yield Comparison("weight for another law", (), weight[:, 0], flat[:, 0], 0.0, cases)
    yield Comparison("weight >= 0", (), weight[:, 0], weight[:, 0].clamp_min(0), 0.0, cases)
    yield Comparison("divergence >= 0", (), divergence[:, 0], divergence[:, 0].clamp_min(0), 0.0, cases)


def _no_closed_form(process: ForwardProcess) -> str:
    x = torch.zeros(1, 1, dtype=torch.int64)
    return "" if process.weighted_divergence(logits(process, 0), x, x, at(0.5)) else "there is no closed form"


def _positive(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x, z, t = pairs(process, float(point["t"]))
    truth = torch.nn.functional.one_hot(x, process.vocab_size).to(torch.float64)
    for method in ("auto", "generic"):
        for name, scores in (("a drawn law", logits(process, point["law"])), ("the truth", truth.log().clamp_min(-60))):
            value = nelbo(process, scores.expand(len(x), 1, -1), x, z, t, method)[:, 0]
            cases = {"x": x[:, 0], "z": z[:, 0]}
            yield Comparison(f"{method} bound of {name} is >= 0", (), value, value.clamp_min(0), 0.0, cases)
            if name == "the truth":
                yield Comparison(f"{method} bound of the truth", (), value, torch.zeros_like(value),
                                 1e-9 * turnover(process, x, z, t, truth)[:, 0], cases)  # fmt: skip


def integrated(
    process: ForwardProcess, reach: float, denoiser: Callable[[Tensor, Tensor], Tensor], kind: str
) -> tuple[Tensor, float, float, Tensor]:
    """The bound of each word, averaged over noise exactly and integrated from t = a to t = b.

    Returns the integrals (V,), a, b, and by how much they changed when the quadrature was last refined (V,).
    """

    def integral(points: int) -> Tensor:
        total = torch.zeros(process.vocab_size, dtype=torch.float64)
        for node, weight in zip(*(v.tolist() for v in logistic(reach, points)), strict=True):
            x, z, t = pairs(process, node)
            mass = process.likelihood(z, x, t) * nelbo(process, denoiser(z, t), x, z, t, "auto", kind)
            total.index_add_(0, x[:, 0], weight * mass[:, 0])
        return total

    points = 24
    value = integral(points)
    while True:
        points, coarse = 2 * points, value
        value = integral(points)
        change = (value - coarse).abs()
        if points > 150 or bool((change <= 1e-7 * (1 + value.abs())).all()):
            break
    a, b = torch.special.expit(torch.tensor([-reach, reach], dtype=torch.float64)).tolist()
    return value, a, b, change


def _divergence(process: ForwardProcess, t: float, p: Tensor) -> Tensor:
    """KL(q_t(.|x) || q_t(.|p)) for every word, (V,)."""
    noisy = marginals(process, t)
    return (torch.xlogy(noisy, noisy) - torch.xlogy(noisy, p @ noisy)).sum(-1)


def _telescopes(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """d/dt KL(q_t(.|x) || q_t(.|p)) is minus the bound's mean: the fact that makes it a bound, on any interval."""
    scores = logits(process, point["law"])[0, 0]
    reach = float(point["reach"])
    value, a, b, change = integrated(process, reach, lambda z, t: scores.expand(*z.shape, -1), "cavity")
    lost = _divergence(process, a, scores.exp()) - _divergence(process, b, scores.exp())
    yield Comparison(
        f"integral of the bound from t = {a:.3g} to {b:.3g}", ("x",), value, lost, 1e-6 * (1 + lost) + change
    )


def _entropy(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    truth = law(process, point["law"])[0, 0]
    entropy = -torch.xlogy(truth, truth).sum()
    for kind, oracle in (("cavity", exact_cavity), ("posterior", exact_posterior)):
        denoiser = oracle(process, truth)
        inner, a, b, change = integrated(process, float(point["reach"]), denoiser, kind)
        x, z, t = pairs(process, a)
        scores = cavity_logits(process, denoiser(z, t), z, t, kind)
        left = (truth[x] * process.likelihood(z, x, t) * reconstruction(process, scores, x, z, t)).sum()
        right = truth @ process.prior_kl(words(process), at(b))[0]
        # the prior comes from uniform words, not from the text: its mismatch is the price at b
        noisy = marginals(process, b)
        mismatch = torch.xlogy(truth @ noisy, (truth @ noisy) / noisy.mean(0).clamp_min(1e-300)).sum()
        got = truth @ inner + left + right
        yield Comparison(f"bound from {kind} logits", (), got, entropy + mismatch,
                         1e-6 * (1 + entropy) + truth @ change)  # fmt: skip


def _gradients(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x, z, t = pairs(process, float(point["t"]))
    cases = {"x": x[:, 0], "z": z[:, 0]}
    for dtype in (torch.float32, torch.float64):
        for scale in (0.0, 1.0, 40.0):  # as flat, as usual and as sure as networks get
            for kind in PARAMETERIZATIONS:
                scores = logits(process, 1, scale=scale).to(dtype).expand(len(x), 1, -1).clone()
                with torch.enable_grad():
                    scores.requires_grad_()
                    value = nelbo(process, scores, x, z, t.to(dtype), parameterization=kind)
                    (slope,) = torch.autograd.grad(value.sum(), scores)
                finite = (value.isfinite()[:, 0] & slope.isfinite().all(-1)[:, 0]).double()
                quantity = f"finite bound and gradient, {kind} logits of scale {scale:g} in {dtype}"
                yield Comparison(quantity, (), finite, torch.ones_like(finite), 0.0, cases)


_T = ({"t": 0.5, "law": 1}, {"t": 0.1, "law": 2}, {"t": 1e-6, "law": 3}, {"t": 1 - 1e-6, "law": 4})
_MORE = ({"t": 0.9, "law": 5}, {"t": 1e-3, "law": 0}, {"t": 1e-8, "law": 6}, {"t": 1 - 1e-8, "law": 7})
_BRIEF = {"law": 1, "reach": 4.0}
_LONG = ({"law": 2, "reach": 9.0}, {"law": 0, "reach": 9.0})

CLAIMS = (
    Claim("objective", "closed = generic", "the closed form is theory section 1's sum, for every (x, z)",
          "1e-10 of the turnover", _closed, _T, _MORE, _no_closed_form),
    Claim("objective", "weights", "the weight is >= 0 and knows only time and state, the divergence is >= 0",
          "exactly", _weights, ({"t": 0.5, "law": 1},), ({"t": 1e-6, "law": 2}, {"t": 0.99, "law": 3}),
          _no_closed_form),
    Claim("objective", "non-negative", "the bound's integrand is >= 0, and 0 for the truth",
          "exactly; 1e-9 of the turnover", _positive,
          ({"t": 0.5, "law": 1},), ({"t": 1e-4, "law": 2}, {"t": 0.99, "law": 3})),
    Claim("objective", "telescopes", "the bound's integral is the KL that noise removes, for every word",
          "relative 1e-6", _telescopes, (_BRIEF,), _LONG),
    Claim("objective", "bound = entropy", "with the best law, bound and end terms are H(X), in both parameterizations",
          "relative 1e-6", _entropy, (_BRIEF,), _LONG),
    Claim("objective", "gradients", "bound and gradient are finite at the ends of time", "exactly", _gradients,
          ({"t": 1e-6}, {"t": 1 - 1e-6}), ({"t": 0.0}, {"t": 1.0})),
)  # fmt: skip

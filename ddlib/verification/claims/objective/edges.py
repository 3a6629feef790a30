"""Claims about losses on all edges below a state, with the mean of the bound, and the hard mode."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor
from torch.nn.functional import linear

from ddlib.kernels import Hidden
from ddlib.objective.nelbo import nelbo
from ddlib.objective.training import training_loss
from ddlib.parameterization.logits import Parameterization, posterior_logits
from ddlib.parameterization.tree_softmax import Children
from ddlib.processes import ForwardProcess
from ddlib.verification.claims.objective.bound import turnover
from ddlib.verification.claims.objective.tree_softmax import trees
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.inputs import pairs, pairs_with_logits, per_pair

_WIDTH = 3
"""Width of the hidden states."""


def _loss(
    process: ForwardProcess,
    scores: Tensor,
    x: Tensor,
    z: Tensor,
    t: Tensor,
    weights: Sequence[float] | None = None,
) -> Tensor:
    return training_loss(process, scores, x, z, t, mode=weights or "edges", reduction="none")


def _mean(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare means over z, for every token, with predictions that do not depend on the state of
    the position.
    """
    x, z, t, scores = pairs_with_logits(process, point)
    chance = process.likelihood(z, x, t)

    def mean(values: Tensor) -> Tensor:
        return torch.zeros(process.vocab_size, dtype=torch.float64).index_add(
            0, x[0], (chance * values)[0]
        )

    expected = mean(nelbo(process, scores, x, z, t))
    got = mean(_loss(process, scores, x, z, t))
    unit = mean(turnover(process, x, z, t, scores.exp()))
    yield Comparison(
        "mean over z of the losses on all edges", ("x",), got, expected, 1e-9 * (unit + expected)
    )


def _way(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare the edges at full weight with -log of the token's probability given z: the path from
    z to the token.
    """
    x, z, t, scores = pairs_with_logits(process, point)
    nats = -posterior_logits(process, scores, z, t).log_softmax(-1).gather(-1, x[..., None])[..., 0]
    expected = process.loss_weight(x, z, t) * nats
    depth = len(process.levels) - 1
    got = _loss(process, scores, x, z, t, [1.0] * depth)
    allowed = 1e-9 * (turnover(process, x, z, t, scores.exp()) + expected)
    yield per_pair("all edges at full weight", x, z, got, expected, allowed)
    twice = _loss(process, scores, x, z, t, [2.0 * (edge == 0) + 1 for edge in range(depth)])
    bound = nelbo(process, scores, x, z, t)
    yield per_pair(
        "no weight below 1: at least the bound",
        x,
        z,
        twice.minimum(bound - allowed),
        bound - allowed,
        0.0,
    )


def _fused_loss(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x, z, t = pairs(process, float(point["t"]))
    generator = torch.Generator().manual_seed(int(point["distribution"]))
    meanings: dict[str, tuple[Parameterization, int]] = {"tokens": ("cavity", process.vocab_size)}
    meanings |= {
        f"{name} clusters": (Children(tree), tree.num_states - 1)
        for name, tree in trees(process).items()
    }
    other_weights = [0.5 + edge for edge in range(len(process.levels) - 1)]
    for name, (meaning, size) in meanings.items():
        shapes = (*x.shape, _WIDTH), (size, _WIDTH), (size,)
        layer = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
        for weights in (None, other_weights):
            with torch.enable_grad():
                parameters = [part.clone().requires_grad_() for part in layer]
                hidden, weight, bias = parameters
                fused = training_loss(
                    process,
                    Hidden(hidden, weight, bias),
                    x,
                    z,
                    t,
                    None,
                    weights or "edges",
                    parameterization=meaning,
                    reduction="none",
                )
                fused_grads = torch.autograd.grad(fused.sum(), parameters)
                plain = training_loss(
                    process,
                    linear(hidden, weight, bias),
                    x,
                    z,
                    t,
                    None,
                    weights or "edges",
                    parameterization=meaning,
                    reduction="none",
                )
                plain_grads = torch.autograd.grad(plain.sum(), parameters)
            unit = 1 + process.loss_weight(x, z, t) + plain.detach()
            variant = f"with {name} in the output, " + (
                "weights of the bound" if weights is None else "others"
            )
            yield per_pair(
                f"fused losses {variant}", x, z, fused.detach(), plain.detach(), 1e-10 * unit
            )
            for name, fused_grad, plain_grad in zip(
                ("hidden", "weight", "bias"), fused_grads, plain_grads, strict=True
            ):
                worst = float((1e-9 * unit).sum())
                yield Comparison(
                    f"gradient by {name} {variant}",
                    (),
                    fused_grad.flatten(),
                    plain_grad.flatten(),
                    worst,
                )


def _hard(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare the hard mode with the nearer one of the bound and -log p(x)."""
    x, z, t, scores = pairs_with_logits(process, point)
    weight, divergence = process.hard_weighted_divergence(scores, x, z, t)
    of_bound = process.loss_weight(x, z, t)
    yield per_pair("weight of the hard mode", x, z, weight, of_bound, 1e-12 * (1 + of_bound))
    bound = nelbo(process, scores, x, z, t)
    got = torch.where(weight > 0, weight * divergence, 0.0)
    nats = of_bound * -scores.gather(-1, x[..., None])[..., 0]
    nearer = torch.where((got - bound).abs() <= (got - nats).abs(), bound, nats)
    yield per_pair("hard loss, the bound or -log p(x)", x, z, got, nearer, 1e-9 * (1 + nearer))


def _no_hard_mode(process: ForwardProcess) -> str:
    return "" if "hard" in process.modes else "it has no hard mode"


def _no_edges(process: ForwardProcess) -> str:
    return "" if "edges" in process.modes else "it has no edges"


CLAIMS = (
    Claim(
        "objective",
        "edges",
        "losses on all edges have the bound's mean, for predictions that do not depend on z",
        "1e-9 of the turnover",
        _mean,
        ({"t": 0.5, "distribution": 1}, {"t": 1e-4, "distribution": 2}),
        ({"t": 0.99, "distribution": 3}, {"t": 1e-8, "distribution": 4}),
        _no_edges,
        ("closed = generic",),
    ),
    Claim(
        "objective",
        "way to the token",
        "at full weight they are -log p(x|z) of the token, an upper bound",
        "1e-9 of the turnover",
        _way,
        ({"t": 0.5, "distribution": 1},),
        ({"t": 1e-4, "distribution": 2}, {"t": 0.99, "distribution": 3}),
        _no_edges,
        ("closed = generic",),
    ),
    Claim(
        "objective",
        "fused edges",
        "from hidden states they are the same, with their gradients",
        "1e-10 of the weight",
        _fused_loss,
        ({"t": 0.4, "distribution": 1},),
        ({"t": 0.05, "distribution": 2},),
        _no_edges,
        ("edges", "way to the token"),
    ),
    Claim(
        "objective",
        "hard mode",
        "it is the weight of the bound times its divergence or -log p(x)",
        "1e-9",
        _hard,
        ({"t": 0.5, "distribution": 1}, {"t": 0.05, "distribution": 2}),
        ({"t": 0.95, "distribution": 3},),
        _no_hard_mode,
        ("closed = generic",),
    ),
)

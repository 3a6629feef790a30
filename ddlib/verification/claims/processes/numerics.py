"""Claims about lower precision and about moving a process between devices and dtypes."""

import copy
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor, nn

from ddlib.kernels import Hidden
from ddlib.objective.nelbo import nelbo
from ddlib.objective.training import training_loss
from ddlib.processes import ForwardProcess
from ddlib.verification.claims.objective.bound import turnover
from ddlib.verification.claims.processes.at_size import DENSE, too_many
from ddlib.verification.framework.claim import Claim, Comparison, Point, condition, of_dtype
from ddlib.verification.framework.inputs import (
    at,
    distribution,
    logits,
    pairs,
    pairs_with_logits,
    per_pair,
    some_tokens,
    tokens,
)

_FEW = 12  # tokens whose states are compared: the losses depend on rows of a batch one by one


def _single(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x, z, t, scores = pairs_with_logits(process, point)
    scores = scores.float()
    exact = nelbo(process, scores.double(), x, z, t)
    argument = scores.clone()
    got = nelbo(process, argument, x, z, t.float())
    yield Comparison("float32 logits after the call", ("B", "pair", "x"), argument, scores, 0.0)
    allowed = 1e-5 * turnover(process, x, z, t, scores.double().softmax(-1)) + 1e-4 * exact
    yield per_pair("float32 bound", x, z, got, exact, allowed)
    time = torch.tensor([point["t"]], dtype=torch.float32)
    single, double = (process.marginal(tokens(process), v)[0] for v in (time, time.double()))
    yield of_dtype("marginal at a float32 time", single, torch.float32)
    yield Comparison(
        "q_t(z|x) at a float32 time", ("x", "z"), single, double, 1e-6 * double.abs() + 1e-37
    )


def _half(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x, z, t, double = pairs_with_logits(process, point)
    for dtype in (torch.bfloat16, torch.float16):
        scores = double.to(dtype).clone()
        before = scores.clone()
        got = nelbo(process, scores, x, z, t.float())
        yield of_dtype(f"bound of {dtype} logits", got, torch.float32)
        exact = nelbo(process, scores.float(), x, z, t.float())
        yield per_pair(f"bound of {dtype} logits", x, z, got, exact, 0.0)
        yield Comparison(f"{dtype} logits after the call", ("B", "pair", "x"), scores, before, 0.0)


def _compare(
    process: ForwardProcess, x: Tensor, z: Tensor, t: Tensor, scores: Tensor
) -> Iterator[Comparison]:
    """Compare the bound, both training losses and the product of ``integrand_parts`` with the bound
    in float64.

    Args:
        process: the process.
        x: (1, N) tokens.
        z: (1, N) states.
        t: (1,) time.
        scores: (1, N, V) logits in float64, which are rounded to low precision.
    """
    for dtype in (torch.float32, torch.bfloat16):
        rounded = scores.to(dtype)
        double = rounded.double()
        exact = nelbo(process, double, x, z, t)
        allowed = 1e-5 * turnover(process, x, z, t, double.softmax(-1)) + 1e-4 * exact
        # hidden states whose product with a layer is the layer
        rows = torch.eye(x.shape[1], dtype=dtype)[None]
        fused = training_loss(process, Hidden(rows, rounded[0].mT), x, z, t, reduction="none")
        results = {
            "nelbo": nelbo(process, rounded, x, z, t),
            "training_loss": training_loss(process, rounded, x, z, t, reduction="none"),
            "training_loss of hidden states": fused,
            "integrand_parts": torch.mul(*process.integrand_parts(rounded.float(), x, z, t)),
        }
        for name, values in results.items():
            yield per_pair(f"{name} of {dtype} logits", x, z, values, exact, allowed)


def _losses(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x, z, t = pairs(process, float(point["t"]), _FEW)
    yield from _compare(process, x, z, t, logits(process, point["distribution"], x.shape[1]))


def _losses_at_size(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare at drawn states, and at the tokens themselves."""
    x = some_tokens(process, 8)[None]
    t = at(float(point["t"]))
    z = process.sample(x, t, torch.Generator().manual_seed(7))
    x, z = torch.cat([x, x], 1), torch.cat([z, x], 1)
    possible = process.likelihood(z, x, t)[0] > 0
    x = x[:, possible]
    z = z[:, possible]
    yield from _compare(process, x, z, t, logits(process, point["distribution"], x.shape[1]))


def _dtypes(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x = tokens(process)
    for dtype in (torch.float32, torch.float64):
        t = torch.tensor([point["t"]], dtype=dtype)
        p = distribution(process, 0, process.vocab_size).to(dtype)
        answers = {
            "marginal": process.marginal(x, t),
            "predictive": process.predictive(p, t),
            "posterior": process.posterior(p, x, t, t / 2),
            "reverse_rate": process.reverse_rate(p, x, t),
        }
        for name, answer in answers.items():
            yield of_dtype(f"{name} of {dtype} arguments", answer, dtype)
            shape = torch.tensor(answer.shape)
            want = torch.tensor([1, process.vocab_size, process.num_states])
            yield Comparison(f"shape of {name}", ("axis",), shape, want, 0.0)


def _moves(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Check that all tensors of the process move with it, without loss of precision."""
    s = float(point["s"])
    t = float(point["t"])
    moved = copy.deepcopy(process).to(torch.bfloat16)
    yield Comparison(
        "q_{t|s} after .to(bfloat16)",
        ("from", "to"),
        moved.transition(s, t),
        process.transition(s, t),
        0,
    )
    yield Comparison(
        "Q_t after .to(bfloat16)", ("from", "to"), moved.rate_matrix(t), process.rate_matrix(t), 0.0
    )
    away = copy.deepcopy(process).to("meta")
    unmoved = sorted({name for module in away.modules() for name in _unmoved_tensors(module)})
    message = f"{', '.join(unmoved)}: not moved by .to(device), must move with the process"
    hint = (
        "a tensor moves if it is an attribute of a ddlib.utils.precision.Float64Module, such "
        "as a process"
    )
    yield condition("tensors not moved by .to(device)", not unmoved, message, hint)


def _unmoved_tensors(module: nn.Module) -> Iterator[str]:
    """Yield the names of attributes with tensors on another device than "meta"."""
    attributes = {**module._buffers, **module._parameters}
    attributes |= {
        name: value
        for name, value in vars(module).items()
        if name not in ("_buffers", "_parameters", "_modules")
    }
    for name, value in attributes.items():
        inside = (
            value.values()
            if isinstance(value, dict)
            else value
            if isinstance(value, (list, tuple))
            else [value]
        )
        if any(isinstance(tensor, Tensor) and tensor.device.type != "meta" for tensor in inside):
            yield f"{type(module).__name__}.{name}"


_ENDS: Sequence[Point] = (
    {"t": 0.01, "distribution": 0},
    {"t": 1e-4, "distribution": 1},
    {"t": 1 - 1e-4, "distribution": 2},
)
_MORE_ENDS: Sequence[Point] = (
    {"t": 1e-6, "distribution": 0},
    {"t": 0.99, "distribution": 0},
    {"t": 1 - 1e-6, "distribution": 3},
)

CLAIMS = (
    Claim(
        "numerics",
        "float32",
        "float32 follows float64",
        "1e-5 of the turnover",
        _single,
        ({"t": 0.5, "distribution": 1}, {"t": 1e-3, "distribution": 2}),
        ({"t": 1 - 1e-3, "distribution": 3}, {"t": 0.03, "distribution": 0}),
        rests_on=("rates", "distributions", "elementwise", "dtypes and shapes"),
    ),
    Claim(
        "numerics",
        "half precision",
        "half-precision logits are computed in float32 and not modified",
        "exactly",
        _half,
        ({"t": 0.5, "distribution": 1},),
        rests_on=("closed = generic", "float32"),
    ),
    Claim(
        "numerics",
        "loss = bound",
        "without a weighting both training losses are the bound, up to the ends of time",
        "1e-5 of the turnover",
        _losses,
        _ENDS,
        _MORE_ENDS,
        rests_on=("half precision",),
    ),
    Claim(
        "numerics",
        "dtypes and shapes",
        "results have the dtype of the arguments and one entry per state",
        "exactly",
        _dtypes,
        ({"t": 0.5},),
        rests_on=("answers",),
    ),
    Claim(
        "numerics",
        "moves",
        ".to moves every tensor and changes no values",
        "exactly",
        _moves,
        ({"s": 0.2, "t": 0.6},),
        rests_on=("rates", "distributions"),
    ),
)

SIZE_CLAIMS = (
    Claim(
        "as given",
        "loss = bound at size",
        "without a weighting both training losses are the bound",
        "1e-5 of the turnover",
        _losses_at_size,
        _ENDS,
        _MORE_ENDS,
        lambda process: "" if process.closed_form else too_many(DENSE, process),
        rests_on=("loss = bound", "bound", "one chain at size"),
    ),
)

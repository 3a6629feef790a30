"""Claims about processes: generator, transitions and marginals belong to one chain."""

from collections.abc import Callable, Iterator

import torch

from ddlib.processes import ForwardProcess
from ddlib.verification.framework.claim import FLOAT64, Claim, Comparison, Point, condition
from ddlib.verification.framework.inputs import at, distribution, marginals, remembers, tokens
from ddlib.verification.framework.reference import integrate_forward, states


def _answers(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    s = point["s"]
    t = point["t"]
    square = (process.num_states, process.num_states)
    calls: dict[str, tuple[Callable[[], object], tuple[int, ...]]] = {
        "rate_matrix(t)": (lambda: process.rate_matrix(t), square),
        "transition(s, t)": (lambda: process.transition(s, t), square),
        "marginal(x, t)": (
            lambda: process.marginal(tokens(process), at(float(t))),
            (1, process.vocab_size, square[0]),
        ),
    }
    for call, (answer, shape) in calls.items():
        got = answer()
        if isinstance(got, torch.Tensor):
            is_ = f"{got.dtype} of shape {tuple(got.shape)}"
            right = got.dtype == torch.float64 and got.shape == shape
            hint = FLOAT64 if got.shape == shape else ""
        else:
            is_ = f"{type(got).__name__}"
            right = False
            hint = f"{call} must return a tensor"
        yield condition(
            call, right, f"{call} is {is_}, must be torch.float64 of shape {shape}", hint
        )
    counted = tuple(
        torch.bincount(process.level_of(torch.arange(process.num_states)[None])[0]).tolist()
    )
    hint = "a subclass with other levels than tokens and one mask overrides levels and level_of"
    yield condition(
        "levels",
        counted == process.levels,
        f"levels is {process.levels}, level_of has {counted}",
        hint,
    )


def _transposition_hint(matrix: torch.Tensor, total: float) -> str:
    """Return a hint if the columns of a matrix have the sums that its rows should have."""
    columns = matrix.sum(0)
    if bool(((columns - total).abs() <= 1e-9 * (1 + matrix.abs().sum(0))).all()):
        return f"its columns sum to {total:g}: row = from, column = to, so return the transpose"
    return ""


def _rates(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    q = process.rate_matrix(point["t"])
    off = q - torch.diag(q.diagonal())
    zero = torch.zeros(process.num_states, dtype=torch.float64)
    yield Comparison(
        "sum of the row of Q_t",
        ("from",),
        q.sum(1),
        zero,
        1e-12 * (1 + off.abs().sum(1)),
        hint=_transposition_hint(q, 0.0),
    )
    yield Comparison("rate Q_t(y, z) >= 0", ("from", "to"), off, off.clamp_min(0), 0.0)
    moving = torch.tensor(float(off.isfinite().all() and off.max() > 0))
    yield Comparison("Q_t is finite and has a positive rate", (), moving, torch.tensor(1.0), 0.0)


def _row_sums(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    step = process.transition(point["s"], point["t"])
    ones = torch.ones(process.num_states, dtype=torch.float64)
    yield Comparison(
        "sum of the row of q_{t|s}",
        ("from",),
        step.sum(1),
        ones,
        1e-10,
        hint=_transposition_hint(step, 1.0),
    )
    yield Comparison("q_{t|s} >= 0", ("from", "to"), step, step.clamp_min(0), 0.0)
    still = process.transition(point["t"], point["t"])
    yield Comparison("q_{t|t}", ("from", "to"), still, torch.diag(ones), 1e-12)
    marginal = marginals(process, point["t"])
    yield Comparison("sum of q_t(.|x)", ("x",), marginal.sum(1), ones[: process.vocab_size], 1e-10)
    yield Comparison("q_t(z|x) >= 0", ("x", "z"), marginal, marginal.clamp_min(0), 0.0)
    reached = (
        torch.stack([marginals(process, t) for t in torch.linspace(0.02, 1, 50).tolist()]).amax(
            (0, 1)
        )
        > 0
    )
    unreached = (~reached).nonzero()[:, 0].tolist()
    yield condition(
        "states",
        not unreached,
        f"states {unreached[:8]} have probability 0 given every token, at all times",
        "states are tokens first, then those that noise leads to, the mask last",
    )


def _kolmogorov(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    s = float(point["s"])
    t = float(point["t"])
    yield Comparison(
        "q_{t|s}", ("from", "to"), process.transition(s, t), integrate_forward(process, s, t), 2e-7
    )


def _chapman_kolmogorov(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    s, u, t = (float(point[name]) for name in ("s", "u", "t"))
    direct = process.transition(s, t)
    stepwise = process.transition(s, u) @ process.transition(u, t)
    yield Comparison("q_{t|s}", ("from", "to"), direct, stepwise, 1e-10)


def _digits(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare with a product of nonnegative numbers, which does not cancel: checks relative
    accuracy at small t.
    """
    t = float(point["t"])
    direct = process.transition(0.0, t)
    halves = process.transition(0.0, t / 2) @ process.transition(t / 2, t)
    relevant = halves > 1e-200
    yield Comparison("q_{t|0}", ("from", "to"), direct * relevant, halves * relevant, 1e-6 * halves)
    marginal = marginals(process, t)
    dense = marginals(process, 0.0) @ halves
    yield Comparison(
        "q_t(z|x)", ("x", "z"), marginal * (dense > 1e-200), dense * (dense > 1e-200), 1e-6 * dense
    )


def from_data(
    process: ForwardProcess, point: Point, x: torch.Tensor | None = None, tolerance: float = 1e-10
) -> Iterator[Comparison]:
    """Compare marginals with the data, and with what a transition makes of it, for tokens x (1, N)
    or for all.
    """
    t = float(point["t"])
    x = tokens(process) if x is None else x
    start, noisy = (process.marginal(x, at(time))[0] for time in (0.0, t))
    if process.exact_ends:
        data = torch.nn.functional.one_hot(x[0], process.num_states).to(torch.float64)
        yield Comparison("q_0(z|x)", ("", "z"), start, data, 1e-9, {"x": x[0]})
    yield Comparison(
        "q_t(z|x)", ("", "z"), noisy, start @ process.transition(0.0, t), tolerance, {"x": x[0]}
    )


def _linear(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    t = float(point["t"])
    dense = marginals(process, float(point["t"]))
    p = distribution(process, point["distribution"], 3)
    yield Comparison("q_t(z|p)", ("p", "z"), process.predictive(p, at(t))[0], p[0] @ dense, 1e-12)
    evidence = process.token_likelihood(states(process), at(t))[0]
    yield Comparison("token_likelihood q_t(z|x)", ("z", "x"), evidence, dense.T, 1e-12)
    share = process.token_evidence(states(process), at(t))[0]
    # 0 for impossible states
    share = share / share.sum(-1, keepdim=True).clamp_min(torch.finfo(share.dtype).tiny)
    quantity = "token_evidence, as a share of q_t(z|x) summed over x"
    yield Comparison(quantity, ("z", "x"), share * dense.T.sum(-1, keepdim=True), dense.T, 1e-12)
    x = tokens(process).T.expand(-1, process.num_states)
    likelihood = process.likelihood(states(process).expand_as(x), x, at(t, process.vocab_size))
    yield Comparison("likelihood q_t(z|x)", ("x", "z"), likelihood, dense, 1e-12)


def _rows(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Check that results do not depend on the rest of the batch, with a time per sequence and a
    token per position.
    """
    t = torch.tensor([0.2, point["t"], 0.7], dtype=torch.float64)
    x = (torch.arange(6).view(3, 2) + 1) % process.vocab_size
    several = torch.tensor([[0, -1], [-1, 0], [-1, -2]]) % process.num_states
    z = x if process.num_states == process.vocab_size else several
    p = distribution(process, 1, 6).view(3, 2, -1)

    def answers(rows: slice, columns: slice) -> tuple[torch.Tensor, ...]:
        part = (rows, columns)
        return (
            process.marginal(x[part], t[rows]),
            process.predictive(p[part], t[rows]),
            process.posterior(p[part], z[part], t[rows], t[rows] / 2),
            process.reverse_rate(p[part], z[part], t[rows]),
            process.token_likelihood(z[part], t[rows]),
            process.likelihood(z[part], x[part], t[rows]),
            process.prior_kl(x[part], t[rows]),
        )

    names = (
        "marginal",
        "predictive",
        "posterior",
        "reverse_rate",
        "token_likelihood",
        "likelihood",
        "prior_kl",
    )
    together = answers(slice(0, 3), slice(0, 2))
    for b in range(3):
        for i in range(2):
            alone = answers(slice(b, b + 1), slice(i, i + 1))
            for name, got, batch in zip(names, alone, together, strict=True):
                quantity = f"{name} of position {i} of sequence {b}, alone"
                yield Comparison(
                    quantity, (), got[0, 0], batch[b, i], 1e-12 * (1 + batch[b, i].abs().max())
                )


def _refusals(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x = tokens(process)
    t = at(0.5)
    size = process.vocab_size
    bad: dict[str, tuple[torch.Tensor, torch.Tensor]] = {
        f"x = {size}, where tokens are 0 to {size - 1},": (x + 1, t),
        "x = -1": (x - 1, t),
        "x in int32": (x.int(), t),
        "t = 1.5": (x, t + 1),
        "t = nan": (x, t * float("nan")),
        "two times for one sequence": (x, at(0.5, 2)),
    }
    for call, method in (("marginal", process.marginal), ("sample", process.sample)):
        hint = f"write as the first line of {call}: self.check_inputs(x=x, t=t)"
        for case, arguments in bad.items():
            answer = _answer(method, arguments)
            message = (
                f"{call} {answer} {case.rstrip(',')}: must raise a ValueError or TypeError that "
                "describes it"
            )
            yield condition(f"{call} rejects {case}", not answer, message, hint)


def _answer(method: Callable[..., object], arguments: tuple[torch.Tensor, torch.Tensor]) -> str:
    """Describe the behaviour of a method with bad arguments; empty if it rejects them."""
    try:
        method(*arguments)
    except (TypeError, ValueError):
        return ""
    except Exception as error:  # e.g. an index error without the argument and the rule
        return f"raises {type(error).__name__} for"
    return "takes"


def _prior(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    for t in (1.0, 0.5):
        end = marginals(process, t)
        typical = end.mean(0)
        if t == 1.0:
            yield Comparison("prior", ("z",), process.prior(), typical, 1e-12)
        nats = (torch.xlogy(end, end) - torch.xlogy(end, typical)).sum(-1)
        got = process.prior_kl(tokens(process), at(t))[0]
        yield Comparison(f"prior_kl at t = {t}", ("x",), got, nats, 1e-10)
    default = process.prior_kl(tokens(process))[0]
    yield Comparison(
        "prior_kl", ("x",), default, process.prior_kl(tokens(process), at(1.0))[0], 1e-12
    )


def _forgets(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    end = marginals(process, 1.0)
    yield Comparison("q_1(z|x)", ("x", "z"), end, process.prior().expand_as(end), 1e-9)


_NEAR = ({"t": 1e-6}, {"t": 1 - 1e-6})
_T = ({"t": 0.5}, {"t": 0.25}, {"t": 0.9})
_MORE = ({"t": 0.0}, {"t": 1e-12}, {"t": 0.01}, {"t": 0.37}, {"t": 0.75}, {"t": 0.999}, {"t": 1.0})
_ST = ({"s": 0.25, "t": 0.5}, {"s": 0.1, "t": 0.9})
_SUT = (
    {"s": 0.25, "u": 0.5, "t": 0.75},
    {"s": 0.0, "u": 0.1, "t": 0.9},
    {"s": 0.0, "u": 0.5, "t": 1.0},
)

_PARTS = ("answers", "ends", "decreasing", "rate", "level order", "composition", "actions")
"""Claims about the components of a process: its three methods, the schedule, the hierarchy."""

CLAIMS = (
    Claim(
        "process",
        "answers",
        "rate_matrix and transition are (S, S), marginal is (B, L, S), in float64",
        "exactly",
        _answers,
        ({"s": 0.25, "t": 0.5},),
    ),
    Claim(
        "process",
        "rates",
        "rows of Q_t sum to 0, off the diagonal it is >= 0",
        "relative 1e-12",
        _rates,
        (*_T, *_NEAR),
        _MORE,
        rests_on=_PARTS,
    ),
    Claim(
        "process",
        "distributions",
        "rows of transitions and marginals are distributions",
        "1e-10",
        _row_sums,
        (*_ST, {"s": 0.0, "t": 1.0}),
        ({"s": 0.0, "t": 1e-6}, {"s": 0.999, "t": 1 - 1e-6}, {"s": 0.3, "t": 0.31}),
        rests_on=_PARTS,
    ),
    Claim(
        "process",
        "Kolmogorov",
        "transitions solve dP/dt = P Q_t, by an ODE solver",
        "2e-7",
        _kolmogorov,
        _ST,
        (
            {"s": 0.02, "t": 0.98},
            {"s": 0.5, "t": 0.75},
            {"s": 0.01, "t": 0.05},
            {"s": 0.9, "t": 0.99},
        ),
        rests_on=("rates", "Chapman-Kolmogorov"),
        means=(
            "rate_matrix and transition disagree: expected is computed from the rates, got is "
            "from transition"
        ),
    ),
    Claim(
        "process",
        "Chapman-Kolmogorov",
        "q_{t|s} = q_{u|s} q_{t|u}",
        "1e-10",
        _chapman_kolmogorov,
        _SUT,
        (
            {"s": 1e-3, "u": 0.01, "t": 0.999},
            {"s": 0.0, "u": 1e-6, "t": 0.5},
            {"s": 0.5, "u": 0.9, "t": 1 - 1e-6},
            {"s": 0.3, "u": 0.3001, "t": 0.3002},
        ),
        rests_on=("distributions",),
        means="transition disagrees with itself: expected is two steps via u, got is one step",
    ),
    Claim(
        "process",
        "digits",
        "small probabilities keep their digits near the data",
        "relative 1e-6",
        _digits,
        ({"t": 1e-4},),
        ({"t": 1e-7}, {"t": 1e-2}),
        rests_on=("Chapman-Kolmogorov", "marginals"),
        means="small probabilities have lost their digits: expected is two half steps, got is "
        "one step. Sum and "
        "multiply non-negative numbers only, as ddlib.processes.MatrixExponential does for "
        "a constant rate "
        "matrix",
    ),
    Claim(
        "process",
        "marginals",
        "q_0 is the data and q_t = q_0 q_{t|0}",
        "1e-10",
        from_data,
        _T,
        (*_NEAR, *_MORE),
        rests_on=("Kolmogorov",),
        means=(
            "marginal and transition disagree: expected is computed from transition, got is "
            "from marginal"
        ),
    ),
    Claim(
        "process",
        "linearity",
        "predictive and likelihoods are those of the marginals",
        "1e-12",
        _linear,
        ({"t": 0.5, "distribution": 1}, {"t": 1e-6, "distribution": 2}),
        ({"t": 0.9, "distribution": 0}, {"t": 1.0, "distribution": 3}),
        rests_on=("distributions",),
    ),
    Claim(
        "process",
        "batches",
        "results of a position depend on its token and time only",
        "1e-12",
        _rows,
        ({"t": 0.5},),
        rests_on=("distributions",),
        means="the sequences of a batch are not independent: t is (B,), a time for each",
    ),
    Claim(
        "process",
        "refusals",
        "invalid tokens and times raise an informative error",
        "exactly",
        _refusals,
    ),
    Claim(
        "process",
        "prior",
        "the prior is z_1 of a uniform token and prior_kl is KL(q_t(.|x) || that of q_t)",
        "1e-10",
        _prior,
        rests_on=("linearity",),
    ),
    Claim(
        "process",
        "forgets",
        "z_1 does not depend on the token",
        "1e-9",
        _forgets,
        applies=remembers,
        rests_on=("prior", "marginals"),
    ),
)

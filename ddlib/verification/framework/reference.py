"""Reference implementations: slow, dense and independent computations of a process's properties."""

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from numpy.polynomial import legendre
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.objective.nelbo import nelbo
from ddlib.paces import Pace, Together
from ddlib.parameterization.logits import Parameterization
from ddlib.processes import ForwardProcess, unsqueeze_times
from ddlib.utils.imports import import_quietly

__all__ = [
    "every_sequence",
    "exact_cavity",
    "exact_posterior",
    "integrate_bound",
    "integrate_forward",
    "logistic",
    "path_integrand",
    "sequences",
    "states",
    "tanh_sinh",
]


def states(process: ForwardProcess) -> Tensor:
    """Return all states, (1, S)."""
    return torch.arange(process.num_states)[None]


def sequences(size: int, length: int) -> Tensor:
    """Return all sequences of numbers below ``size`` in lexicographic order, (size ** length,
    length).
    """
    return torch.cartesian_prod(*[torch.arange(size)] * length).view(-1, length)


def every_sequence(process: ForwardProcess, length: int) -> tuple[Tensor, Tensor]:
    """Return all sequences of tokens, (n, L), and of states, (m, L), of a process or of a
    product.
    """
    states = torch.arange(process.num_states)
    own = process.component_of(process.tokens_as_states(torch.zeros(1, length, dtype=torch.int64)))
    columns = [states[process.component_of(states) == component] for component in own[0]]
    clean = [each[process.level_of(each) == 0] for each in columns]
    tokens = process.states_as_tokens(torch.cartesian_prod(*clean).view(-1, length))
    return tokens, torch.cartesian_prod(*columns).view(-1, length)


def integrate_forward(process: ForwardProcess, s: float, t: float) -> Tensor:
    """Compute q_{t|s}, t < 1, by solving Kolmogorov's forward equation dP/du = P Q_u from u = s,
    (S, S) float64.

    Where schedules begin or end in [s, t], rates jump or diverge. Between two such times the
    equation is solved in the log-odds of the time between them.

    Raises:
        RuntimeError: the solver stopped before t.
    """
    size = process.num_states
    ends = {u for u in (0.0, *process.breaks) if s <= u <= t}
    if not ends:
        return _solve(process.rate_matrix, s, t, size, 1e-10)
    result = torch.eye(size, dtype=torch.float64)
    for low, high in pairwise(sorted({s, *ends, t})):

        def rates(v: float, low: float = low, high: float = high) -> Tensor:
            """Return the rates per unit of log-odds v of the time between low and high."""
            time_left = (high - low) / (1 + math.exp(v))
            u = min(max(high - time_left, math.nextafter(low, high)), math.nextafter(high, low))
            return process.rate_matrix(u) * (time_left / (1 + math.exp(-v)))

        result = result @ _solve(rates, -34.0, 20.0, size, 1e-9)
        if high in ends:
            # the integral of the rate diverges at the end of a schedule: all that has not jumped
            # yet jumps. Rates that do not diverge are proportional to the time left, and cancel.
            diverging = 2 * rates(20.0 + math.log(2)) - rates(20.0)
            result = result @ torch.linalg.matrix_exp(1000 * diverging)
    return result


def _solve(
    rates: Callable[[float], Tensor], s: float, t: float, size: int, tolerance: float
) -> Tensor:
    """Solve dP/du = P Q_u from the identity at s, (S, S)."""
    # imported here: slow to load, and training does not need it
    solve_ivp = import_quietly("scipy.integrate").solve_ivp

    def flow(u: float, flat: object) -> object:
        return (torch.as_tensor(flat).view(size, size) @ rates(u)).flatten().numpy()

    start = torch.eye(size, dtype=torch.float64).flatten().numpy()
    solution = solve_ivp(flow, (s, t), start, method="DOP853", rtol=tolerance, atol=tolerance / 100)
    if not solution.success:
        raise RuntimeError(f"the ODE solver stopped at {solution.t[-1]}: {solution.message}")
    return torch.as_tensor(solution.y[:, -1]).view(size, size)


def tanh_sinh(points: int = 120, reach: float = 3.1) -> tuple[Tensor, Tensor]:
    """Return float64 nodes and weights of tanh-sinh quadrature on (0, 1), which handles
    singularities at the ends.
    """
    u = torch.linspace(-reach, reach, points, dtype=torch.float64)
    step = u[1] - u[0]
    nodes = torch.special.expit(math.pi * torch.sinh(u))
    weights = step * math.pi * torch.cosh(u) * nodes * torch.special.expit(-math.pi * torch.sinh(u))
    return nodes, weights


def logistic(reach: float, points: int) -> tuple[Tensor, Tensor]:
    """Return Gauss-Legendre nodes and weights in the log-odds of t, from -reach to reach.

    Handles algebraic ends.
    """
    u, weights = (torch.as_tensor(v) for v in legendre.leggauss(points))
    nodes = torch.special.expit(reach * u)
    return nodes, reach * weights * nodes * torch.special.expit(-reach * u)


def composite(ends: Sequence[float], rule: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    """Return nodes and weights that apply a rule for (0, 1) to each interval between ``ends``.

    Nodes that rounding moved to an end are moved inside, as rates may be infinite at both sides of
    an end.
    """
    nodes, weights = rule
    edges = torch.tensor(ends, dtype=torch.float64)[:, None]
    low = edges[:-1]
    high = edges[1:]
    inside = (low + (high - low) * nodes).clamp(
        torch.nextafter(low, high), torch.nextafter(high, low)
    )
    return inside.flatten(), ((high - low) * weights).flatten()


def integrate_bound(
    process: ForwardProcess,
    joint: Tensor,
    logits: Callable[[Tensor, Tensor], Tensor],
    method: str = "auto",
    parameterization: Parameterization = "cavity",
    points: int = 120,
    pace: Pace | None = None,
    chance: Tensor | None = None,
    cells: int = 1,
) -> Tensor:
    """Compute the diffusion term of the bound, averaged exactly over data, times and noise, in nats
    per sequence.

    Args:
        process: the forward process.
        joint: joint distribution of a sequence of one or more tokens, shape (V,) * L.
        logits: the denoiser, ``(z (N, L), t (N,)) -> (N, L, V)``, float64.
        method: as in ``nelbo``.
        parameterization: as in ``nelbo``.
        points: number of quadrature points over time, in each cell of each segment of a pace, and
            with one time for all positions in each interval between the beginnings and ends of
            schedules.
        pace: the pace; None is one time for all positions.
        chance: (L,) uniforms of a random pace.
        cells: number of equal cells per segment of the path; the path must be smooth inside each
            cell.
    """
    pace = pace or Together()
    cells *= pace.parts(joint.ndim)
    kinks = process.breaks if isinstance(pace, Together) else []
    nodes, weights = composite(
        sorted({*(i / cells for i in range(cells + 1)), *kinks}), tanh_sinh(points)
    )
    at = path_integrand(process, joint, logits, pace, chance, method, parameterization)
    return torch.cat([at(node) for node in nodes.split(1)]) @ weights


def path_integrand(
    process: ForwardProcess,
    joint: Tensor,
    logits: Callable[[Tensor, Tensor], Tensor],
    pace: Pace,
    chance: Tensor | None = None,
    method: str = "auto",
    parameterization: Parameterization = "cavity",
) -> Callable[[Tensor], Tensor]:
    """Return the integrand of ``integrate_bound``, a function of the path parameters (N,).

    Arguments as there.
    """
    length = joint.ndim
    tokens, grid = every_sequence(process, length)
    x = tokens.repeat_interleave(len(grid), 0)
    z = grid.repeat(len(tokens), 1)
    probs = joint[tokens.unbind(1)].repeat_interleave(len(grid))
    rows = len(x)
    uniforms = torch.zeros(length, dtype=torch.float64) if chance is None else chance

    def at(u: Tensor) -> Tensor:
        times, speeds = (
            function(u, uniforms.expand(len(u), -1)) for function in (pace.times, pace.speeds)
        )
        t = times.repeat_interleave(rows, 0)
        speed = unsqueeze_times(speeds).repeat_interleave(rows, 0)
        clean = x.repeat(len(u), 1)
        noisy = z.repeat(len(u), 1)
        index = torch.arange(len(u)).repeat_interleave(rows)
        mass = probs.repeat(len(u)) * process.likelihood(noisy, clean, t).prod(-1)
        counted = (mass > 0) & (speed > 0).any(-1)
        total = torch.zeros(len(u), dtype=torch.float64)
        if not bool(counted.any()):
            return total
        clean = clean[counted]
        noisy = noisy[counted]
        t = t[counted]
        speed = speed[counted]
        value = nelbo(process, logits(noisy, t), clean, noisy, t, method, parameterization)
        # the integrand may be infinite where a position does not move
        return total.index_add_(
            0, index[counted], mass[counted] * torch.where(speed > 0, speed * value, 0.0).sum(-1)
        )

    return at


def exact_cavity(process: ForwardProcess, joint: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the exact denoiser in cavity form of a joint distribution: log p(x_i | other noisy
    positions).
    """

    def logits(z: Tensor, t: Tensor) -> Tensor:
        # tokens of a prompt have probability 0 at t = 1; slightly earlier they are evidence like
        # any other state
        evidence = process.token_likelihood(z, t.to(torch.float64).clamp_max(1 - 1e-12))
        # under windows a token has likelihood 0 at some times: a prompt is then taken as known
        known = one_hot(process.states_as_tokens(z), process.vocab_size).to(evidence)
        evidence = torch.where((evidence > 0).any(-1, keepdim=True), evidence, known)
        result = []
        for i in range(joint.ndim):
            product = joint.expand(len(z), *joint.shape)
            for j in range(joint.ndim):
                if j != i:
                    shape = [len(z)] + [
                        process.vocab_size if k == j else 1 for k in range(joint.ndim)
                    ]
                    product = product * evidence[:, j].view(shape)
            axes = [k + 1 for k in range(joint.ndim) if k != i]
            result.append(product.sum(axes) if axes else product)
        return torch.stack(result, 1).log()

    return logits


def exact_posterior(process: ForwardProcess, joint: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return the exact denoiser in posterior form: log p(x_i | all noisy positions)."""
    cavity = exact_cavity(process, joint)

    def logits(z: Tensor, t: Tensor) -> Tensor:
        return cavity(z, t) + process.token_likelihood(z, t.to(torch.float64)).log()

    return logits

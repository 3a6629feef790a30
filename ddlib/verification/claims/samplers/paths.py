"""Claims about recorded paths of samplers and their probability under other networks."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ddlib.processes import LevelProcess
from ddlib.rewards import log_prob
from ddlib.samplers.requirements import noise_free_end
from ddlib.samplers.sampling import sample
from ddlib.samplers.trajectory import Trajectory
from ddlib.verification.framework.cases import Case, at_length, needs
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.reference import exact_cavity

_DRAWS = 6000


def _record(run: Case, joint: Tensor, steps: int, seed: int) -> tuple[Tensor, Trajectory]:
    denoiser = exact_cavity(run.process, joint)
    shape = (_DRAWS, joint.ndim)
    noise = torch.Generator().manual_seed(seed)
    return sample(run.process, denoiser, shape, run.subject, steps, generator=noise, record=True)


def _evaluate_again(run: Case, point: Point) -> Iterator[Comparison]:
    _, path = _record(run, run.pair, int(point["steps"]), 11)
    terms = log_prob(run.process, exact_cavity(run.process, run.pair), path, per_draw=True)
    yield Comparison("log_prob", ("step", "example", "position"), path.log_probs, terms, 1e-9)


def _weigh(run: Case, point: Point) -> Iterator[Comparison]:
    """Compare draws of one network, weighted by the ratio of paths, with draws of another."""
    steps = int(point["steps"])
    other = run.pair * torch.linspace(0.3, 1.7, len(run.pair), dtype=torch.float64)
    other = other / other.sum()
    tokens, path = _record(run, run.pair, steps, 12)
    ratio = log_prob(run.process, exact_cavity(run.process, other), path)
    weights = (ratio - path.log_probs.sum((0, 2))).exp()
    mean, error = _frequencies(tokens, weights, len(run.pair))
    tokens, _ = _record(run, other, steps, 13)
    expected, own_error = _frequencies(tokens, torch.ones_like(weights), len(run.pair))
    allowed = 5 * (error**2 + own_error**2).sqrt() + 1e-3
    yield Comparison("weighted draws of two tokens", ("position", "x"), mean, expected, allowed)


def _frequencies(tokens: Tensor, weights: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return the weighted mean of each token at each position, and its standard error."""
    values = weights[:, None, None] * torch.nn.functional.one_hot(tokens, size)
    return values.mean(0), values.std(0) / len(tokens) ** 0.5


_declared = needs("independent_draws", "has no probability of a path")


def _no_path(run: Case) -> str:
    """Return the reason why ``sample`` does not record the path; empty if it does."""
    forced = run.subject.guarantees.forces_transitions
    if forced and not isinstance(run.process, LevelProcess):
        return "with forced transitions it records paths of processes with levels alone"
    if not noise_free_end(run.process):
        return "paths are of processes without noise at t = 0"
    return _declared(run)


CLAIMS = (
    Claim(
        "sampler",
        "path evaluated again",
        "the recorded log-probabilities are those that log_prob computes from the path",
        "1e-9",
        _evaluate_again,
        ({"steps": 3},),
        ({"steps": 7},),
        at_length(2, _no_path),
        rests_on=("one token",),
    ),
    Claim(
        "sampler",
        "paths of another network",
        "weighted by the ratio of two networks' paths, the draws of one are those of the other",
        "five standard errors",
        _weigh,
        ({"steps": 3},),
        ({"steps": 7},),
        at_length(2, _no_path),
        rests_on=("path evaluated again",),
        means="every draw that depends on the network is in the path, with its distribution",
    ),
)

"""Claims about likelihoods of samplers with a deterministic order."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ddlib.processes import ForwardProcess
from ddlib.processes.examples import levels, three
from ddlib.samplers import Sampler, sample
from ddlib.samplers.likelihood import check_likelihood, likelihood
from ddlib.schedules import Linear
from ddlib.verification.claims.samplers.sampler import hurried
from ddlib.verification.framework.cases import Case, at_length, few, served
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.inputs import drawn_jointly
from ddlib.verification.framework.reference import exact_cavity, sequences

_DRAWS, _ALL = 2000, 99
"""Number of steps that suffices for one edge at a time."""


def runs(sampler: Sampler, on: ForwardProcess | None = None) -> list[Case]:
    """Return cases of the sampler with masks, a tree, or the given process, if it has a likelihood."""
    processes = [three()["masked"], levels(Linear())] if on is None else [few(on)]
    # the claims about samplers report errors that are no refusals
    return served(sampler, processes, lambda process: check_likelihood(process, sampler), (Exception,))


def opinionated(process: ForwardProcess) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a network of two positions without a consistent joint distribution.

    Its output at a position depends on both states and on the time. So likelihoods depend on the order of generation.
    """
    generator = torch.Generator().manual_seed(8)

    def randn(*shape: int) -> Tensor:
        return 2 * torch.randn(*shape, generator=generator, dtype=torch.float64)

    size = process.vocab_size
    table, late = randn(2, 2, process.num_states, size), randn(2, size)
    places = torch.arange(2)

    def logits(z: Tensor, t: Tensor) -> Tensor:
        # (B, 1, L) states at the second position of the table, for all first ones
        seen = table[places[:, None], places, z[:, None]].sum(2)
        return seen + t.to(torch.float64)[:, None, None] * late

    return logits


def _read(run: Case, denoiser: Callable[[Tensor, Tensor], Tensor], steps: int) -> Tensor:
    """Compute the probability of every sequence of two tokens."""
    return likelihood(
        run.process, denoiser, sequences(run.process.vocab_size, 2), run.subject, steps=steps
    ).log_likelihood.exp()


def _sums(run: Case, point: Point) -> Iterator[Comparison]:
    total = _read(run, opinionated(run.process), int(point["steps"])).sum()
    yield Comparison("likelihoods of all texts, summed", (), total, torch.ones_like(total), 1e-9)


def _drawn(run: Case, point: Point) -> Iterator[Comparison]:
    steps, size = int(point["steps"]), run.process.vocab_size
    denoiser, noise = opinionated(run.process), torch.Generator().manual_seed(9)
    tokens = sample(run.process, denoiser, (_DRAWS, 2), run.subject, steps, generator=noise)
    yield drawn_jointly("draws", ("x_0", "x_1"), tokens, _read(run, denoiser, steps).view(size, size))


def _known(run: Case, point: Point) -> Iterator[Comparison]:
    found = _read(run, exact_cavity(run.process, run.pair), _ALL)
    yield Comparison("likelihood, given the best network", ("x_0", "x_1"), found.view_as(run.pair), run.pair, 1e-9)


CLAIMS = (
    Claim("likelihood", "sums to one", "likelihoods of all sequences sum to one, for any network", "1e-9", _sums,
          ({"steps": _ALL}, {"steps": 2}), ({"steps": 1}, {"steps": 3}), at_length(2)),
    Claim("likelihood", "as drawn", "sequences are drawn with the frequency of their likelihood",
          "binomial bounds, false alarm 1e-6", _drawn, ({"steps": _ALL}, {"steps": 2}), ({"steps": 1}, {"steps": 3}),
          at_length(2), rests_on=("sums to one",)),
    Claim("likelihood", "best network", "with the exact network it is the probability of the sequence", "1e-9", _known,
          applies=at_length(2, hurried), rests_on=("sums to one",)),
)  # fmt: skip

"""Upper bound of -log p(x): the integral over time, the prior term and the reconstruction term."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from jaxtyping import Bool
from torch import Tensor

from ddlib.objective.given import free_positions, hold_given
from ddlib.objective.metrics import Measure
from ddlib.objective.training import mean_per_token
from ddlib.paces import Pace, Together
from ddlib.paces.base import check_pace
from ddlib.parameterization.capabilities import Capabilities
from ddlib.parameterization.logits import (
    Parameterization,
    cavity_logits,
    layout_of,
    posterior_logits,
)
from ddlib.processes import ForwardProcess, unsqueeze_times
from ddlib.processes.base import check_process
from ddlib.times import TimeDensity
from ddlib.times.draws import latest_time
from ddlib.typing import Denoiser, GivenTokens, Logits, PaddingMask, PerToken, Times, Tokens
from ddlib.utils.random import Generator
from ddlib.utils.validation import require

INFINITE, BALANCED, SKEWED = 0.98, 1.02, 0.1
"""Exponents (``process.tail_exponents``) from which on a variance has no finite value, with
independent levels and with balanced levels, and a third moment has none.
"""


def variance_caveat(
    process: ForwardProcess,
    density: TimeDensity | None,
    length: int,
    *,
    interval: tuple[float, float] = (0.0, 1.0),
    levels: str = "independent",
    steps: int | None = None,
    pace: Pace | None = None,
) -> str:
    """Return a caveat on the standard error of a bound: which moment of a draw has no finite value,
    or "".

    Without a finite variance the stated error may be too small by any factor. Without a finite
    third moment that is also heavier than under the process's optimal density, or a finite fourth
    moment near t = 1, intervals from a few hundred sequences cover the truth in 90 % of cases
    instead of 95 %. The same holds near the starts and ends of windows inside (0, 1); there a
    variance may also be finite, but due to times that few draws hit. Balanced levels draw a token
    with a positive weight in every sequence: this suffices for masks, but not for processes that
    replace tokens. There is no caveat for steps and for times per position.

    Args:
        process: the forward process.
        density: density of the times; None is uniform.
        length: number of positions of a sequence.
        interval: as in ``bound``, and so are the following.
        levels: coupling of the levels of a sequence.
        steps: number of steps of a grid; None for continuous time.
        pace: order and times of the positions; None is one time for all.
    """
    if steps is not None or not isinstance(check_pace(pace), Together):
        return ""
    try:
        uniform = process.tail_exponents()
        drawn = uniform if density is None else process.tail_exponents(density)
    except (
        TypeError,
        ValueError,
    ):  # a process without moments, or with moments that are not finite
        return ""
    low, high = interval
    ends = [end for end in uniform if low < end < high or end == 0 == low or end == 1 == high]
    independent = levels == "independent"
    infinite = [end for end in ends if drawn[end] >= (INFINITE if independent else BALANCED)]
    # after a start the integrand of rare tokens is 1 / t: E f^3 / g^2 grows faster than E f^2 / g
    # by 1 / (t g)
    skewed = [
        end for end in ends if independent and end < 1 and 2 * drawn[end] - uniform[end] > SKEWED
    ]
    # before an end it is that of masks, which are not rare: E f^4 / g^3 grows as E f^2 squared over
    # g^3
    heavy = [
        end for end in ends if independent and end > 0 and 3 * drawn[end] - uniform[end] >= INFINITE
    ]
    if not infinite and not skewed and not heavy:
        return ""
    listed = infinite or skewed or heavy
    near = " and ".join(f"t = {end:g}" for end in listed)
    moment = "variance" if infinite else "third moment" if skewed else "fourth moment"
    size = "infinite" if {0, 1}.intersection(listed) else "infinite or due to rare draws"
    mended = all(
        uniform[end] < 2 * INFINITE for end in ends
    )  # the best density halves the exponent
    advice = (
        f"density=process.time_density({length}, chance=0.2)"
        if mended
        else "an interval inside (0, 1)"
    )
    return f"the error may be too small, since near {near} the {moment} is {size}: use {advice}"


@dataclass(frozen=True, repr=False)
class Bound:
    """One unbiased estimate of an upper bound of -log p(x), by its three terms, each (B, L) in nats
    per token.

    The printed form has the mean over all tokens, the standard error over sequences, the means of
    the terms, and the number of sequences and of tokens in each: ``Bound(3.43 ± 0.21 nats per token
    = ...; 64 x 8)``. Every sequence has one draw. The error is that of stratified times where
    ``times`` are given, else that of independent times (``Measure.method``). Where the variance has
    no finite value no error is right, and ``Measure.caveat`` names a density that has a finite one.

    With a ``mask`` the terms are 0 outside it, and all means are over the tokens inside:
    ``Bound(... = ...; 300 tokens of 64 x 8)``. A sequence without such tokens does not count in the
    error.
    """

    diffusion: PerToken
    """Integral over time, from one draw of (t, z) per sequence; or per block, see ``at_once``."""
    prior: PerToken
    """KL(q(z at the noisy end | x) || prior).

    That end is the last time drawn, which may be before 1.
    """
    reconstruction: PerToken
    """-log p(x | z at the clean end); 0 when the schedule starts exactly at the data."""
    times: Times | None = None
    """Time of each sequence's draw, or its position on the path of a pace, (B,), drawn in strata;
    None if unknown.
    """
    mask: PaddingMask | None = None
    """True at the tokens that count, (B, L); None if all do."""
    caveat: Callable[[], str] = str
    """Function that computes ``Measure.caveat`` when the error is needed."""

    @property
    def total(self) -> PerToken:
        """Sum of the three terms."""
        return self.diffusion + self.prior + self.reconstruction

    @property
    def per_token(self) -> Measure:
        """Mean in nats per token; its standard error, over sequences, is NaN for a single one."""
        nats = self.total.detach().to("cpu", torch.float64).sum(1)
        size = (
            torch.full_like(nats, self.total.shape[1])
            if self.mask is None
            else self.mask.sum(1).to(nats)
        )
        return replace(
            Measure.ratio(nats, size, "nats per token", self.times), caveat=self.caveat()
        )

    def __repr__(self) -> str:
        mean = self.per_token
        error = mean.standard_error
        places = (
            2
            if math.isnan(error) or error >= 0.1 or error == 0
            else 1 - math.floor(math.log10(error))
        )
        stated = "" if math.isnan(error) else f" ± {error:.{places}f}"
        terms = {
            "diffusion": self.diffusion,
            "prior": self.prior,
            "reconstruction": self.reconstruction,
        }
        means = {
            name: float(mean_per_token(term.detach(), self.mask)) for name, term in terms.items()
        }
        sum_of = " + ".join(f"{name} {value:.{places}f}" for name, value in means.items())
        rows, tokens = self.total.shape
        counted = "" if self.mask is None else f"{int(self.mask.sum())} tokens of "
        caveat = f"; {mean.caveat}" if mean.caveat else ""
        return (
            f"Bound({mean.value:.{places}f}{stated} {mean.unit} = {sum_of}; {counted}{rows} x "
            f"{tokens}{caveat})"
        )


def reconstruction(
    process: ForwardProcess, logits: Logits, x: Tokens, z: Tokens, t: Times
) -> PerToken:
    """Compute -log p(x | z_t) in nats per token.

    p(x|z) is in proportion to the cavity distribution times q_t(z|x).

    Raises:
        TypeError, ValueError: as ``posterior_logits``; x not (B, L) tokens.
    """
    process.check_inputs(x=x, z=z, t=t)
    scores = posterior_logits(process, logits, z, t)
    return -scores.log_softmax(-1).gather(-1, x[..., None]).squeeze(-1)


def bound(
    process: ForwardProcess,
    denoiser: Denoiser,
    x: Tokens,
    generator: Generator = None,
    *,
    mask: PaddingMask | None = None,
    given: GivenTokens | None = None,
    density: TimeDensity | None = None,
    interval: tuple[float, float] = (0.0, 1.0),
    parameterization: Parameterization | None = None,
    steps: int | None = None,
    levels: str = "independent",
    pace: Pace | None = None,
    at_once: bool = False,
) -> Bound:
    r"""Estimate the negative evidence lower bound of ``x``, end terms included, with one draw of
    time per sequence.

    With ``steps`` it is the bound of D3PM (Austin et al., 2021) on a grid of so many even steps, of
    which each sequence draws one:

    .. math:: \sum_{k=1}^{T} E_{z_k}\, KL(q(z_{k-1} | z_k, x) || p(z_{k-1} | z_k)) + \text{the ends}

    It converges to the bound in continuous time as T grows; for the best network from above, since
    one step cannot represent dependence between tokens. A network that is worse at some times may
    have a lower bound on a coarse grid.

    With times from a ``density`` each draw is multiplied by its weight: another variance, the same
    expectation. The best density is ``process.time_density(length, chance=0.2)``. Under uniform
    times the variance of many processes has no finite value and the stated error is too small:
    ``per_token.caveat`` names it. Average several calls, with other steps of a ``KeyedGenerator``,
    for less noise. At a clean end that is exact nothing is computed; otherwise (geometric noise, or
    a shorter interval) the reconstruction term is computed, by a second call of the denoiser. The
    noisy end is the last time before 1 that is drawn, or the end of the interval; the prior term
    there always counts.

    There is one warning (``ddlib.utils.validation.UsageWarning``) for a module in train mode whose
    behaviour differs from eval mode, as with dropout, and one for a module in eval mode whose
    result keeps the autograd graph: call ``eval()`` on it and this function under
    ``torch.no_grad()``. To train on a bound leave it in train mode.

    With a ``pace`` there is a time per position, and this is the bound of a model that generates at
    that pace: ``Blocks`` is block diffusion, ``LeftToRight`` with masks is autoregression. The
    denoiser then takes times (B, L).

    Args:
        process: the forward process.
        denoiser: ``(z, t) -> logits``.
        x: (B, L) clean tokens.
        generator: source of times and noise.
        mask: (B, L) bool, True at real tokens, False at padding, which counts in no term. Padding
            is noised and is an input of the denoiser, as the token that ``x`` has there. If the
            denoiser ignores it the expectation is that of the sequences without padding, also with
            ``levels="balanced"``.
        given: (B, L) bool, True at tokens of the context: never noised, an input of the denoiser,
            and in no term. The bound is that of -log p(other tokens | given tokens). With a time
            per position theirs is 0, as in ``sample`` at a prompt. With ``at_once`` no token is
            given behind the first block that has another one: in the clean sequence its features
            depend on the tokens between.
        density: density of the times; None is uniform.
        interval: the part of [0, 1] on which the network is used, e.g. (eps, 1 - eps).
        parameterization: meaning of the logits, as in ``nelbo``; by default the denoiser's
            attribute of that name, and "cavity" without one.
        steps: T, for the bound in discrete time; None for continuous time.
        levels: coupling of the levels of a sequence, "independent" or "balanced", see
            ``process.sample``. Both have the same mean, the second has less variance. With a time
            per position levels must be independent. With ``steps`` the levels are independent in a
            step within which the window of an edge ends: an edge that has ended has weight 0 at t,
            but a divergence in the step.
        pace: order and times of the positions; None is ``Together()``, one time for all.
        at_once: True to draw once per block instead of once per sequence, with a denoiser that also
            takes the clean sequence (``typing.BlockDenoiser``): twice the work and less variance.
            The mean is the same if the interval begins at 0 and schedules have exact ends;
            otherwise earlier blocks are clean, where one draw per sequence leaves their noise.

    Raises:
        TypeError, ValueError: as ``nelbo``; a bad mask, interval or number of steps; bad given
            tokens: at padding, everywhere, or in later blocks with ``at_once``; ``density``
            not a density, negative, or 0 inside (0, 1); unknown ``levels``; ``pace`` not a pace, or
            not for this length; a denoiser that does not take a time per position, or the clean
            sequence, where it is required, or fewer states than the process has.
    """
    check_process(process, denoiser)
    process.check_inputs(x=x)
    mask = free_positions(x, mask, given)
    able = Capabilities.of(denoiser)
    able.check_process(process)
    meaning = able.meaning(parameterization)
    able.check_layout(layout_of(process, meaning))
    process.check_levels(levels)
    pace = check_pace(pace)
    low, high = interval
    rows, length = x.shape
    t, measure, s, u = pace.draw(
        rows,
        length,
        generator,
        density=density,
        interval=interval,
        steps=steps,
        at_once=at_once,
        device=x.device,
    )
    if t.ndim == 2:
        rule = "must be 'independent': balanced draws require one time per sequence"
        require(levels == "independent", f"levels is {levels!r}, pace {pace!r}: {rule}")
        able.check_time_input((pace.block or 0) if at_once else 0, repr(pace))
    able.check_blocks(pace, length)
    z = (
        process.sample(x, t, generator)
        if levels == "independent"
        else process.sample(x, t, generator, levels)
    )
    independent = None
    if (
        levels == "balanced"
        and s is not None
        and any(one.support[1] < 1 for one in process.schedules)
    ):
        independent = _ends_within(process, s, t)
        # drawn for every batch, so that the draws of a row do not depend on the other rows
        z = torch.where(independent[:, None], process.sample(x, t, generator), z)
    importance = None
    if levels == "balanced":  # that of the states as they were drawn, given tokens among them
        importance = process.importance_weight(x, z, t)
        if independent is not None:
            importance = torch.where(independent, 1.0, importance)
    states = process.tokens_as_states(x)
    if s is not None:
        s = hold_given(states, z, s, given)[1]
    z, t = hold_given(states, z, t, given, pace.block if at_once else None)
    clean = {"clean": states} if at_once else {}
    try:
        with able.evaluating(z.device, "dd.bound"):
            # a copy, since a denoiser may write into its input
            output = denoiser(z.clone(), _default_dtype(t), **clean)
    except IndexError:
        able.check_states(process, z, lambda z: denoiser(z, _default_dtype(t), **clean))
        raise
    logits = cavity_logits(process, output, z, t, meaning)
    term = (
        process.integrand(logits, x, z, t)
        if s is None
        else process.step_divergence(logits, x, z, t, s)
    )
    measure = unsqueeze_times(measure).to(term.dtype)
    diffusion = torch.where(measure > 0, measure * term, 0.0)
    if importance is not None:
        diffusion = diffusion * importance[:, None].to(diffusion.dtype)
    # slow tokens and levels keep information after the last time of this dtype; the bound must
    # count it
    last = high if steps is not None else min(high, latest_time(t.dtype))
    start, end = (t.new_full((rows,), time) for time in (low, last))
    left = torch.zeros_like(diffusion)
    if bool((process.likelihood(states, x, start) < 1).any()):
        z, _ = hold_given(states, process.sample(x, start, generator), start, given)
        shown = start[:, None].expand_as(z) if at_once else start
        output = denoiser(z.clone(), _default_dtype(shown), **clean)
        logits = cavity_logits(process, output, z, start, meaning)
        left = reconstruction(process, logits, x, z, start)
    able.check_graph(output, "dd.bound")
    prior = process.prior_kl(x, end).to(diffusion.dtype)
    if mask is not None:
        diffusion, prior, left = (torch.where(mask, term, 0.0) for term in (diffusion, prior, left))
    caveat = partial(
        variance_caveat,
        process,
        density,
        length,
        interval=interval,
        levels=levels,
        steps=steps,
        pace=pace,
    )
    return Bound(diffusion, prior, left, u, mask, caveat)


def _ends_within(process: ForwardProcess, s: Times, t: Times) -> Bool[Tensor, "B"]:
    """True for the steps from t to s within which the schedule of an edge ends."""
    result = torch.zeros_like(t, dtype=torch.bool)
    for schedule in process.schedules:
        end = schedule.support[1]
        result = result | ((s < end) & (end < t))
    return result


def _default_dtype(t: Times) -> Times:
    """Convert times to the dtype that networks take: those of a grid are computed in float64."""
    return t.to(torch.get_default_dtype())

"""The whole bound: the integral over time and what is left at its two ends."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch

from ddlib.objective.metrics import Measure, mean_per_token
from ddlib.paces import Pace, Together
from ddlib.parameterization.logits import (
    Parameterization,
    cavity_logits,
    check_graph,
    check_time_input,
    evaluating,
    posterior_logits,
    stated,
)
from ddlib.processes import ForwardProcess, beside
from ddlib.times import TimeDensity
from ddlib.times.draws import latest
from ddlib.typing import Denoiser, Logits, PaddingMask, PerToken, Times, Tokens
from ddlib.utils.random import Generator
from ddlib.utils.validation import check_devices, check_mask, require

INFINITE, BALANCED, SKEWED = 0.98, 1.02, 0.1
"""From which exponents on (``process.tail_exponents``) a variance has no finite value, with balanced levels, and a
third moment has none."""


@dataclass(frozen=True, repr=False)
class Bound:
    """One unbiased estimate of an upper bound of -log p(x), by its three terms, each (B, L) in nats per token.

    Printed it is the mean over all tokens, with the standard error over texts, the means of its terms, and the number
    of texts and of tokens in each: ``Bound(3.43 ± 0.21 nats per token = ...; 64 x 8)``. Every text has one draw. The
    error is that of times in strata where ``times`` are told, else that of independent ones (``Measure.method``). Where
    no error is right, since the variance has no finite value, ``Measure.caveat`` names the density that has one.

    With a ``mask`` the terms are 0 outside it, and all means are over the tokens inside:
    ``Bound(... = ...; 300 tokens of 64 x 8)``. A sequence without one is no sequence of the error either.
    """

    diffusion: PerToken
    """The integral over time, by one draw of (t, z) per sequence; or of every block of it, see ``at_once``."""
    prior: PerToken
    """KL(q(z at the noisy end | x) || prior). That end is the last time drawn: what is no noise yet there, counts."""
    reconstruction: PerToken
    """-log p(x | z at the clean end); 0 when the schedule starts exactly at the data."""
    times: Times | None = None
    """The time of each text's draw, or its place on the path of a pace, (B,), drawn in strata; None: nobody knows."""
    mask: PaddingMask | None = None
    """True at the tokens that count, (B, L); None where all do."""
    caveat: Callable[[], str] = str
    """Computes ``Measure.caveat`` when the error is first needed."""

    @property
    def total(self) -> PerToken:
        """The sum of the three terms."""
        return self.diffusion + self.prior + self.reconstruction

    @property
    def per_token(self) -> Measure:
        """The mean in nats per token; its standard error, over texts, is NaN where there is only one."""
        nats = self.total.detach().to("cpu", torch.float64).sum(1)
        size = torch.full_like(nats, self.total.shape[1]) if self.mask is None else self.mask.sum(1).to(nats)
        return replace(Measure.ratio(nats, size, "nats per token", self.times), caveat=self.caveat())

    def __repr__(self) -> str:
        mean = self.per_token
        error = mean.standard_error
        places = 2 if math.isnan(error) or error >= 0.1 or error == 0 else 1 - math.floor(math.log10(error))
        own = "" if math.isnan(error) else f" ± {error:.{places}f}"
        terms = {"diffusion": self.diffusion, "prior": self.prior, "reconstruction": self.reconstruction}
        means = {name: float(mean_per_token(term.detach(), self.mask)) for name, term in terms.items()}
        sum_of = " + ".join(f"{name} {value:.{places}f}" for name, value in means.items())
        texts, tokens = self.total.shape
        counted = "" if self.mask is None else f"{int(self.mask.sum())} tokens of "
        caveat = f"; {mean.caveat}" if mean.caveat else ""
        return f"Bound({mean.value:.{places}f}{own} {mean.unit} = {sum_of}; {counted}{texts} x {tokens}{caveat})"


def reconstruction(process: ForwardProcess, logits: Logits, x: Tokens, z: Tokens, t: Times) -> PerToken:
    """-log p(x | z_t) in nats per token, where p(x|z) is the cavity law times q_t(z|x), normalised."""
    scores = posterior_logits(process, logits, z, t)
    return -scores.log_softmax(-1).gather(-1, x[..., None]).squeeze(-1)


def bound(
    process: ForwardProcess,
    denoiser: Denoiser,
    x: Tokens,
    generator: Generator = None,
    *,
    mask: PaddingMask | None = None,
    density: TimeDensity | None = None,
    interval: tuple[float, float] = (0.0, 1.0),
    parameterization: Parameterization | None = None,
    steps: int | None = None,
    levels: str = "independent",
    pace: Pace | None = None,
    at_once: bool = False,
) -> Bound:
    r"""Estimates the whole negative evidence lower bound of ``x`` with one draw of its times per sequence.

    With ``steps`` it is the bound of D3PM (Austin et al., 2021) on a grid of so many even steps, of which each sequence
    draws one:

    .. math:: \sum_{k=1}^{T} E_{z_k}\, KL(q(z_{k-1} | z_k, x) || p(z_{k-1} | z_k)) + \text{the ends}

    It nears the other as T grows; from above for the best network, which cannot tell in one step how words of a text
    depend on each other. A network that is worse at some times than at others may have a lower bound on a coarse grid.

    With times from a ``density`` each draw is multiplied by its weight: another variance, the same expectation. The
    best one is ``process.time_density(length, chance=0.2)``. Under uniform times the variance of many processes has no
    finite value and the stated error is too small: ``per_token.caveat`` names it. Average several calls, with other
    steps of a ``KeyedGenerator``, for less noise. At a clean end that is exact nothing is computed; elsewhere
    (geometric noise, or an interval cut short) the reconstruction is counted, at the cost of a second call of the
    denoiser. The noisy end is the last time before 1 that is drawn, or of the interval, and what is no noise yet there
    is always counted.

    A module in train mode that behaves so, as by dropout, is warned of once (``ddlib.utils.validation.UsageWarning``),
    as is one
    in eval mode whose result keeps the autograd graph: put it into ``eval()`` and call this under ``torch.no_grad()``.
    To train on a bound leave it in train mode.

    With a ``pace`` positions have times of their own, and it is the bound of a model that draws them at that pace:
    ``Blocks`` of block diffusion, ``LeftToRight`` with masks of autoregression. The denoiser is then told times (B, L).

    Args:
        process: the forward process.
        denoiser: ``(z, t) -> logits``.
        x: (B, L) clean words.
        generator: source of times and noise.
        mask: (B, L) bool, True at real tokens, False at padding, which counts in no term. Padding is noised and shown
            to the denoiser all the same, as some word that ``x`` holds there. Where the denoiser ignores it the
            expectation is that of the sequences without padding, ``levels="balanced"`` included.
        density: of the times; None is uniform.
        interval: the part of [0, 1] on which the network is used, e.g. (eps, 1 - eps).
        parameterization: what the logits mean, as in ``nelbo``; by default the denoiser's attribute of that name, and
            "cavity" where it has none.
        steps: T, for the bound in discrete time; None for continuous time.
        levels: how the tokens of a text share its noise, "independent" or "balanced", see ``process.sample``. Both
            give the same in the mean, the second with less noise. Where positions have times of their own they are
            independent.
        pace: which position when; None is ``Together()``, one time for all.
        at_once: whether every block of a text has a draw of its own, by a denoiser that is told the clean text beside
            (``typing.BlockDenoiser``): in the mean the same, for twice the work with less noise.

    Raises:
        TypeError, ValueError: as ``nelbo``; a bad mask, interval or number of steps; a density that is none, negative,
            or 0 inside (0, 1); unknown ``levels``; a pace that is none, or cannot serve the length; a denoiser that
            takes one time per sequence, or no clean text, where it is told them.
    """
    process.check_inputs(x=x)
    if mask is not None:
        check_devices(x=x, mask=mask)
        check_mask("mask", mask, x.shape)
    meaning = stated(denoiser, parameterization)
    process.check_levels(levels)
    pace = Together() if pace is None else pace
    if not isinstance(pace, Pace):
        raise TypeError(f"pace is {pace!r}, must be a ddlib.paces.Pace object such as Blocks(32), or None")
    low, high = interval
    rows, length = x.shape
    t, measure, s, u = pace.draw(
        rows, length, generator, density=density, interval=interval, steps=steps, at_once=at_once, device=x.device
    )
    if t.ndim == 2:
        rule = "must be 'independent': only of one time per text are balanced draws known"
        require(levels == "independent", f"levels is {levels!r}, pace {pace!r}: {rule}")
        check_time_input(denoiser, pace.block if at_once else None, repr(pace))
    z = process.sample(x, t, generator) if levels == "independent" else process.sample(x, t, generator, levels)
    clean = {"clean": x} if at_once else {}
    with evaluating(denoiser, z.device, "dd.bound"):
        output = denoiser(z, _told(t), **clean)
    logits = cavity_logits(process, output, z, t, meaning)
    term = process.integrand(logits, x, z, t) if steps is None else process.step_divergence(logits, x, z, t, s)
    measure = beside(measure).to(term.dtype)
    diffusion = torch.where(measure > 0, measure * term, 0.0)
    if levels == "balanced":
        diffusion = diffusion * process.importance_weight(x, z, t)[:, None].to(diffusion.dtype)
    # slow words and levels keep so much beyond the last time of this dtype that a bound without it would be none
    last = high if steps is not None else min(high, latest(t.dtype))
    start, end = (t.new_full((rows,), time) for time in (low, last))
    left = torch.zeros_like(diffusion)
    if bool((process.likelihood(x, x, start) < 1).any()):
        z = process.sample(x, start, generator)
        logits = cavity_logits(process, denoiser(z, _told(start)), z, start, meaning)
        left = reconstruction(process, logits, x, z, start)
    check_graph(denoiser, output, "dd.bound")
    prior = process.prior_kl(x, end).to(diffusion.dtype)
    if mask is not None:
        diffusion, prior, left = (torch.where(mask, term, 0.0) for term in (diffusion, prior, left))
    caveat = partial(
        variance_caveat, process, density, length, interval=interval, levels=levels, steps=steps, pace=pace
    )
    return Bound(diffusion, prior, left, u, mask, caveat)


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
    """What to state of the standard error of a bound: nothing, or which moment of a draw has no finite value.

    Without a finite variance a stated error is too small by any factor; without a finite third moment, and more of it
    than under the process's own density, intervals of a few hundred sequences hold the truth in 90 % in place of 95 %.
    Balanced levels draw a token that pays in every sequence: of masks nothing is left to chance, of processes that
    replace tokens too much. Of steps and of times per position nothing is stated.

    Args:
        process: the forward process.
        density: of the times; None is uniform.
        length: positions of a sequence.
        interval: as ``bound`` takes it, and the others likewise.
        levels: how the tokens of a sequence share its noise.
        steps: of a grid; None for continuous time.
        pace: which position when; None is all together.
    """
    if steps is not None or not isinstance(pace or Together(), Together):
        return ""
    try:
        uniform = process.tail_exponents()
        drawn = uniform if density is None else process.tail_exponents(density)
    except (TypeError, ValueError):  # a process without moments, or with moments that are not finite
        return ""
    cut = interval[0] > 0, interval[1] < 1
    ends = [end for end in (0, 1) if not cut[end]]
    independent = levels == "independent"
    infinite = [end for end in ends if drawn[end] >= (INFINITE if independent else BALANCED)]
    # at t = 0 rare tokens pay 1 / t: E f^3 / g^2 grows faster than E f^2 / g by 1 / (t g)
    skewed = [end for end in ends if independent and end == 0 and 2 * drawn[end] - uniform[end] > SKEWED]
    if not infinite and not skewed:
        return ""
    near = " and ".join(f"t = {end}" for end in infinite or skewed)
    moment = "variance" if infinite else "third moment"
    mended = all(uniform[end] < 2 * INFINITE for end in ends)  # the best density halves the exponent
    advice = f"density=process.time_density({length}, chance=0.2)" if mended else "an interval inside (0, 1)"
    return f"error may be too small, near {near} the {moment} has no finite value: use {advice}"


def _told(t: Times) -> Times:
    """Times as the network is told them: those of a grid are computed in float64."""
    return t.to(torch.get_default_dtype())

"""The whole bound: the integral over time and what is left at its two ends."""

import math
from dataclasses import dataclass

import torch

from ddlib.denoiser import Parameterization, cavity_logits, posterior_logits
from ddlib.nelbo import closed_nelbo
from ddlib.noise import Generator
from ddlib.processes import ForwardProcess
from ddlib.reduce import Measure
from ddlib.times import TimeDensity, Uniform, sample_times
from ddlib.typing import Denoiser, Logits, PerToken, Times, Tokens


@dataclass(frozen=True, repr=False)
class Bound:
    """One unbiased estimate of an upper bound of -log p(x), by its three terms, each (B, L) in nats per token.

    Printed it is the mean over all tokens, with the standard error over texts, the means of its terms, and the number
    of texts and of tokens in each: ``Bound(3.43 ± 0.21 nats per token = ...; 64 x 8)``. Every text has one draw. The
    error is that of times in strata where ``times`` are told, else that of independent ones (``Measure.method``).
    """

    diffusion: PerToken
    """The integral over time, by one draw of (t, z) per sequence."""
    prior: PerToken
    """KL(q(z at the noisy end | x) || prior); 0 when the schedule ends exactly in its limit."""
    reconstruction: PerToken
    """-log p(x | z at the clean end); 0 when the schedule starts exactly at the data."""
    times: Times | None = None
    """The time of each text's draw, (B,), of times drawn in strata; None where nobody knows."""

    @property
    def total(self) -> PerToken:
        """The sum of the three terms."""
        return self.diffusion + self.prior + self.reconstruction

    @property
    def per_token(self) -> Measure:
        """The mean in nats per token; its standard error, over texts, is NaN where there is only one."""
        nats = self.total.detach().to("cpu", torch.float64).sum(1)
        return Measure.ratio(nats, torch.full_like(nats, self.total.shape[1]), "nats per token", self.times)

    def __repr__(self) -> str:
        mean = self.per_token
        error = mean.standard_error
        places = 2 if math.isnan(error) or error >= 0.1 or error == 0 else 1 - math.floor(math.log10(error))
        own = "" if math.isnan(error) else f" ± {error:.{places}f}"
        terms = {"diffusion": self.diffusion, "prior": self.prior, "reconstruction": self.reconstruction}
        sum_of = " + ".join(f"{name} {float(term.detach().mean()):.{places}f}" for name, term in terms.items())
        texts, tokens = self.total.shape
        return f"Bound({mean.value:.{places}f}{own} {mean.unit} = {sum_of}; {texts} x {tokens})"


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
    density: TimeDensity | None = None,
    interval: tuple[float, float] = (0.0, 1.0),
    parameterization: Parameterization = "cavity",
) -> Bound:
    """Estimates the whole negative evidence lower bound of ``x`` with one time per sequence.

    With times from a ``density`` each draw is multiplied by its weight: another variance, the same expectation. The
    best one is ``process.time_density(length)``. Average several calls, with other steps of a ``KeyedGenerator``, for
    less noise. At an end of time that is exact nothing is computed; elsewhere (geometric noise, or an interval cut
    short) the end's term is counted, at the cost of a second call of the denoiser for the reconstruction.

    Args:
        process: the forward process.
        denoiser: ``(z, t) -> logits``.
        x: (B, L) clean words.
        generator: source of times and noise.
        density: of the times; None is uniform.
        interval: the part of [0, 1] on which the network is used, e.g. (eps, 1 - eps).
        parameterization: what the logits mean, as in ``nelbo``.

    Raises:
        TypeError, ValueError: as ``nelbo``; a bad interval; a density that is none, negative, or 0 inside (0, 1).
    """
    process.check_inputs(x=x)
    low, high = interval
    t = sample_times(len(x), generator=generator, density=density, interval=interval, device=x.device)
    z = process.sample(x, t, generator)
    logits = cavity_logits(process, denoiser(z, t), z, t, parameterization)
    integrand = closed_nelbo(process, logits, x, z, t)
    diffusion = (density or Uniform()).weight(t, interval).to(integrand.dtype)[:, None] * integrand
    start, end = torch.full_like(t, low), torch.full_like(t, high)
    left = torch.zeros_like(diffusion)
    if bool((process.likelihood(x, x, start) < 1).any()):
        z = process.sample(x, start, generator)
        logits = cavity_logits(process, denoiser(z, start), z, start, parameterization)
        left = reconstruction(process, logits, x, z, start)
    return Bound(diffusion, process.prior_kl(x, end).to(diffusion.dtype), left, t)

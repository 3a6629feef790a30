"""What is worth knowing before times are drawn: how much the bound's integrand varies, and the density that follows."""

from collections.abc import Sequence

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ddlib.processes.follows import Follows
from ddlib.processes.moments import dense_moments, grid, logits_that_pay, nats_of_levels, nats_of_token, table
from ddlib.times import Tabulated, TimeDensity
from ddlib.typing import HasLevelWeights, Times
from ddlib.utils.validation import check_count, check_number

_ENUMERATED, _DENSE = 160, 1024
_NOTHING = 1e-9  # of the mean square at t = 1/2
_REDUCED, _WORDS, _HELD = 24, 8, 2**20


class Timed(Follows, own_times=True):
    """The density of times under which the bound of this process has least variance."""

    def time_density(self, length: int, divergences: Sequence[float] | None = None, chance: float = 1.0) -> Tabulated:
        r"""The density of times under which the bound of a text has least variance.

        .. math:: g(t) \propto \sqrt{(c\, m(t))^2 + v(t) / L}

        with m and v the mean and the variance of the bound's integrand at one position (theory section 12), from
        ``time_moments`` on a grid that is fine at both ends. Any table is unbiased, so what is paid need only be
        guessed: where a level pays twice or half of that, the variance is at most 1.9 times the least, in strata 1.1
        times (two levels, L = 128; docs/concepts/times.md).

        Args:
            length: L, positions of a text, at least 1.
            divergences: as in ``time_moments``.
            chance: c, in [0.01, 1]: how much of the mean is left to chance. All of it where times are independent; of
                many texts with times in strata only what texts differ by, about a fifth.

        Raises:
            TypeError, ValueError: as ``time_moments``; a bad length or chance.

        Example:
            >>> import ddlib as dd
            >>> density = dd.presets.mdlm(5).time_density(length=128)
            >>> density.density(torch.tensor([0.001, 0.1, 0.9]).double())
            tensor([2.8541, 1.0075, 0.9766], dtype=torch.float64)
        """
        check_count("length", length)
        check_number("chance", chance, 0.01, 1, "in [0.01, 1]")
        edges, inside = grid(self.device)
        return table(edges, *self.time_moments(inside, divergences), length, chance)

    @torch.no_grad()
    def time_moments(
        self, t: Times, divergences: Sequence[float] | None = None
    ) -> tuple[Float64[Tensor, "B"], Float64[Tensor, "B"]]:
        """Mean and mean square of the bound's integrand at one position, over uniform words and their noise.

        Where each level has a weight of its own (``ddlib.typing.HasLevelWeights``) they are sums over levels of
        occupancy times weight times what is paid there, and its square. Elsewhere they are those of the integrand under
        a distribution that pays for every token alike: over pairs of token and state where there is a closed form, else
        by matrix products over all states, up to 1,024 of them (``moments.dense_moments``).

        Args:
            t: (B,) float64 times.
            divergences: what the network pays, in nats: one number for each level above the words, or one for a word
                where there are no such levels. By default the logarithm of the number of children, or of words: what
                the uniform law pays. Only ratios between levels matter.

        Raises:
            TypeError, ValueError: other divergences; a large process that is neither and offers no reduction.
        """
        if isinstance(self, HasLevelWeights):
            nats = t.new_tensor(nats_of_levels(self.levels, divergences))
            share, paid = self.occupancies(t)[:, 1:], self.weights(t)[:, 1:] * nats
            return (share * paid).sum(-1), (share * paid**2).sum(-1)
        nats_paid = nats_of_token(self.vocab_size, divergences)
        closed_form = self._has_closed_form()
        if not closed_form and self.num_states <= _DENSE:
            return dense_moments(self, t, nats_paid)
        cases = self.equivalence_classes() if closed_form else None
        if cases is None:
            return self.small_copy(_REDUCED).to(self.device).time_moments(t, [nats_paid])
        x, z, count = cases
        logits = logits_that_pay(nats_paid, x, self.vocab_size)

        def moments(t: Tensor) -> Tensor:
            here, there = x.expand(len(t), -1), z.expand(len(t), -1)
            mass = self.likelihood(there, here, t) * count
            mass = mass / mass.sum(-1, keepdim=True)  # each word's states have mass one
            closed = self.weighted_divergence(logits.expand(len(t), -1, -1), here, there, t)
            assert closed is not None
            paid = torch.where(mass > 0, closed[0] * closed[1], 0.0)
            return torch.stack([(mass * paid).sum(-1), (mass * paid**2).sum(-1)])

        rows = max(1, _HELD // (len(x) * self.vocab_size))
        mean, square = torch.cat([moments(some) for some in t.split(rows)], 1)
        return mean, square

    def tail_exponents(self, density: TimeDensity | None = None) -> tuple[float, float]:
        r"""How fast the variance of the bound under ``density`` grows as time nears the data, and the noise.

        The exponents b in :math:`E[f(t)^2] / g(t) \sim t^{-b}` and :math:`(1 - t)^{-b}`, with f the integrand of
        ``time_moments`` at one position, over the decade that begins at 4e-7 from either end. The variance is an
        integral of this ratio: it has a finite value where both are below 1. At b = 1, as for masks under uniform
        times, it grows as the logarithm of the number of draws, and stated errors are nearly right (a self-normalised
        sum is asymptotically normal: Gine, Goetze and Mason, 1997). Where tokens that pay :math:`(1/t) \log(1/t)` have
        a probability of t, as under uniform and ordinal noise, it grows as the cube of the logarithm and b is about
        1.15: most runs meet no such token, and state errors that are too small.

        Args:
            density: of the times; None is uniform.

        Raises:
            TypeError, ValueError: as ``time_moments``.
        """
        if self.vocab_size == 1:  # there is nothing to estimate
            return 0.0, 0.0
        early = torch.tensor([4e-7, 4e-6], dtype=torch.float64, device=self.device)
        times = torch.cat([early, 1 - early])
        square = self.time_moments(torch.cat([times, times.new_tensor([0.5])]))[1]
        # below this there is nothing but rounding, which rates that grow without end make look like a tail
        square = square[:4].clamp_min(_NOTHING * float(square[4])) + torch.finfo(torch.float64).tiny
        height = (square if density is None else square * density.weight(times)).log10()
        return float(height[0] - height[1]), float(height[2] - height[3])

    def _has_closed_form(self) -> bool:
        """Whether ``weighted_divergence`` gives the integrand; one token at one time tells it."""
        token = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        logits = torch.zeros(1, 1, self.vocab_size, dtype=torch.float64, device=self.device)
        return self.weighted_divergence(logits, token, token, logits.new_full((1,), 0.5)) is not None

    def equivalence_classes(self) -> tuple[Int64[Tensor, "N"], Int64[Tensor, "N"], Float64[Tensor, "N"]] | None:
        """Pairs of word and state that stand for all, and for how many each stands, (N,); None if they are too many.

        Here every state with some words, where states are few. A leaf in which words are alike says so.
        """
        if self.num_states > _ENUMERATED:
            return None
        words = torch.linspace(0, self.vocab_size - 1, min(_WORDS, self.vocab_size), device=self.device).long()
        x = words.repeat_interleave(self.num_states)
        z = torch.arange(self.num_states, device=self.device).repeat(len(words))
        return x, z, torch.ones(len(x), dtype=torch.float64, device=self.device)

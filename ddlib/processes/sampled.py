"""What samplers ask: where positions go, and where they land."""

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.processes.follows import Follows
from ddlib.processes.optimal_times import Timed
from ddlib.typing import Logits, Sharpen, StateProbs, Times, Tokens
from ddlib.utils.categorical import draw, draw_logits
from ddlib.utils.random import Generator, rand


def unchanged(log_probs: Tensor) -> Tensor:
    """Return log-probabilities (..., n) as they are: the default of ``sharpen`` in ``sample_given_level``."""
    return log_probs


class Sampled(Timed, own_times=True):
    """One step backwards: ``sample_level`` without the network, ``sample_given_level`` with it.

    ``exit_rate`` and ``sample_exit`` go by rates.

    The answers here let the network run at every position and step. A process whose jumps do not depend on it says so,
    and samplers skip what they can.
    """

    def sample_level(
        self, z: Tokens, t: Times, s: Times, generator: Generator = None, lift: Tensor | None = None
    ) -> Tokens | None:
        """Where the positions go between t and s < t as far as the network has no say; None if it always has one.

        A process with levels returns the level of each position at s. Positions that keep theirs do not move.

        Args:
            z: (B, L) states at ``t``.
            t: (B,) times.
            s: (B,) earlier times.
            generator: source of randomness.
            lift: (B, n) chances to climb each edge, at most those of ``max_remask_prob``; others come down in their
                place, so that the levels at s have their law. None for none.
        """
        return None

    def max_remask_prob(self, t: Times, s: Times) -> Tensor | None:
        """The largest ``lift`` of each edge, (B, n); None if ``sample_level`` knows no levels."""
        return None

    def level_transition(self, s: Times, t: Times) -> Tensor | None:
        """The probability of each level at t (columns) given each at s <= t (rows), (B, levels, levels) float64.

        None if the levels are no chain of their own: which words there are then has a say.
        """
        return None

    def ascend(self, z: Tokens, level: Tokens, generator: Generator = None) -> Tokens:
        """The states that ``z`` reach at levels not below theirs, by their own noise.

        Raises:
            TypeError: the process has no levels.
        """
        raise TypeError(f"{type(self).__name__} has no levels to climb")

    def sample_given_level(
        self, logits: Logits, z: Tokens, t: Times, s: Times, target: Tokens | None,
        generator: Generator = None, *, force: bool = False, sharpen: Sharpen = unchanged,
    ) -> Tokens:  # fmt: skip
        """Draws z_s from the posterior, given the result of ``sample_level`` (``target``) and cavity logits.

        ``force`` keeps a token inside its cluster on its way down (the paper's force transition), where there are any.
        ``sharpen`` acts on every law of words or clusters from which one is drawn, after the evidence of z has come in:
        here on p(x|z_t), so that z_s is drawn given z_t and a word.
        """
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        known, possible = evidence(self, z, t)
        words = sharpen(logits.log_softmax(-1) + known.to(logits.dtype))
        x = draw_logits(words, rand(z.shape, generator, z.device))
        law = self.posterior(one_hot(x, self.vocab_size).to(torch.float64), z, t, s)
        law = torch.where(possible, law, one_hot(z, self.num_states))
        return draw(law, rand(z.shape, generator, z.device))

    def descendant_logits(
        self, logits: Float[Tensor, "N V"], z: Int64[Tensor, "N"], level: int, target: int, force: bool = False
    ) -> Float[Tensor, "N K"]:
        """The law of the members that states land on in a level below theirs, in proportion to K(z|y) u(y|p).

        Neither the time nor the other positions have a say, given the states and ``logits`` (theory section 10).

        Args:
            logits: (N, V) of the cavity law.
            z: (N,) states, all in ``level``.
            level: where they are.
            target: where they land, below ``level``.
            force: see ``sample_given_level``.

        Returns:
            (N, K) log-law of the K members of ``target``, in nats, not normalised.

        Raises:
            TypeError: the process has no levels.
        """
        raise TypeError(f"{type(self).__name__} has no levels to come down")

    def exit_rate(
        self, z: Tokens, t: Times, logits: Logits | None = None, sharpen: Sharpen = unchanged
    ) -> Float64[Tensor, "B L"] | None:
        """The rate at which the reverse chain leaves each position's state: ``reverse_rate``, summed over states.

        Args:
            z: (B, L) states.
            t: (B,) times.
            logits: of the cavity law; a process with levels, where every jump leads one level down at a rate that the
                network has no say in, does without.
            sharpen: see ``sample_given_level``.

        Returns:
            (B, L) per unit of time; None where the network has a say and ``logits`` are not given.
        """
        return None if logits is None else self._rates(logits, z, t, sharpen).sum(-1).to(torch.float64)

    def sample_exit(
        self, logits: Logits, z: Tokens, t: Times, moves: Bool[Tensor, "B L"], generator: Generator = None, *,
        force: bool = False, sharpen: Sharpen = unchanged,
    ) -> Tokens:  # fmt: skip
        """Where the reverse chain jumps to from ``z``, drawn in proportion to ``reverse_rate``.

        Args:
            logits: of the cavity law.
            z: (B, L) states.
            t: (B,) times.
            moves: (B, L) which positions jump, where the rate is not 0; the others stay.
            generator: source of randomness.
            force: see ``sample_given_level``.
            sharpen: see ``sample_given_level``.
        """
        u, result = rand(z.shape, generator, z.device), z.clone()
        rates = self._rates(logits, z, t, sharpen)
        rows = moves & (rates.sum(-1) > 0)
        result[rows] = draw(rates[rows], u[rows])
        return result

    def subtree_logits_suffice(self, level: int, target: int, force: bool = False) -> bool:
        """Whether from ``level`` positions land in ``target`` by the law of the words under their state alone.

        Then other words' logits, and a common constant, do not matter: in their place ``sample_given_level`` may be
        given -inf; and the law of a state's children is enough to go down from child to child. Needs a ``hierarchy``.
        """
        return False

    def reachable_from_all_tokens(self, z: Tokens) -> Bool[Tensor, "B L"]:
        """Whether every word may have become the state, at times between 0 and 1, (B, L) bool.

        Only there can the law of a position given the others, which Gibbs steps draw from, be told from what a network
        knows: a word that is never wrong says all about itself, and nothing about what might stand in its place.

        Args:
            z: (B, L) states.
        """
        middle = torch.full((len(z),), 0.5, dtype=torch.float64, device=z.device)
        return (self.token_likelihood(z, middle) > 0).all(-1)

    def sample_jump_times(
        self, shape: Sequence[int], generator: Generator, device: torch.device
    ) -> tuple[Tensor, Tokens]:
        """Times (B, L, n) at which each position enters levels 1..n, above 1 for never, and the states (B, L) at t = 1.

        Raises:
            TypeError: the jumps of this process depend on the network, so they cannot be drawn before it runs.
        """
        raise TypeError(f"{type(self).__name__} cannot draw its jump times up front: they depend on the network")

    def _rates(self, logits: Logits, z: Tokens, t: Times, sharpen: Sharpen) -> StateProbs:
        """``reverse_rate`` of the law that ``sharpen`` leaves of p(x|z); 0 from states that no noise leads to."""
        cavity, possible = self._sharpened(logits, z, t, sharpen)
        return torch.where(possible, self.reverse_rate(cavity.softmax(-1), z, t), 0.0)

    def _sharpened(self, logits: Logits, z: Tokens, t: Times, sharpen: Sharpen) -> tuple[Logits, Bool[Tensor, "B L 1"]]:
        """Log of the cavity law that ``sharpen`` leaves of p(x|z), not normalised; and whether a word may be z by t."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        known, possible = evidence(self, z, t)
        known = known.to(logits.dtype)
        words = sharpen(logits.log_softmax(-1) + known)
        return torch.where(known > -torch.inf, words - known, -torch.inf), possible


def evidence(process: Follows, z: Tokens, t: Times) -> tuple[Float64[Tensor, "B L V"], Bool[Tensor, "B L 1"]]:
    """log q_t(z|.) of every word, and whether some word may have become ``z``; where none may, 0 for all.

    A word that is given, a prompt, may be one that no noise leads to at this time: it stays.
    """
    likelihood = process.token_likelihood(z, t)
    possible = (likelihood > 0).any(-1, keepdim=True)
    return torch.where(possible, likelihood, 1.0).log(), possible

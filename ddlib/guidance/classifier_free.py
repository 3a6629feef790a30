"""Classifier-free guidance: a conditional and an unconditional denoiser."""

from collections.abc import Mapping, Sequence
from typing import Self

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from ddlib.guidance.base import Guidance, Strength, check_part, check_widths
from ddlib.guidance.small_networks import Lookup
from ddlib.guidance.targets import TokenTarget
from ddlib.parameterization.logits import Parameterization
from ddlib.processes import ForwardProcess, unsqueeze_times
from ddlib.processes.examples import four
from ddlib.typing import Denoiser, SplitDenoiser, implements
from ddlib.utils.validation import due, require, visible


class ClassifierFree(Guidance):
    r"""Classifier-free guidance: :math:`p \propto p_c^\gamma\, p_u^{1 - \gamma}` of a conditional
    and an unconditional.

    With ``on="states"`` this is the discrete guidance D-CFG of Schiff et al. (arXiv 2412.10193),
    after Ho & Salimans (arXiv 2207.12598): the distribution of the next state is tempered. At a
    state z of a plain hierarchy it is :math:`\pi(y|z) \propto \pi_c(y|z)^\gamma \pi_u(y|z)^{1 -
    \gamma}` over the children y, on every edge; a jump over several edges is the product of these.
    In other processes it is the distribution of z_s given z_t: all of it for uniform noise and
    GIDD, and within the new level for xi < 1, where one distribution of tokens cannot be tempered
    both as a token and as a cluster. With ``on="tokens"`` the distribution of the clean token is
    tempered. For masked diffusion the two agree; in a hierarchy they do not, since a power of a sum
    is not the sum of the powers.

    Strength 0 is the unconditional and 1 the conditional, and only that one is called. A
    conditional that depends on the index of the row, e.g. with one label per row, requires
    ``dd.sample(..., controls=[dd.controls.WholeBatch()])``. Split denoisers are called as a whole.

    Args:
        process: the forward process.
        conditional: ``(z, t) -> logits`` given the condition.
        unconditional: the same without the condition, over the same tokens.
        strength: gamma, at least 0, or a function of the time; values above 1 strengthen the
            condition. In the notation w, gamma = w + 1. To steer away from a condition, exchange
            the parts.
        on: "tokens" or "states".
        interval: two times; outside this interval only the conditional is used (Kynkäänniemi et
            al., arXiv 2404.07724).
        parameterization: meaning of the logits of both parts, as in ``nelbo``; by default their
            attribute of that name, or "cavity" without one.

    Raises:
        TypeError, ValueError: as ``Guidance``; a part that is not callable; parts with different
            vocabularies, detected at construction if both are split denoisers.

    Example:
        >>> import ddlib as dd
        >>> process = dd.presets.mdlm(vocab_size=2)
        >>> def network(odds):
        ...     return lambda z, t: torch.tensor([odds, 1.0]).log().expand(*z.shape, 2)
        >>> parts = [network(3.0), network(1.0)]
        >>> guided = ClassifierFree(process, *parts, strength=2.0)
        >>> guided(torch.tensor([[2]]), torch.tensor([0.5])).softmax(-1)  # odds 3:1 squared
        tensor([[[0.9000, 0.1000]]])
    """

    parts = ("conditional", "unconditional")
    outside = 1.0
    least = 0.0

    def __init__(
        self,
        process: ForwardProcess,
        conditional: Denoiser,
        unconditional: Denoiser,
        strength: Strength,
        on: str = "tokens",
        interval: Sequence[float] = (0.0, 1.0),
        parameterization: Parameterization | None = None,
    ) -> None:
        parts = {"conditional": conditional, "unconditional": unconditional}
        for name, part in parts.items():
            check_part(name, part, "a denoiser (z, t) -> logits")
        split = {name: part for name, part in parts.items() if implements(part, SplitDenoiser)}
        check_widths({name: len(part.output_weights()[0]) for name, part in split.items()})
        self.conditional = conditional
        self.unconditional = unconditional
        super().__init__(process, strength, on, interval, parameterization, parts)

    @property
    def special_cases(self) -> Mapping[float, Denoiser]:
        return {0.0: self.unconditional, 1.0: self.conditional}

    def steer(self, place: TokenTarget) -> Float[Tensor, "B L n"]:
        gamma = self.strength_at(place.t)
        if bool((gamma == 1).all()):
            return self.evaluate(place, "conditional")[0]
        if bool((gamma == 0).all()):
            return self.evaluate(place, "unconditional")[0]
        conditional, unconditional = self.evaluate(place, *self.parts)
        return temper(conditional, unconditional, gamma)

    @classmethod
    def examples(cls) -> Sequence[Self]:
        kinds = four()
        by_token = [
            (kinds["masked"], "tokens"),
            (kinds["tree"], "tokens"),
            (kinds["uniform"], "tokens"),
        ]
        states = [(process, "states") for process in kinds.values()]
        return [
            cls(process, Lookup(process, 1), Lookup(process, 2), 2.5, on)
            for process, on in (*by_token, *states)
        ]


def temper(
    conditional: Float[Tensor, "B L n"],
    unconditional: Float[Tensor, "B L n"],
    gamma: Float64[Tensor, "*batch"],
) -> Float[Tensor, "B L n"]:
    """Compute gamma * conditional + (1 - gamma) * unconditional log-probabilities, (B, L, n).

    Gamma is (B,) or (B, L).

    A choice that is impossible under a distribution of nonzero exponent stays impossible.

    Raises:
        ValueError: gamma > 1 and a choice that is impossible under the unconditional but not under
            the conditional.
    """
    power = unsqueeze_times(gamma)[..., None].to(conditional.dtype)
    nothing = -torch.inf
    log_probs = power * conditional + (1 - power) * unconditional
    if visible(log_probs) and bool(log_probs.isfinite().all()):
        return log_probs
    # -inf times 0, and -inf + inf, are NaN: which choices are impossible is decided by rule
    never = (conditional == nothing) | ((unconditional == nothing) & (power < 1))
    log_probs = torch.where(never, nothing, log_probs)
    log_probs = torch.where(
        power == 1, conditional, torch.where(power == 0, unconditional, log_probs)
    )
    if due(log_probs):
        beyond = log_probs == torch.inf
        if bool(beyond.any()):
            b, i, k = (int(v) for v in beyond.nonzero()[0])
            strength = float(unsqueeze_times(gamma).expand(log_probs.shape[:2])[b, i])
            require(
                False,
                f"unconditional gives choice {k} at position ({b}, {i}) probability 0, conditional "
                "does not: with "
                f"strength {strength:g} > 1 its weight would be infinite, so both must exclude "
                "the same choices",
            )
    return log_probs

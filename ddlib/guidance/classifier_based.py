"""Classifier guidance: a denoiser steered by a classifier of noisy states."""

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.guidance.base import Guidance, Strength, check_part, place_of
from ddlib.guidance.small_networks import Lookup, Scale
from ddlib.guidance.targets import ChildTarget, TokenTarget
from ddlib.parameterization.logits import Parameterization
from ddlib.processes import ForwardProcess, unsqueeze_times
from ddlib.processes.examples import four
from ddlib.typing import Denoiser, Times, Tokens
from ddlib.utils.validation import check_shape, due, require

Classifier = Callable[[Tensor, Tensor], Tensor]
"""``(states, t) -> log p(y|z)``: one-hot states (B, L, S), times (B,), one number per sequence,
(B,).

A classifier that accepts times (B, L) has the attribute ``own_times``, like a denoiser.
"""

_HOW = ("exact", "first order")
_HELD = 1 << 24
"""Number of elements of the one-hot states in one classifier call."""


class ClassifierBased(Guidance):
    r"""Classifier guidance: adds strength times log p(y|z') - log p(y|z) to the log-probability of
    each change.

    z' is the sequence z with one position changed to a state that it can move to. This is D-CBG
    (Schiff et al., arXiv 2412.10193; for rates Nisonoff et al., arXiv 2406.01572). "exact"
    evaluates the classifier for every such change, in large batches: the number of rows per
    sequence is the number of positions times the number of reachable states. "first order" uses one
    gradient, :math:`\nabla \log p(y|z) \cdot (z' - z)`, for all changes.

    With ``on="states"`` the changes are those of the next jump. In a plain hierarchy these lead to
    the children of the state, e.g. from the mask to 224 clusters instead of 50,257 tokens. With the
    exact classifier of a known joint distribution and strength 1 this is exactly Bayes's rule. If a
    step crosses several edges, "exact" steers only the first of them; samplers that move edge by
    edge, such as ``FirstHitting``, are steered on each edge. In other processes z_s is steered
    (only ``Ancestral`` draws from it), with the classifier evaluated at t; this becomes exact for
    small steps. With ``on="tokens"`` the changes are to tokens. This is Bayes's rule if a state
    that is a token is always the clean token, i.e. in hierarchies of any xi, and an approximation
    for uniform noise and GIDD.

    With strength 0 the guidance equals the denoiser, and the classifier is not called. The
    classifier must not depend on the index of the row.

    Args:
        process: the forward process.
        denoiser: ``(z, t) -> logits``.
        classifier: ``(states, t) -> (B,)``, log p(y|z) in nats up to a constant, of floating-point
            one-hot ``states`` (B, L, S), which can be multiplied with an embedding matrix.
        strength: 1 is Bayes's rule, larger values strengthen the condition, negative values steer
            away from it; or a function of the time.
        how: "exact" or "first order".
        on: "tokens" or "states"; by default "states" in a plain hierarchy, else "tokens", which all
            samplers support.
        interval: two times; outside this interval only the denoiser is used.
        parameterization: meaning of the logits of the denoiser, as in ``nelbo``; by default its
            attribute of that name, or "cavity" without one.

    Raises:
        TypeError, ValueError: as ``Guidance``; another ``how``. When called: a classifier that
            returns another shape, NaN or +inf, or -inf for the current sequence; no gradient for
            "first order".
    """

    parts = ("denoiser", "classifier")
    outside = 0.0

    def __init__(
        self,
        process: ForwardProcess,
        denoiser: Denoiser,
        classifier: Classifier,
        strength: Strength = 1.0,
        how: str = "exact",
        on: str | None = None,
        interval: Sequence[float] = (0.0, 1.0),
        parameterization: Parameterization | None = None,
    ) -> None:
        check_part("denoiser", denoiser, "a denoiser (z, t) -> logits")
        check_part("classifier", classifier, "a function (states, t) -> log p(y|z)")
        require(how in _HOW, f"how is {how!r}, must be one of {', '.join(map(repr, _HOW))}")
        self.denoiser = denoiser
        self.classifier = classifier
        self.how = how
        if on is None and isinstance(process, ForwardProcess):
            on = "states" if place_of(process) is ChildTarget else "tokens"
        super().__init__(
            process, strength, str(on), interval, parameterization, {"denoiser": denoiser}
        )

    @property
    def special_cases(self) -> Mapping[float, Denoiser]:
        return {0.0: self.denoiser}

    def steer(self, place: TokenTarget) -> Float[Tensor, "B L n"]:
        gamma = unsqueeze_times(self.strength_at(place.t))[..., None]
        if bool((gamma == 0).all()):
            return self.evaluate(place, "denoiser")[0]
        change = self.change(place)
        return self.evaluate(place, "denoiser")[0] + torch.where(gamma == 0, 0.0, gamma * change)

    def change(self, place: TokenTarget) -> Float[Tensor, "B L n"]:
        """Compute log p(y|z') - log p(y|z) for each choice of the target.

        0 for unreachable choices.
        """
        if self.how == "first order":
            return self._first_order(place)
        z = place.z
        t = place.network_time
        reach = place.reach()
        states = self._states(z)
        current = self._class_log_prob(states, t)
        if due(current):
            require(
                bool(current.isfinite().all()),
                f"classifier returns {current.min():g} for a current sequence, must be finite: no "
                "continuation has "
                "the label, or its output disagrees with that of the step before",
            )
        first = place.first_state()
        choices = torch.arange(reach.shape[-1], device=z.device)
        others = reach & (choices != (z - first)[..., None])
        # a position with one reachable choice takes it, whatever the classifier says
        changes = (others & (reach.sum(-1, keepdim=True) > 1)).nonzero()
        change = current.new_zeros(reach.shape)
        for places in changes.split(max(1, _HELD // states[0].numel())) if len(changes) else ():
            b, i, k = places.unbind(1)
            tried = states[b]
            state = first[b, i] + k
            tried[torch.arange(len(b), device=z.device), i] = one_hot(state, states.shape[-1]).to(
                states
            )
            change[b, i, k] = self._class_log_prob(tried, t[b]) - current[b]
        return change

    @classmethod
    def examples(cls) -> Sequence[Self]:
        kinds = four()
        cases = [
            (kinds["masked"], None),
            (kinds["tree"], None),
            (kinds["levels"], None),
            (kinds["xi"], "tokens"),
        ]
        cases += [(kinds[name], "states") for name in ("xi", "uniform", "gidd")]
        parts = [(process, Lookup(process, 1), Scale(process, 2), on) for process, on in cases]
        exact = [
            cls(process, denoiser, label, 1.5, on=on) for process, denoiser, label, on in parts
        ]
        sloping = [
            cls(process, denoiser, label, 1.5, "first order", on)
            for process, denoiser, label, on in parts[1:3]
        ]
        return [*exact, *sloping]

    def _first_order(self, place: TokenTarget) -> Float[Tensor, "B L n"]:
        with torch.inference_mode(False), torch.enable_grad():
            states = self._states(place.z).requires_grad_()
            # a copy, since a tensor made in inference mode cannot be saved for the backward pass
            log_prob = self._class_log_prob(states, place.network_time.clone())
            differentiable = log_prob.requires_grad
            slope = (
                torch.autograd.grad(log_prob.sum(), states, allow_unused=True)[0]
                if differentiable
                else None
            )
        if slope is None:
            raise ValueError(
                "classifier has no gradient with respect to its states, which how='first order' "
                "requires; "
                "how='exact' does not"
            )
        if due(slope):
            require(
                bool(slope.isfinite().all()),
                "classifier has a gradient with NaN or infinity, must be finite",
            )
        choices = torch.arange(place.columns, device=slope.device)
        # choices beyond the alphabet of a field have no state, and are excluded by their logits
        state = (place.first_state()[..., None] + choices).clamp_max(slope.shape[-1] - 1)
        return slope.gather(-1, state) - slope.gather(-1, place.z[..., None])

    def _states(self, z: Tokens) -> Float[Tensor, "B L S"]:
        return one_hot(z, self.process.num_states).to(torch.get_default_dtype())

    def _class_log_prob(self, states: Float[Tensor, "N L S"], t: Times) -> Float[Tensor, "N"]:
        """Evaluate log p(y|z) and check it."""
        output = self.classifier(states, t)
        if not isinstance(output, Tensor) or not output.is_floating_point():
            got = output.dtype if isinstance(output, Tensor) else type(output).__name__
            raise TypeError(
                f"classifier returns {got}, must be a floating-point tensor (B,): log p(y|z) of "
                "each sequence"
            )
        check_shape(
            "classifier's output",
            output,
            (len(states),),
            f"(B,) = ({len(states)},): log p(y|z) of each sequence",
        )
        if due(output):
            bad = output.isnan() | (output == torch.inf)
            worst = f"classifier's output holds {output[bad][:1].tolist()}"
            require(not bool(bad.any()), f"{worst}, must be log p(y|z): no NaN, no +inf")
        return output

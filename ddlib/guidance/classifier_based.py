"""One denoiser, and a classifier of noisy states that leads it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Self

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import one_hot

from ddlib.guidance.base import Guidance, Strength, check_part, place_of
from ddlib.guidance.targets import ChildTarget, TokenTarget
from ddlib.guidance.zoo import Lookup, Scale, processes
from ddlib.parameterization.logits import Parameterization
from ddlib.processes import ForwardProcess, beside
from ddlib.typing import Denoiser, Times, Tokens
from ddlib.utils.validation import check_shape, require, visible

Classifier = Callable[[Tensor, Tensor], Tensor]
"""``(states, t) -> log p(y|z)``: one-hot states (B, L, S), times (B,), one number for each sequence, (B,).

One that may be told times (B, L) says so by ``own_times``, as a denoiser does.
"""

_HOW = ("exact", "first order")
_HELD = 1 << 24
"""Numbers in the one-hot states that a classifier is shown at a time."""


class ClassifierBased(Guidance):
    r"""Classifier guidance: log p(y|z') - log p(y|z) times the strength is added to the log-distribution of each
    change.

    z' is the sequence z with one position changed to a state that it can move to. That is D-CBG (Schiff et al., arXiv
    2412.10193; for rates Nisonoff et al., arXiv 2406.01572). "exact" asks the classifier about every such change, many
    at a time: for each sequence and call as many rows as it has positions times states to move to. "first order" takes
    one gradient, :math:`\nabla \log p(y|z) \cdot (z' - z)`, for all of them.

    With ``on="states"`` the changes are those of the next jump: in a plain hierarchy to the children of the state, so
    that at the mask 224 clusters are tried and not 50,257 tokens. With the classifier of a known joint distribution and
    strength 1 this is Bayes's rule, exactly. A step that leads down several edges at once is steered by "exact" on the
    first of them only; samplers that go edge by edge, such as ``FirstHitting``, are steered on each. In other processes
    z_s is steered (``Ancestral`` alone draws from it), with the classifier's opinion at t: exact as steps grow short.
    With ``on="words"`` the changes are to tokens, which is Bayes's rule where a token is never wrong, with hierarchies
    of any xi, and an approximation for uniform noise and GIDD.

    Strength 0 is the denoiser itself, and the classifier is not called. The classifier must not go by the number of the
    row.

    Args:
        process: the forward process.
        denoiser: ``(z, t) -> logits``.
        classifier: ``(states, t) -> (B,)``, log p(y|z) in nats, of one-hot ``states`` (B, L, S), floats: multiply them
            with an embedding. A constant does not matter.
        strength: 1 is Bayes's rule, more exaggerates, less than 0 leads away; or a function of the time.
        how: "exact" or "first order".
        on: "tokens" or "states"; default "states" in a plain hierarchy, else "tokens", so that every sampler goes by
            it.
        interval: two times; outside the denoiser alone speaks.
        parameterization: what the logits of the denoiser mean, as in ``nelbo``.

    Raises:
        TypeError, ValueError: as ``Guidance``; another ``how``; when called, a classifier that gives another shape, NaN
            or +inf, -inf where the sequence stands, or no gradient for "first order".
    """

    parts = ("denoiser", "classifier")
    outside = 0.0

    def __init__(
        self, process: ForwardProcess, denoiser: Denoiser, classifier: Classifier, strength: Strength = 1.0,
        how: str = "exact", on: str | None = None, interval: Sequence[float] = (0.0, 1.0),
        parameterization: Parameterization = "cavity",
    ) -> None:  # fmt: skip
        check_part("denoiser", denoiser, "a denoiser (z, t) -> logits")
        check_part("classifier", classifier, "a function (states, t) -> log p(y|z)")
        require(how in _HOW, f"how is {how!r}, must be one of {', '.join(map(repr, _HOW))}")
        self.denoiser, self.classifier, self.how = denoiser, classifier, how
        if on is None and isinstance(process, ForwardProcess):
            on = "states" if place_of(process) is ChildTarget else "words"
        super().__init__(process, strength, str(on), interval, parameterization)

    @property
    def special_cases(self) -> Mapping[float, Denoiser]:
        return {0.0: self.denoiser}

    def steer(self, place: TokenTarget) -> Float[Tensor, "B L n"]:
        gamma = beside(self.strength_at(place.t))[..., None]
        if bool((gamma == 0).all()):
            return self.evaluate(place, "denoiser")[0]
        change = self.change(place)
        return self.evaluate(place, "denoiser")[0] + torch.where(gamma == 0, 0.0, gamma * change)

    def change(self, place: TokenTarget) -> Float[Tensor, "B L n"]:
        """log p(y|z') - log p(y|z) for each choice at a place; 0 where there is none."""
        if self.how == "first order":
            return self._sloping(place)
        z, t, reach = place.z, place.told, place.reach()
        states = self._states(z)
        here = self._said(states, t)
        if visible(here):
            require(
                bool(here.isfinite().all()),
                f"classifier gives {here.min():g} for a text as it stands, must be finite there: no way on has its "
                "label, or what it said of the step before was another",
            )
        choices = torch.arange(reach.shape[-1], device=z.device)
        others = (reach & (reach.sum(-1, keepdim=True) > 1) & (choices != z[..., None])).nonzero()
        change = here.new_zeros(reach.shape)
        for places in others.split(max(1, _HELD // states[0].numel())) if len(others) else ():
            b, i, k = places.unbind(1)
            tried = states[b]
            tried[torch.arange(len(b), device=z.device), i] = one_hot(k, states.shape[-1]).to(states)
            change[b, i, k] = self._said(tried, t[b]) - here[b]
        return change

    @classmethod
    def examples(cls) -> Sequence[Self]:
        kinds = processes()
        given = [(kinds["masked"], None), (kinds["tree"], None), (kinds["levels"], None), (kinds["xi"], "words")]
        given += [(kinds[name], "states") for name in ("xi", "uniform", "gidd")]
        parts = [(process, Lookup(process, 1), Scale(process, 2), on) for process, on in given]
        exact = [cls(process, denoiser, label, 1.5, on=on) for process, denoiser, label, on in parts]
        sloping = [cls(process, denoiser, label, 1.5, "first order", on) for process, denoiser, label, on in parts[1:3]]
        return [*exact, *sloping]

    def _sloping(self, place: TokenTarget) -> Float[Tensor, "B L n"]:
        with torch.inference_mode(False), torch.enable_grad():
            states = self._states(place.z).requires_grad_()
            said = self._said(states, place.told)
            slope = torch.autograd.grad(said.sum(), states, allow_unused=True)[0] if said.requires_grad else None
        if slope is None:
            raise ValueError(
                "classifier gives no gradient by its states, how='first order' needs one; 'exact' does not"
            )
        if visible(slope):
            require(bool(slope.isfinite().all()), "classifier has a gradient with NaN or infinity, must be finite")
        change = slope - slope.gather(-1, place.z[..., None])
        return change[..., : place.columns]

    def _states(self, z: Tokens) -> Float[Tensor, "B L S"]:
        return one_hot(z, self.process.num_states).to(torch.get_default_dtype())

    def _said(self, states: Float[Tensor, "N L S"], t: Times) -> Float[Tensor, "N"]:
        """log p(y|z), checked."""
        said = self.classifier(states, t)
        if not isinstance(said, Tensor) or not said.is_floating_point():
            got = said.dtype if isinstance(said, Tensor) else type(said).__name__
            raise TypeError(f"classifier gives {got}, must be a floating-point tensor (B,): log p(y|z) of each text")
        check_shape("classifier's answer", said, (len(states),), f"(B,) = ({len(states)},): log p(y|z) of each text")
        if visible(said):
            bad = said.isnan() | (said == torch.inf)
            worst = f"classifier's answer holds {said[bad][:1].tolist()}"
            require(not bool(bad.any()), f"{worst}, must be log p(y|z): no NaN, no +inf")
        return said

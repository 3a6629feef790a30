"""Claims about guidance: equal to its parts at special strengths, equal to its formula elsewhere,
in dense form.
"""

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ddlib.guidance import Guidance
from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.samplers import Ancestral
from ddlib.typing import Denoiser
from ddlib.utils.random import Generator
from ddlib.verification.claims.samplers.guidance_oracle import (
    EARLY,
    LATE,
    SMALL,
    by_level,
    dense,
    kind,
    pairs_of_states,
    steered,
    target_probs,
    tempered,
)
from ddlib.verification.framework.cases import context, few
from ddlib.verification.framework.claim import Claim, Comparison, Point, stated
from ddlib.verification.framework.dependencies import verifier
from ddlib.verification.framework.inputs import at, frequencies, marginals, tally
from ddlib.verification.framework.reference import exact_cavity, sequences

_DRAWS = 3000
_TEXTS = 4
_MANY = 64
"""Largest number of states for which all single changes are tried one by one."""
_AXES = ("sequence", "position", "choice")


def labelled(size: int) -> Tensor:
    """Return a joint distribution of two tokens and a binary label, (V, V, 2), float64."""
    generator = torch.Generator().manual_seed(3)
    joint = torch.rand(size, size, 2, generator=generator, dtype=torch.float64) ** 3 + 1e-3
    return joint / joint.sum()


def classifier(process: ForwardProcess, joint: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a classifier that computes log p(y = 0|z) for ``labelled`` sequences."""

    def label(states: Tensor, t: Tensor) -> Tensor:
        first, second = states.to(torch.float64).unbind(1)
        noised = marginals(process, float(t[0]))
        both = torch.einsum("nz,xz,xwy,wo,no->ny", first, noised, joint, noised, second)
        return both[:, 0].log() - both.sum(1).log()

    return label


def _refuse(*given: Any) -> Tensor:
    raise AssertionError("a part of weight 0 is called")


def _alone(
    guided: Guidance, part: Denoiser, strength: Any, interval: tuple[float, float] = (0.0, 1.0)
) -> Guidance:
    """Return the guidance with all parts but one replaced by functions that raise if called."""
    others = {name: _refuse for name in guided.parts if getattr(guided, name) is not part}
    return guided.replaced(**others, strength=strength, interval=interval)


def _limits(guided: Guidance, point: Point) -> Iterator[Comparison]:
    process = guided.process
    z = pairs_of_states(guided.process)
    t = at(LATE, len(z))
    for strength, part in guided.special_cases.items():
        only = _alone(guided, part, strength)
        what = f"at strength {strength:g}"
        yield Comparison(f"the logits {what}", _AXES, only(z, t), part(z, t), 0.0)
        same = only.parameterization == guided.of_parts and not only.has_step_distribution
        message = f"{what} they must have the parameterization of those of the part"
        yield stated("parameterization of the logits", same, message)
        moving = _alone(guided, part, lambda t, strength=strength: strength)
        probs = target_probs(process, part, guided.of_parts, z, kind(moving))
        yield Comparison(
            f"the distribution {what}, by a function of t", _AXES, steered(moving, z), probs, 1e-6
        )
    part = guided.special_cases[guided.outside]
    elsewhere = _alone(guided, part, 2.5, (0.75, 1.0))
    probs = target_probs(process, part, guided.of_parts, z, kind(elsewhere))
    yield Comparison(
        "the distribution outside the interval", _AXES, steered(elsewhere, z), probs, 1e-6
    )


def _tempers(guided: Any, point: Point) -> Iterator[Comparison]:
    process = guided.process
    z = pairs_of_states(guided.process)
    gamma = float(point["strength"])
    one = guided.replaced(strength=gamma, interval=(0.0, 1.0))
    what = kind(one)
    given, every = (
        target_probs(process, part, one.of_parts, z, what)
        for part in (one.conditional, one.unconditional)
    )
    expected = tempered(process, given, every, gamma, what)
    yield Comparison(
        f"distribution of the {what}",
        _AXES,
        steered(one, z),
        expected,
        1e-9 if _double(one, z) else 1e-4,
    )


def _double(guided: Any, z: Tensor) -> bool:
    """Return whether the parts return float64."""
    parts = (guided.conditional, guided.unconditional)
    return all(part(z, at(LATE, len(z))).dtype == torch.float64 for part in parts)


def _joint_free(guided: Any, point: Point) -> Iterator[Comparison]:
    process = few(guided.process)
    gamma = float(point["strength"])
    joint = labelled(process.vocab_size)
    joints = joint[..., 0] / joint[..., 0].sum(), joint.sum(-1)
    conditional, unconditional = (exact_cavity(process, one) for one in joints)
    one = guided.replaced(
        process=process,
        conditional=conditional,
        unconditional=unconditional,
        strength=gamma,
        interval=(0.0, 1.0),
        parameterization="cavity",
    )
    what = kind(one)
    z = sequences(process.num_states, 2)
    given, every = (dense(process, one, what) for one in joints)
    expected = tempered(process, given, every, gamma, what)
    yield _possible(
        f"distribution of the {what} of two dependent tokens", process, z, steered(one, z), expected
    )


def _bayes(guided: Any, point: Point) -> Iterator[Comparison]:
    process = few(guided.process)
    joint = labelled(process.vocab_size)
    given = joint[..., 0] / joint[..., 0].sum()
    every = joint.sum(-1)
    one = guided.replaced(
        process=process,
        denoiser=exact_cavity(process, every),
        classifier=classifier(process, joint),
        strength=1.0,
        how="exact",
        interval=(0.0, 1.0),
        parameterization="cavity",
    )
    what = kind(one)
    z = sequences(process.num_states, 2)
    if what != "step":
        yield _possible(
            f"distribution of the {what}, given the label",
            process,
            z,
            steered(one, z),
            dense(process, given, what),
        )
        return
    # limit of a short step: the change of log p(z_s) by the classifier, applied to the rates
    t = at(LATE, len(z))
    s = at(EARLY, len(z))
    none = one.replaced(strength=lambda t: 0.0)
    base = none.step_distribution(z, t, s)
    change = torch.where(base > -torch.inf, one.step_distribution(z, t, s) - base, 0.0)
    rates = by_level(process, dense(process, every, "jump") * change.exp(), "jump")
    yield _possible(
        "distribution of the jump, given the label",
        process,
        z,
        rates,
        dense(process, given, "jump"),
    )


def _slopes(guided: Any, point: Point) -> Iterator[Comparison]:
    process = guided.process
    z = pairs_of_states(guided.process)
    weight = 0.5 * torch.randn(
        process.num_states, generator=torch.Generator().manual_seed(4), dtype=torch.float64
    )

    def total(states: Tensor) -> Tensor:
        return (states.to(torch.float64) @ weight).sum(1)

    linear = guided.replaced(
        classifier=lambda states, t: total(states), strength=1.5, interval=(0.0, 1.0)
    )
    first, exact = (steered(linear.replaced(how=how), z) for how in ("first order", "exact"))
    yield Comparison(
        "the distribution by a linear classifier, to first order", _AXES, first, exact, 1e-5
    )
    square = linear.replaced(classifier=lambda states, t: total(states) ** 2, how="first order")
    probs = target_probs(process, square.denoiser, square.of_parts, z, kind(square))
    slope = 2 * weight[z].sum(1)[:, None, None] * (weight[: probs.shape[-1]] - weight[z][..., None])
    expected = by_level(process, probs * (1.5 * slope).exp(), kind(square))
    yield Comparison(
        "the distribution by a square, to first order", _AXES, steered(square, z), expected, 1e-5
    )


def _leans(guided: Any, point: Point) -> Iterator[Comparison]:
    """Evaluate the classifier for every single change separately."""
    process = guided.process
    gamma = float(point["strength"])
    z = pairs_of_states(process)[:: max(1, len(pairs_of_states(process)) // 40)]
    one = guided.replaced(strength=gamma, how="exact", interval=(0.0, 1.0))
    what = kind(one)
    t = at(LATE).to(torch.get_default_dtype())
    probs = target_probs(process, one.denoiser, one.of_parts, z, what)
    change = torch.zeros_like(probs)
    for n, i, k in (probs > 0).nonzero().tolist():
        both = torch.stack([z[n], z[n]])
        both[1, i] = k
        states = torch.nn.functional.one_hot(both, process.num_states).to(torch.get_default_dtype())
        before, after = (one.classifier(state[None], t)[0] for state in states)
        change[n, i, k] = after - before
    expected = by_level(process, probs * (gamma * change).exp(), what)
    yield Comparison(f"distribution of the {what}", _AXES, steered(one, z), expected, 1e-5)


def _draws(guided: Guidance, point: Point) -> Iterator[Comparison]:
    process = guided.process
    generator = torch.Generator().manual_seed(5)
    start = pairs_of_states(process)
    start = start[torch.randperm(len(start), generator=generator)[:_TEXTS]]
    t = at(LATE, len(start))
    s = at(EARLY, len(start))
    probs = steered(guided, start)
    level = process.level_of(torch.arange(process.num_states)[None])[0]
    if isinstance(
        process, LevelProcess
    ):  # the state within the new level is steered, not the level
        uniform = torch.full(
            (*start.shape, process.vocab_size), 1 / process.vocab_size, dtype=torch.float64
        )
        after = process.posterior(uniform, start, t, s)
        probs = probs * torch.stack([after[..., level == i].sum(-1) for i in level.tolist()], -1)
    z = start.repeat_interleave(_DRAWS, 0)
    outcomes = _back(guided, z, generator).view(len(start), _DRAWS, -1).transpose(0, 1).flatten(1)
    counts = tally(outcomes, process.num_states).view_as(probs)
    yield frequencies(
        f"draws of z_s at s = {EARLY:g}", ("sequence", "position", "z_s"), counts, probs, _DRAWS
    )


def _back(guided: Guidance, z: Tensor, generator: Generator) -> Tensor:
    """Take one step of ``Ancestral`` from states at LATE."""
    grid = torch.tensor([1.0, LATE, EARLY, 0.0], dtype=torch.float64)
    run = context(guided.process, guided, z.shape, grid, generator, guided.parameterization)
    return Ancestral().back(run, z, at(LATE, len(z)), at(EARLY, len(z)))


def _possible(
    quantity: str, process: ForwardProcess, z: Tensor, got: Tensor, expected: Tensor
) -> Comparison:
    """Return a comparison restricted to sequences of positive probability."""
    known = (process.token_likelihood(z, at(LATE, len(z))) > 0).any(-1).all(-1)
    return Comparison(quantity, _AXES, got[known], expected[known], 1e-9)


def _two(guided: Guidance) -> str:
    return "" if hasattr(guided, "unconditional") else "it does not have two denoisers"


def _one(guided: Guidance) -> str:
    return "" if hasattr(guided, "classifier") else "it has no classifier"


def _listed(guided: Guidance) -> str:
    try:
        size = few(guided.process).num_states
    except TypeError as error:
        return str(error)
    return "" if size <= SMALL else f"more than {SMALL} states: not all sequences are enumerated"


def _tried(guided: Guidance) -> str:
    size = guided.process.num_states
    return _one(guided) or (
        "" if size <= _MANY else f"more than {_MANY} states: not all changes are evaluated"
    )


def _certain(guided: Guidance) -> str:
    """Return the reason why Bayes's rule does not apply.

    An edge without jumps, or states in level 0 that are noise.
    """
    if not all(
        low < LATE < high
        for low, high in (schedule.support for schedule in guided.process.schedules)
    ):
        return (
            f"an edge has no jumps at t = {LATE:g}, so some changes lead to states of probability 0"
        )
    if guided.on == "tokens":
        tokens = torch.arange(guided.process.vocab_size)[None]
        known = guided.process.token_likelihood(tokens, at(LATE))[0] > 0
        if not torch.equal(known, torch.eye(len(known)) > 0):
            return (
                "a token may be noise here, whose class has other probabilities than that of "
                "the clean token"
            )
    return ""


def _by_logits(guided: Guidance) -> str:
    found = "its logits determine the distribution, and samplers are verified to draw from it"
    return "" if guided.has_step_distribution else found


_STRENGTHS: tuple[Point, ...] = ({"strength": 0.5}, {"strength": 2.5})

CLAIMS = (
    Claim(
        "guidance",
        "limits",
        "at strengths with one part, and outside its interval, it equals this part",
        "exactly, probabilities to 1e-6",
        _limits,
    ),
    Claim(
        "guidance",
        "tempering",
        "the next distribution is the product of the parts to the powers gamma, 1 - gamma",
        "1e-9",
        _tempers,
        _STRENGTHS,
        ({"strength": 0.1}, {"strength": 6.0}),
        _two,
        rests_on=("limits",),
    ),
    Claim(
        "guidance",
        "tempered joint",
        "with exact parts it equals that of all enumerated pairs of tokens",
        "1e-9",
        _joint_free,
        _STRENGTHS,
        ({"strength": 6.0},),
        lambda guided: _two(guided) or _listed(guided),
        rests_on=("tempering",),
    ),
    Claim(
        "guidance",
        "single changes",
        "each change is weighted by the classifier, evaluated for it separately",
        "1e-5",
        _leans,
        _STRENGTHS,
        ({"strength": -1.0},),
        _tried,
        rests_on=("limits",),
    ),
    Claim(
        "guidance",
        "Bayes",
        "with the exact classifier and strength 1 the next distribution is that given the label",
        "1e-9",
        _bayes,
        applies=lambda guided: _one(guided) or _listed(guided) or _certain(guided),
        rests_on=("single changes",),
    ),
    Claim(
        "guidance",
        "first order",
        "exact for a linear classifier, the slope at z for a quadratic one",
        "1e-5",
        _slopes,
        applies=_one,
        rests_on=("single changes",),
    ),
    Claim(
        "guidance",
        "draws",
        "z_s follows the steered distribution, and levels are as without guidance",
        "binomial bounds, false alarm 1e-6",
        _draws,
        applies=_by_logits,
        rests_on=("tempering", "single changes"),
    ),
)

verify = verifier(*CLAIMS)

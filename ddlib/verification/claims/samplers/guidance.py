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
    dense_probs,
    kind,
    pairs_of_states,
    steer,
    target_probs,
    temper,
)
from ddlib.verification.framework.cases import context, few
from ddlib.verification.framework.claim import Claim, Comparison, Point, condition
from ddlib.verification.framework.dependencies import verifier
from ddlib.verification.framework.inputs import at, frequencies, marginals, tally
from ddlib.verification.framework.reference import exact_cavity, sequences

_DRAWS = 3000
_TEXTS = 4
_MANY = 64
"""Largest number of states for which all single changes are tried one by one."""
_AXES = ("sequence", "position", "choice")


def labelled_joint(size: int) -> Tensor:
    """Return a joint distribution of two tokens and a binary label, (V, V, 2), float64."""
    generator = torch.Generator().manual_seed(3)
    joint = torch.rand(size, size, 2, generator=generator, dtype=torch.float64) ** 3 + 1e-3
    return joint / joint.sum()


def classifier(process: ForwardProcess, joint: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
    """Return a classifier that computes log p(y = 0|z) for ``labelled_joint`` sequences."""

    def label(states: Tensor, t: Tensor) -> Tensor:
        first, second = states.to(torch.float64).unbind(1)
        noised = marginals(process, float(t[0]))
        by_label = torch.einsum("nz,xz,xwy,wo,no->ny", first, noised, joint, noised, second)
        return by_label[:, 0].log() - by_label.sum(1).log()

    return label


def _refuse(*arguments: Any) -> Tensor:
    raise AssertionError("a part of weight 0 is called")


def _alone(
    guided: Guidance, part: Denoiser, strength: Any, interval: tuple[float, float] = (0.0, 1.0)
) -> Guidance:
    """Return the guidance with all parts but one replaced by functions that raise if called."""
    refusals = {name: _refuse for name in guided.parts if getattr(guided, name) is not part}
    return guided.replace(**refusals, strength=strength, interval=interval)


def _limits(guided: Guidance, point: Point) -> Iterator[Comparison]:
    process = guided.process
    z = pairs_of_states(guided.process)
    t = at(LATE, len(z))
    for strength, part in guided.special_cases.items():
        only = _alone(guided, part, strength)
        where = f"at strength {strength:g}"
        yield Comparison(f"the logits {where}", _AXES, only(z, t), part(z, t), 0.0)
        unchanged = only.parameterization == guided.of_parts and not only.has_step_distribution
        message = f"{where} they must have the parameterization of those of the part"
        yield condition("parameterization of the logits", unchanged, message)
        moving = _alone(guided, part, lambda t, strength=strength: strength)
        probs = target_probs(process, part, guided.of_parts, z, kind(moving))
        yield Comparison(
            f"the distribution {where}, by a function of t",
            _AXES,
            steer(moving, z),
            probs,
            1e-6,
        )
    part = guided.special_cases[guided.outside]
    elsewhere = _alone(guided, part, 2.5, (0.75, 1.0))
    probs = target_probs(process, part, guided.of_parts, z, kind(elsewhere))
    yield Comparison(
        "the distribution outside the interval", _AXES, steer(elsewhere, z), probs, 1e-6
    )


def _tempers(guided: Any, point: Point) -> Iterator[Comparison]:
    process = guided.process
    z = pairs_of_states(guided.process)
    gamma = float(point["strength"])
    changed = guided.replace(strength=gamma, interval=(0.0, 1.0))
    target = kind(changed)
    conditional, unconditional = (
        target_probs(process, part, changed.of_parts, z, target)
        for part in (changed.conditional, changed.unconditional)
    )
    expected = temper(process, conditional, unconditional, gamma, target)
    yield Comparison(
        f"distribution of the {target}",
        _AXES,
        steer(changed, z),
        expected,
        1e-9 if _double(changed, z) else 1e-4,
    )


def _double(guided: Any, z: Tensor) -> bool:
    """Return whether the parts return float64."""
    parts = (guided.conditional, guided.unconditional)
    return all(part(z, at(LATE, len(z))).dtype == torch.float64 for part in parts)


def _joint_free(guided: Any, point: Point) -> Iterator[Comparison]:
    process = few(guided.process)
    gamma = float(point["strength"])
    joint = labelled_joint(process.vocab_size)
    joints = joint[..., 0] / joint[..., 0].sum(), joint.sum(-1)
    conditional, unconditional = (exact_cavity(process, each) for each in joints)
    exact = guided.replace(
        process=process,
        conditional=conditional,
        unconditional=unconditional,
        strength=gamma,
        interval=(0.0, 1.0),
        parameterization="cavity",
    )
    target = kind(exact)
    z = sequences(process.num_states, 2)
    probs, base_probs = (dense_probs(process, each, target) for each in joints)
    expected = temper(process, probs, base_probs, gamma, target)
    yield _compare_possible(
        f"distribution of the {target} of two dependent tokens",
        process,
        z,
        steer(exact, z),
        expected,
    )


def _bayes(guided: Any, point: Point) -> Iterator[Comparison]:
    process = few(guided.process)
    joint = labelled_joint(process.vocab_size)
    conditional = joint[..., 0] / joint[..., 0].sum()
    unconditional = joint.sum(-1)
    changed = guided.replace(
        process=process,
        denoiser=exact_cavity(process, unconditional),
        classifier=classifier(process, joint),
        strength=1.0,
        how="exact",
        interval=(0.0, 1.0),
        parameterization="cavity",
    )
    target = kind(changed)
    z = sequences(process.num_states, 2)
    if target != "step":
        yield _compare_possible(
            f"distribution of the {target}, given the label",
            process,
            z,
            steer(changed, z),
            dense_probs(process, conditional, target),
        )
        return
    # limit of a short step: the change of log p(z_s) by the classifier, applied to the rates
    t = at(LATE, len(z))
    s = at(EARLY, len(z))
    none = changed.replace(strength=lambda t: 0.0)
    base = none.step_distribution(z, t, s)
    change = torch.where(base > -torch.inf, changed.step_distribution(z, t, s) - base, 0.0)
    rates = by_level(process, dense_probs(process, unconditional, "jump") * change.exp(), "jump")
    yield _compare_possible(
        "distribution of the jump, given the label",
        process,
        z,
        rates,
        dense_probs(process, conditional, "jump"),
    )


def _slopes(guided: Any, point: Point) -> Iterator[Comparison]:
    process = guided.process
    z = pairs_of_states(guided.process)
    weight = 0.5 * torch.randn(
        process.num_states, generator=torch.Generator().manual_seed(4), dtype=torch.float64
    )

    def total(states: Tensor) -> Tensor:
        return (states.to(torch.float64) @ weight).sum(1)

    linear = guided.replace(
        classifier=lambda states, t: total(states), strength=1.5, interval=(0.0, 1.0)
    )
    first, exact = (steer(linear.replace(how=how), z) for how in ("first order", "exact"))
    yield Comparison(
        "the distribution by a linear classifier, to first order", _AXES, first, exact, 1e-5
    )
    square = linear.replace(classifier=lambda states, t: total(states) ** 2, how="first order")
    probs = target_probs(process, square.denoiser, square.of_parts, z, kind(square))
    slope = 2 * weight[z].sum(1)[:, None, None] * (weight[: probs.shape[-1]] - weight[z][..., None])
    expected = by_level(process, probs * (1.5 * slope).exp(), kind(square))
    yield Comparison(
        "the distribution by a square, to first order",
        _AXES,
        steer(square, z),
        expected,
        1e-5,
    )


def _leans(guided: Any, point: Point) -> Iterator[Comparison]:
    """Evaluate the classifier for every single change separately."""
    process = guided.process
    gamma = float(point["strength"])
    z = pairs_of_states(process)[:: max(1, len(pairs_of_states(process)) // 40)]
    changed = guided.replace(strength=gamma, how="exact", interval=(0.0, 1.0))
    target = kind(changed)
    t = at(LATE).to(torch.get_default_dtype())
    probs = target_probs(process, changed.denoiser, changed.of_parts, z, target)
    change = torch.zeros_like(probs)
    for n, i, k in (probs > 0).nonzero().tolist():
        pair = torch.stack([z[n], z[n]])
        pair[1, i] = k
        states = torch.nn.functional.one_hot(pair, process.num_states).to(torch.get_default_dtype())
        before, after = (changed.classifier(state[None], t)[0] for state in states)
        change[n, i, k] = after - before
    expected = by_level(process, probs * (gamma * change).exp(), target)
    yield Comparison(f"distribution of the {target}", _AXES, steer(changed, z), expected, 1e-5)


def _draws(guided: Guidance, point: Point) -> Iterator[Comparison]:
    process = guided.process
    generator = torch.Generator().manual_seed(5)
    start = pairs_of_states(process)
    start = start[torch.randperm(len(start), generator=generator)[:_TEXTS]]
    t = at(LATE, len(start))
    s = at(EARLY, len(start))
    probs = steer(guided, start)
    level = process.level_of(torch.arange(process.num_states)[None])[0]
    # the state within the new level is steered, not the level
    if isinstance(process, LevelProcess):
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


def _compare_possible(
    quantity: str, process: ForwardProcess, z: Tensor, got: Tensor, expected: Tensor
) -> Comparison:
    """Return a comparison restricted to sequences of positive probability."""
    possible = (process.token_likelihood(z, at(LATE, len(z))) > 0).any(-1).all(-1)
    return Comparison(quantity, _AXES, got[possible], expected[possible], 1e-9)


def _two(guided: Guidance) -> str:
    return "" if hasattr(guided, "unconditional") else "it does not have two denoisers"


def _one(guided: Guidance) -> str:
    return "" if hasattr(guided, "classifier") else "it has no classifier"


def _not_enumerable(guided: Guidance) -> str:
    try:
        size = few(guided.process).num_states
    except TypeError as error:
        return str(error)
    return "" if size <= SMALL else f"more than {SMALL} states: not all sequences are enumerated"


def _too_many_changes(guided: Guidance) -> str:
    size = guided.process.num_states
    return _one(guided) or (
        "" if size <= _MANY else f"more than {_MANY} states: not all changes are evaluated"
    )


def _no_bayes_rule(guided: Guidance) -> str:
    """Return the reason why Bayes's rule does not apply: an edge without jumps, or states in level
    0 that are noise.
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
        possible = guided.process.token_likelihood(tokens, at(LATE))[0] > 0
        if not torch.equal(possible, torch.eye(len(possible)) > 0):
            return (
                "a token may be noise here, whose class has other probabilities than that of "
                "the clean token"
            )
    return ""


def _by_logits(guided: Guidance) -> str:
    reason = "its logits determine the distribution, and samplers are verified to draw from it"
    return "" if guided.has_step_distribution else reason


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
        lambda guided: _two(guided) or _not_enumerable(guided),
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
        _too_many_changes,
        rests_on=("limits",),
    ),
    Claim(
        "guidance",
        "Bayes",
        "with the exact classifier and strength 1 the next distribution is that given the label",
        "1e-9",
        _bayes,
        applies=lambda guided: _one(guided) or _not_enumerable(guided) or _no_bayes_rule(guided),
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

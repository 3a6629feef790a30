"""Claims about products of processes: every position is that of its own process (theory section
23).
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from ddlib.objective.given import hold_given
from ddlib.objective.nelbo import nelbo
from ddlib.objective.training import training_loss
from ddlib.parameterization.logits import cavity_logits
from ddlib.processes import ForwardProcess, Product
from ddlib.samplers.sampling import sample
from ddlib.verification.claims import arguments, processes
from ddlib.verification.framework.claim import Claim, Comparison, Point, condition
from ddlib.verification.framework.dependencies import evaluate_claims, explain
from ddlib.verification.framework.inputs import (
    at,
    compare_draws,
    frequencies,
    in_any_batch,
    remembers,
)
from ddlib.verification.framework.reference import (
    every_sequence,
    exact_cavity,
    integrate_bound,
)
from ddlib.verification.report import Check

_ROWS = 48
_DRAWS = 4000
_PAIRS = 20_000
"""Largest number of pairs of sequences of two positions, of tokens and of states."""


class Part(NamedTuple):
    """Positions of a field, and its process."""

    label: str
    process: ForwardProcess
    columns: Tensor
    first_state: int


class Batch(NamedTuple):
    """Tokens, states and logits of a product."""

    x: Tensor
    z: Tensor
    t: Tensor
    logits: Tensor


def verify(subject: Product, full: bool) -> tuple[list[Check], str]:
    """Check every field's process, and that each position of the product is that of its field.

    A single field is checked as the process that it is.
    """
    components = subject.components
    if len(components) == 1:
        return processes.verify(subject, full)
    checks = explain(evaluate_claims(CLAIMS, subject, full))
    notes = []
    for component in components:
        of_field, note = processes.verify(component.process, full)
        checks += [replace(check, topic=f"{component.label}{check.topic}") for check in of_field]
        notes += [component.label + note] * bool(note)
    return checks, "; ".join(notes)


def _length(product: Product) -> int:
    return int(product.arguments()["fields"].shape[-1])


def _parts(product: Product) -> Iterator[Part]:
    fields = product.fields_of((1, _length(product)))[0]
    for k, (process, first, label) in enumerate(product.components):
        yield Part(label.rstrip(", "), process, (fields == k).nonzero()[:, 0], first)


def _first_row(product: Product) -> Product:
    """Return the product at the positions of the first sequence of its batch."""
    fields = product.arguments()["fields"]
    return product if fields.ndim == 1 else product.at_fields(fields[0])


def _batch(product: Product, point: Point, rows: int = _ROWS) -> Batch:
    generator = torch.Generator().manual_seed(int(point["distribution"]))
    shape = (rows, _length(product))
    x = torch.zeros(shape, dtype=torch.int64)
    for part in _parts(product):
        u = torch.rand(rows, len(part.columns), generator=generator, dtype=torch.float64)
        x[:, part.columns] = (u * part.process.vocab_size).long()
    t = at(float(point["t"]), rows)
    logits = torch.randn(*shape, product.vocab_size, generator=generator, dtype=torch.float64)
    return Batch(x, product.sample(x, t, generator), t, logits)


def _values(
    process: ForwardProcess, x: Tensor, z: Tensor, t: Tensor, logits: Tensor
) -> dict[str, Tensor]:
    """Return everything that a process computes for positions."""
    scores = cavity_logits(process, logits, z, t)
    p = scores.softmax(-1)
    return {
        "marginal": process.marginal(x, t),
        "predictive": process.predictive(p, t),
        "posterior": process.posterior(p, z, t, t / 3),
        "reverse_rate": process.reverse_rate(p, z, t),
        "token_likelihood": process.token_likelihood(z, t),
        "posterior logits": cavity_logits(process, logits, z, t, "posterior").softmax(-1),
        "likelihood": process.likelihood(z, x, t),
        "prior_kl": process.prior_kl(x, t),
        "loss_weight": process.loss_weight(x, z, t),
        "nelbo": nelbo(process, logits, x, z, t),
        "step_divergence": process.step_divergence(scores, x, z, t, t / 3),
        "exit_rate": process.exit_rate(z, t, scores),
        "level": process.level_of(z).to(torch.float64),
    }


_OF_STATES = ("marginal", "predictive", "posterior", "reverse_rate")


def _positions(product: Product, point: Point) -> Iterator[Comparison]:
    product = _first_row(product)
    batch = _batch(product, point)
    whole = _values(product, *batch)
    for part in _parts(product):
        size = part.process.vocab_size
        own = (
            batch.x[:, part.columns],
            batch.z[:, part.columns] - part.first_state,
            batch.t,
            batch.logits[:, part.columns, :size],
        )
        for name, expected in _values(part.process, *own).items():
            got = whole[name][:, part.columns]
            quantity = f"{name} in {part.label}"
            axes = ("row", "position", "entry")[: got.ndim]
            if got.ndim == 3:
                first = part.first_state if name in _OF_STATES else 0
                rest = got.sum(-1)
                got = got[..., first : first + expected.shape[-1]]
                yield Comparison(f"sum of {quantity}", axes[:2], rest, expected.sum(-1), 1e-9)
            yield Comparison(quantity, axes, got, expected, 1e-9 * (1 + expected.abs()))


def _alphabets(product: Product, point: Point) -> Iterator[Comparison]:
    product = _first_row(product)
    batch = _batch(product, point)
    x, z, t, logits = batch
    states = product.tokens_as_states(x)
    axes = ("row", "position")
    yield Comparison("tokens of states", axes, product.states_as_tokens(states), x, 0.0)
    field = product.fields_of(x.shape)
    yield Comparison("field of a clean state", axes, product.component_of(states), field, 0.0)
    yield Comparison("field of a noisy state", axes, product.component_of(z), field, 0.0)
    beyond = torch.zeros_like(logits, dtype=torch.bool)
    for part in _parts(product):
        beyond[:, part.columns, part.process.vocab_size :] = True
    losses = [
        training_loss(product, logits.masked_fill(beyond, fill), x, z, t, reduction="none")
        for fill in (0.0, 1e30)
    ]
    yield Comparison("loss with other entries beyond the alphabet", axes, losses[1], losses[0], 0.0)
    known = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    held, _ = hold_given(states, z, t, known)
    loss = training_loss(product, logits, x, held, t, given=known, reduction="none")
    expected = torch.where(known, 0.0, losses[0])
    yield Comparison("loss with given tokens", axes, loss, expected, 1e-12)


def _draws(product: Product, point: Point) -> Iterator[Comparison]:
    product = _first_row(product)
    s = float(point["s"])
    t = float(point["t"])
    one = _batch(product, point, 1)
    many = [value.expand(_DRAWS, *value.shape[1:]) for value in (one.x, one.z, one.logits)]
    x, z, logits = many
    late = at(t, _DRAWS)
    generator = torch.Generator().manual_seed(3)
    scores = cavity_logits(product, one.logits, one.z, one.t)
    noise = product.draw_uniforms(z, generator)
    back = product.sample_posterior(
        cavity_logits(product, logits, z, late), z, late, at(s, _DRAWS), noise
    )
    axes = ("position", "z")
    noisy = product.sample(x, late, generator)
    yield compare_draws("draws of z_t", axes, noisy, product.marginal(one.x, at(t))[0])
    posterior = product.posterior(scores.softmax(-1), one.z, at(t), at(s))[0]
    yield compare_draws("draws of z_s", axes, back, posterior)
    early = product.sample(one.x, at(s), torch.Generator().manual_seed(4))
    later = product.sample_forward(early.expand(_DRAWS, -1), at(s, _DRAWS), late, generator)
    step = product.transition(s, t)[early[0]]
    yield compare_draws("draws of z_t from z_s", axes, later, step)
    prior = product.sample_prior(x.shape, generator)
    expected = torch.zeros(x.shape[1], product.num_states, dtype=torch.float64)
    for part in _parts(product):
        here = slice(part.first_state, part.first_state + part.process.num_states)
        expected[part.columns, here] = part.process.prior()
    yield compare_draws("draws from the prior", axes, prior, expected)
    yield from in_any_batch(
        "z_t", lambda index, keyed: product.sample(x[index], at(t, len(index)), keyed)
    )


def _pairs(product: Product) -> Iterator[tuple[str, Product]]:
    """Yield the product at two positions of each pair of neighbouring fields that is small enough
    to be enumerated.
    """
    product = _first_row(product)
    components = product.components
    for k, (process, _, label) in enumerate(components):
        other, _, other_label = components[(k + 1) % len(components)]
        sizes = (process.vocab_size, process.num_states, other.vocab_size, other.num_states)
        if torch.tensor(sizes).prod() <= _PAIRS:
            fields = torch.tensor([k, (k + 1) % len(components)])
            yield f"{label}and {other_label}".rstrip(", "), product.at_fields(fields)


def _joint(pair: Product, seed: int) -> Tensor:
    """Draw a joint distribution of two positions."""
    x, _ = every_sequence(pair, 2)
    generator = torch.Generator().manual_seed(seed)
    probs = torch.randn(len(x), generator=generator, dtype=torch.float64).mul(1.5).softmax(0)
    joint = torch.zeros(pair.vocab_size, pair.vocab_size, dtype=torch.float64)
    joint[x.unbind(1)] = probs
    return joint


def _entropy(product: Product, point: Point) -> Iterator[Comparison]:
    for label, pair in _pairs(product):
        joint = _joint(pair, int(point["distribution"]))
        network = exact_cavity(pair, joint)
        diffusion = integrate_bound(pair, joint, network, points=int(point["nodes"]))
        x, _ = every_sequence(pair, 2)
        probs = joint[x.unbind(1)]
        prior = (probs * pair.prior_kl(x).sum(1)).sum()
        nats = -torch.xlogy(joint, joint).sum()
        yield Comparison(f"bound of {label}", (), diffusion + prior, nats, 2e-5 * (1 + nats))


def _generation(product: Product, point: Point) -> Iterator[Comparison]:
    for label, pair in _pairs(product):
        joint = _joint(pair, int(point["distribution"]))
        joint = joint.sum(0, keepdim=True) * joint.sum(1, keepdim=True)
        drawn = sample(
            pair,
            exact_cavity(pair, joint),
            (_DRAWS, 2),
            steps=3,
            generator=torch.Generator().manual_seed(11),
        )
        size = pair.vocab_size
        counts = torch.bincount(drawn[:, 0] * size + drawn[:, 1], minlength=size**2)
        quantity = f"sequences of {label}"
        yield frequencies(quantity, ("x_0", "x_1"), counts.view(size, size), joint, _DRAWS)


def _remember(product: Product) -> str:
    """Return the reason why the bound has other terms than prior and diffusion."""
    if not product.exact_ends:
        return "a schedule does not reach 0"
    return next((reason for part in product.components if (reason := remembers(part.process))), "")


def _refuses(product: Product, point: Point) -> Iterator[Comparison]:
    product = _first_row(product)
    t = at(0.5)
    x = torch.zeros(1, _length(product), dtype=torch.int64)
    for part in _parts(product):
        wrong = x.clone()
        wrong[0, part.columns[0]] = part.process.vocab_size
        message = ""
        try:
            product.sample(wrong, t)
        except ValueError as error:
            message = str(error)
        name = part.label.removeprefix("field ")
        named = name in message or part.process.vocab_size == product.vocab_size
        yield condition(
            f"sample rejects x = {part.process.vocab_size} in {part.label}",
            bool(message) and named,
            f"sample raises {message!r}, must raise a ValueError with the name of {part.label}",
        )


_POINTS = ({"t": 0.5, "distribution": 1}, {"t": 0.1, "distribution": 2})

CLAIMS = (
    Claim(
        "product",
        "positions",
        "every value is that of the process of its position",
        "1e-9",
        _positions,
        _POINTS,
        ({"t": 0.9, "distribution": 3}, {"t": 1e-4, "distribution": 4}),
    ),
    Claim(
        "product",
        "alphabets",
        "no entry beyond an alphabet has an effect, and given tokens are states",
        "exactly",
        _alphabets,
        _POINTS,
        rests_on=("positions",),
    ),
    Claim(
        "product",
        "refusals of ids",
        "ids outside of an alphabet are refused by the name of the field",
        "exactly",
        _refuses,
    ),
    Claim(
        "product",
        "draws",
        "draws follow the processes of their positions",
        "binomial bounds, false alarm 1e-6",
        _draws,
        ({"s": 0.25, "t": 0.5, "distribution": 1},),
        ({"s": 0.0, "t": 0.9, "distribution": 2},),
        rests_on=("positions",),
    ),
    Claim(
        "product",
        "bound = joint entropy",
        "with the exact network, bound and prior term of two fields are their joint entropy",
        "relative 2e-5",
        _entropy,
        ({"distribution": 1, "nodes": 40},),
        ({"distribution": 2, "nodes": 80},),
        _remember,
        rests_on=("positions",),
    ),
    Claim(
        "product",
        "generation",
        "ancestral sampling with the exact network draws from the distribution of two fields",
        "binomial bounds, false alarm 1e-6",
        _generation,
        ({"distribution": 1},),
        applies=_remember,
        rests_on=("draws",),
    ),
    *arguments.PART_CLAIMS,
)

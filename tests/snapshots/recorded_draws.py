"""Recorded draws and losses of every registered sampler and corrector on the processes below, at
fixed seeds.

Integers are compared exactly: they are drawn from float64 probabilities with the CPU generator of
PyTorch, which is the same on all processors. Floats are computed in float64 and compared to a
tolerance of 1e-12: processors differ in the last bits of ``exp`` and ``log`` and in the order of
sums, and a change of the mathematics causes larger differences.
"""

import functools
import hashlib
import importlib

import torch
from public_interface import declared

import ddlib as dd
from ddlib.hierarchies import Flat, Tree
from ddlib.processes import GIDD, Hierarchical, Masked, Noisy, PerWord, RateMatrix, Uniform
from ddlib.schedules import Cosine, Geometric, Linear
from ddlib.weightings import Clip

ROWS = 4
LENGTH = 6
STEPS = 5
F64 = torch.float64
RING = torch.eye(4).roll(1, 0) + 0.5 * torch.eye(4).roll(-1, 0) - 1.5 * torch.eye(4)
PARENTS = [0, 0, 1, 1, 2, 3], [0, 1, 1, 0]


@functools.cache
def processes():
    """Processes that cover the branches of the samplers, which depend on levels, masks and xi <
    1.
    """
    return {
        "masked": Masked(5, Linear()),
        "geometric": Masked(4, Geometric()),
        "tree": Hierarchical(Tree([*PARENTS], speed=[0.7, 1.3, 2.0]), Cosine()),
        "xi": Hierarchical(Tree([*PARENTS], xi=[0.8, 0.6], speed=[0.7, 1.3, 2.0]), Linear()),
        "uniform": Uniform(5, Cosine()),
        "gidd": GIDD(5, 0.2),
        "rate matrix": RateMatrix(RING, Linear(), 3),
        "per word": PerWord(Cosine(), [0.5, 2.0, 1.0, 1.5]),
        "noisy": Noisy(Tree([PARENTS[0]], xi=0.8), Linear(), [0.1, 0.4]),
        "noisy, flat": Noisy(Flat(4), Linear(), 0.3),
    }


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


class Table:
    """Denoiser or features of one: float64 values indexed by the state at a position and the state
    left of it.
    """

    own_times = True

    def __init__(self, process, width=None, seed=1):
        shape = (2, process.num_states, width or process.vocab_size)
        self.table = torch.randn(shape, generator=seeded(seed), dtype=F64)

    def __call__(self, z, t):
        times = t[:, None, None] if t.ndim == 1 else t[..., None]
        return self.table[0][z] + (1 - times.to(F64)) * self.table[1][z.roll(1, -1)]


def rows_of(z):
    return "|".join(" ".join(map(str, row)) for row in z.tolist())


def drawn(process, sampler, denoiser=None, **options):
    """Tokens of a sample, and a digest of the states after every step."""
    way = hashlib.sha256()
    options = {"steps": STEPS, "generator": seeded()} | options
    z = dd.sample(
        process,
        denoiser or Table(process),
        (ROWS, LENGTH),
        sampler,
        on_step=lambda k, t, z: way.update(z.numpy().tobytes()),
        **options,
    )
    return f"{rows_of(z)} {way.hexdigest()[:8]}"


def served(process, sampler, **options):
    try:
        return drawn(process, sampler, **options)
    except TypeError as error:
        return f"refused: {str(error).split(',')[0]}"


def registered(kind):
    """Examples of every registered class of a kind, by name and number."""
    for name, target in declared()[f"ddlib.{kind}"].items():
        module, cls = target.split(":")
        for number, example in enumerate(getattr(importlib.import_module(module), cls).examples()):
            yield f"{name} {number}", example


def samples(kinds=None):
    """Draws of ``dd.sample`` and ``process.sample`` for all or some processes.

    An error is recorded as a refusal.
    """
    chosen = {
        kind: process for kind, process in processes().items() if kinds is None or kind in kinds
    }
    found = {}
    correctors = [
        (n, dd.samplers.Corrected(dd.samplers.Ancestral(), c)) for n, c in registered("correctors")
    ]
    for name, sampler in [*registered("samplers"), *correctors]:
        found[name] = {kind: served(process, sampler) for kind, process in chosen.items()}
    controls = {
        "blocks": {"pace": dd.paces.Blocks(2)},
        "left to right": {"pace": dd.paces.LeftToRight()},
        "seeds": {"generator": range(ROWS)},
        "sharpened": {"controls": [dd.controls.Truncation(0.7, 0.9, top_k=3)]},
        "penalty, prompt": {
            "controls": [dd.controls.RepetitionPenalty(1.5), dd.controls.Forbidden([1])],
            "prompt": torch.tensor([0, 2]),
        },
        "ending": {"controls": [dd.controls.EndOfText(2)]},
    }
    for control, options in controls.items():
        for name in ("ancestral", "confidence", "remask"):
            sampler = dict(registered("samplers"))[f"{name} 0"]
            found[f"{name}, {control}"] = {
                kind: served(chosen[kind], sampler, **options)
                for kind in ("masked", "tree", "xi", "uniform")
                if kind in chosen
            }
    for name in ("ancestral", "confidence", "first_hitting", "psi", "remask"):
        for kind in chosen.keys() & {"masked", "tree", "xi", "noisy"}:
            process = chosen[kind]
            sampler = dict(registered("samplers"))[f"{name} 0"]
            options = {
                "denoiser": Table(process, process.num_states - 1),
                "parameterization": "children",
            }
            found.setdefault(f"{name}, child logits", {})[kind] = served(
                process, sampler, **options
            )
            options = {"denoiser": Table(process), "parameterization": "posterior"}
            found.setdefault(f"{name}, posterior logits", {})[kind] = served(
                process, sampler, **options
            )
    for name, kind in (
        ("free", dd.guidance.ClassifierFree),
        ("based", dd.guidance.ClassifierBased),
    ):
        for number, guided in enumerate(kind.examples()):
            for sampler in (dd.samplers.Ancestral(), dd.samplers.Remask()):
                place = found.setdefault(f"guidance {name} {number}, {type(sampler).__name__}", {})
                place[repr(guided.process)] = served(
                    guided.process,
                    sampler,
                    denoiser=guided,
                    parameterization=guided.parameterization,
                )
    for kind, process in chosen.items():
        x, t = batch(process)
        for levels in ("independent", "balanced"):
            found.setdefault(f"process.sample, {levels}", {})[kind] = rows_of(
                process.sample(x, t, seeded(), levels)
            )
        keyed = dd.KeyedGenerator(0, 1, torch.arange(ROWS))
        found.setdefault("process.sample, keyed", {})[kind] = rows_of(process.sample(x, t, keyed))
        found.setdefault("process.sample_prior", {})[kind] = rows_of(
            process.sample_prior((ROWS, LENGTH), seeded())
        )
    return found


def batch(process):
    return torch.randint(process.vocab_size, (ROWS, LENGTH), generator=seeded(2)), torch.linspace(
        0.1, 0.9, ROWS
    ).to(F64)


def losses():
    """Bounds, losses with gradients, and likelihoods: scalars, or the sum and the first three of
    many values.
    """
    found = {}
    for kind, process in processes().items():
        (x, t), width = batch(process), 3
        z = process.sample(x, t, seeded())
        model = Table(process)
        weight = torch.randn(
            process.vocab_size, width, generator=seeded(3), dtype=F64
        ).requires_grad_()
        weightings = {"bound": None, "clip": Clip(2.0)} | dict(registered("weightings"))
        place = found[kind] = {}
        place["nelbo"] = some(dd.nelbo(process, model(z, t), x, z, t))
        place["nelbo, generic"] = some(dd.nelbo(process, model(z, t), x, z, t, method="generic"))
        place["reconstruction"] = some(dd.reconstruction(process, model(z, t), x, z, t))
        for options in ({}, {"steps": 8}, {"levels": "balanced"}, {"pace": dd.paces.Blocks(2)}):
            place[f"bound {options}"] = some(
                dd.bound(process, model, x, seeded(4), **options).total
            )
        for mode in process.modes:
            for name, weighting in weightings.items():
                place[f"{mode}, {name}"] = trained(
                    process, model(z, t), weight, x, z, t, weighting, mode
                )
        if hasattr(process, "hierarchy"):
            wide = Table(process, process.num_states - 1)(z, t)
            table = torch.randn(
                process.num_states - 1, width, generator=seeded(5), dtype=F64
            ).requires_grad_()
            for mode in process.modes:
                place[f"{mode}, child logits"] = trained(
                    process, wide, table, x, z, t, None, mode, "children"
                )
        try:
            place["likelihood"] = some(dd.likelihood(process, model, x).per_position)
        except (TypeError, ValueError):
            place["likelihood"] = "refused"
        place["time density"] = [float(v) for v in process.time_density(LENGTH).weight(t)]
    return found


def some(values):
    return [float(values.sum()), *values.flatten()[:3].tolist()]


def trained(process, logits, weight, x, z, t, weighting, mode, parameterization="cavity"):
    """Values of ``training_loss`` on logits and on hidden states, with the gradient of the latter.

    An error is recorded as a refusal.
    """
    given = {"parameterization": parameterization}
    try:
        loss = float(dd.training_loss(process, logits, x, z, t, weighting, mode, **given))
    except (TypeError, ValueError):
        return "refused"
    hidden = Table(process, 3)(z, t)
    linear = dd.training_loss(process, dd.Hidden(hidden, weight), x, z, t, weighting, mode, **given)
    (gradient,) = torch.autograd.grad(linear, weight)
    return [loss, linear.item(), float(gradient.abs().sum())]


SUBJECTS = {"draws": samples, "losses": losses}

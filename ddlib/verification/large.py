"""What can be asked of a process with a large vocabulary as it was given, beside the proof on its reduction."""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor

from ddlib.nelbo import nelbo
from ddlib.processes import ForwardProcess
from ddlib.verification import arguments
from ddlib.verification.cases import at, no_closed_form, per_pair, some_words
from ddlib.verification.claim import Claim, Comparison, Point


def _words(process: ForwardProcess) -> Tensor:
    return some_words(process, 32)[None]


def _laws(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x, t = _words(process), at(float(point["t"]))
    law = process.marginal(x, t)
    total, least = law.sum(-1)[0], law.amin(-1)[0]
    yield Comparison("sum of q_t(.|x)", (), total, torch.ones_like(total), 1e-9, {"x": x[0]})
    yield Comparison("least q_t(z|x) >= 0", (), least, least.clamp_min(0), 0.0, {"x": x[0]})
    z = process.sample(x, t, torch.Generator().manual_seed(1))
    chance = law.gather(-1, z[..., None])[..., 0]
    yield per_pair("z_t is possible", x, z, (chance > 0).double(), torch.ones_like(chance), 0.0)
    yield per_pair("likelihood q_t(z|x)", x, z, process.likelihood(z, x, t), chance, 1e-9 * chance)


def _bound(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x, t = _words(process), at(float(point["t"]))
    generator = torch.Generator().manual_seed(2)
    z = process.sample(x, t, generator)
    logits = torch.randn(1, x.shape[1], process.vocab_size, generator=generator)
    single, double = (nelbo(process, scores, x, z, t) for scores in (logits, logits.double()))
    yield per_pair("bound >= 0", x, z, double, double.clamp(0, 1e300), 0.0)
    yield per_pair("float32 bound", x, z, single, double, 1e-3 * (1 + double))


CLAIMS = (
    Claim("as given", "laws and draws", "marginals sum to 1, draws are possible and have their likelihood", "1e-9",
          _laws, ({"t": 0.5}, {"t": 1e-6}), ({"t": 0.9}, {"t": 1.0}), rests_on=("laws", "linearity", "sample")),
    Claim("as given", "bound", "the bound is finite and >= 0, in float32 as in float64", "relative 1e-3", _bound,
          ({"t": 0.5}, {"t": 1e-3}), ({"t": 0.99},), no_closed_form,
          rests_on=("closed = generic", "float32", "laws and draws")),
    *(replace(claim, room="as given", name=f"{claim.name} as given") for claim in arguments.CLAIMS[:2]),
)  # fmt: skip

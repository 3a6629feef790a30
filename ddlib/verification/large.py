"""What can be asked of a process with a large vocabulary as it was given, beside the proof on its reduction."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ddlib.nelbo import nelbo
from ddlib.processes import ForwardProcess
from ddlib.verification.cases import at, some_words
from ddlib.verification.claim import Claim, Comparison, Point


def _words(process: ForwardProcess) -> Tensor:
    return some_words(process, 32)[None]


def _laws(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x, t = _words(process), at(float(point["t"]))
    law = process.marginal(x, t)[0]
    yield Comparison("sum of q_t(.|x)", (), law.sum(-1), torch.ones(len(law), dtype=torch.float64), 1e-9, {"x": x[0]})
    least = law.amin(-1)
    yield Comparison("least q_t(z|x) >= 0", (), least, least.clamp_min(0), 0.0, {"x": x[0]})
    z = process.sample(x, t, torch.Generator().manual_seed(1))
    chance = law.gather(-1, z[0][:, None])[:, 0]
    cases = {"x": x[0], "z": z[0]}
    yield Comparison("z_t is possible", (), (chance > 0).double(), torch.ones_like(chance), 0.0, cases)
    yield Comparison("likelihood q_t(z|x)", (), process.likelihood(z, x, t)[0], chance, 1e-9 * chance, cases)


def _bound(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    x, t = _words(process), at(float(point["t"]))
    generator = torch.Generator().manual_seed(2)
    z = process.sample(x, t, generator)
    logits = torch.randn(1, x.shape[1], process.vocab_size, generator=generator)
    single, double = (nelbo(process, scores, x, z, t)[0] for scores in (logits, logits.double()))
    cases = {"x": x[0], "z": z[0]}
    yield Comparison("bound >= 0", (), double, double.clamp(0, 1e300), 0.0, cases)
    yield Comparison("float32 bound", (), single, double, 1e-3 * (1 + double), cases)


def _no_closed_form(process: ForwardProcess) -> str:
    x = torch.zeros(1, 1, dtype=torch.int64)
    closed = process.weighted_divergence(torch.zeros(1, 1, process.vocab_size), x, x, at(0.5))
    return "" if closed else "there is no closed form, and the generic one is dense in the states"


CLAIMS = (
    Claim("as given", "laws and draws", "marginals sum to 1, draws are possible and have their likelihood", "1e-9",
          _laws, ({"t": 0.5}, {"t": 1e-6}), ({"t": 0.9}, {"t": 1.0})),
    Claim("as given", "bound", "the bound is finite and >= 0, in float32 as in float64", "relative 1e-3", _bound,
          ({"t": 0.5}, {"t": 1e-3}), ({"t": 0.99},), _no_closed_form),
)  # fmt: skip

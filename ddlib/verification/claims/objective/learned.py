"""Claims about processes with learned speeds: gradients agree with finite differences."""

from collections.abc import Iterator

import torch
from torch import Tensor

from ddlib.objective.nelbo import nelbo
from ddlib.processes import ForwardProcess
from ddlib.verification.framework.claim import Claim, Comparison, Point, stated
from ddlib.verification.framework.inputs import scored
from ddlib.verification.framework.reference import states

_STEP = 1e-4
_MOST = 8


def parameters(process: ForwardProcess) -> list[Tensor]:
    """Return the learnable parameters of the process."""
    return [parameter for parameter in process.parameters() if parameter.requires_grad]


def _answers(process: ForwardProcess, point: Point) -> dict[str, Tensor]:
    """Compute quantities that depend on the speeds, with random weights so that nothing cancels by
    symmetry.
    """
    x, z, t, scores = scored(process, point)
    step = process.transition(float(point["t"]) / 2, float(point["t"]))
    generator = torch.Generator().manual_seed(3)
    probs = scores[:, :1].exp()
    found = {
        "log q_t(z|x)": process.likelihood(z, x, t).log(),
        "q_t(z|p)": process.predictive(probs, t),
        "q_{t|s}": step,
        "Q_t": process.rate_matrix(float(point["t"])),
        "reverse rate": process.reverse_rate(
            probs.expand(1, process.num_states, -1), states(process), t
        ),
        "bound's integrand": nelbo(process, scores, x, z, t),
    }
    return {
        name: (answer * torch.rand(answer.shape, generator=generator, dtype=torch.float64)).sum()
        for name, answer in found.items()
    }


def _slopes(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Compare autograd with central differences, for a few entries of each parameter."""
    learned = parameters(process)
    with torch.enable_grad():
        answers = _answers(process, point)
        slopes = {
            name: torch.autograd.grad(answer, learned, retain_graph=True, allow_unused=True)
            if answer.requires_grad
            else [None] * len(learned)
            for name, answer in answers.items()
        }
    for which, parameter in enumerate(learned):
        start = parameter.detach().clone()
        chosen = range(min(parameter.numel(), _MOST))
        differences: dict[str, list[Tensor]] = {name: [] for name in answers}
        for entry in chosen:
            ends = []
            for step in (_STEP, -_STEP):
                with torch.no_grad():
                    parameter.view(-1)[entry] += step
                    ends.append(_answers(process, point))
                    parameter.copy_(start)
            for name in answers:
                differences[name].append((ends[0][name] - ends[1][name]) / (2 * _STEP))
        moved = any(float(one.abs()) > 0 for found in differences.values() for one in found)
        message = f"parameter {which} of the process is learned, but nothing depends on it"
        yield stated("learned parameters have an effect", moved or parameter.numel() == 1, message)
        for name, found in differences.items():
            slope = slopes[name][which]
            got = (
                torch.zeros(len(found), dtype=torch.float64)
                if slope is None
                else slope.flatten()[: len(found)]
            )
            expected = torch.stack(found)
            size = answers[name].detach().abs()
            yield Comparison(
                f"d {name} / d parameter",
                ("entry",),
                got,
                expected,
                1e-6 * (expected.abs() + size + 1),
            )


CLAIMS = (
    Claim(
        "learned",
        "slopes",
        "gradients by learned speeds are slopes of probabilities, rates and the bound's integrand",
        "1e-6 of central differences",
        _slopes,
        ({"t": 0.5, "distribution": 1}, {"t": 0.02, "distribution": 2}),
        (
            {"t": 0.9, "distribution": 3},
            {"t": 1e-4, "distribution": 4},
            {"t": 0.999, "distribution": 5},
        ),
        rests_on=("rates", "distributions", "marginals", "reverse rate", "closed = generic"),
    ),
)

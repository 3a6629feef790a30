"""Claims about rules for lengths, with a network whose logits depend on all states of a row."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from ddlib.contrib import Length
from ddlib.processes import ForwardProcess
from ddlib.samplers import Confidence
from ddlib.samplers.sampling import plan, sample
from ddlib.utils.random import Generator
from ddlib.verification.claims.arguments import PART_CLAIMS
from ddlib.verification.claims.samplers.sampler import SUPPORTS, processes
from ddlib.verification.framework.cases import Case, case_verifier, supported_cases
from ddlib.verification.framework.claim import Claim, Comparison, Point
from ddlib.verification.framework.inputs import in_any_batch

_SAMPLER = Confidence("probability", threshold=0.6)
_ROWS = 8
_MOST = 12
_STEPS = 20


def runs(rule: Length) -> list[Case]:
    """Return cases of the rule with each supported kind of process.

    Errors as ``supported_cases``.
    """
    return supported_cases(rule, processes(), lambda process: _plan(rule, process), none=SUPPORTS)


def _plan(rule: Length, process: ForwardProcess) -> None:
    """Raise unless sequences of the process can be drawn with the rule."""
    plan(process, lambda z, t: z, (1, _MOST), _SAMPLER, controls=[rule])


class _Network:
    """Sums of random logits over all states, with more end tokens towards the end.

    It counts the rows of its calls.
    """

    def __init__(self, case: Case) -> None:
        noise = torch.Generator().manual_seed(0)
        sizes = (case.process.num_states, case.process.vocab_size)
        self.table = 1.5 * torch.randn(_MOST, _MOST, *sizes, generator=noise, dtype=torch.float64)
        self.table[..., case.subject.token] += 0.3 * (
            torch.arange(_MOST)[:, None, None] - _MOST / 2
        )
        self.rows = 0

    def __call__(self, z: Tensor, t: Tensor) -> Tensor:
        self.rows += len(z)
        place = torch.arange(z.shape[1])
        return self.table[place[:, None], place[None], z[:, None]].mean(2) * z.shape[1] ** 0.5


def _prompt(case: Case) -> Tensor:
    """Return two tokens that do not fill rows."""
    return torch.arange(3)[torch.arange(3) != case.subject.fill][:2]


def _draw(
    case: Case,
    rows: int,
    generator: Generator,
    network: _Network | None = None,
    on_step: Callable[[int, Tensor, Tensor], None] | None = None,
) -> Tensor:
    return sample(
        case.process,
        network or _Network(case),
        (rows, _MOST),
        _SAMPLER,
        _STEPS,
        _prompt(case),
        controls=[case.subject],
        generator=generator,
        on_step=on_step,
    )


def _repeats(case: Case, point: Point) -> Iterator[Comparison]:
    yield from in_any_batch("tokens", lambda index, noise: _draw(case, len(index), noise), _ROWS)


def _limits(case: Case, point: Point) -> Iterator[Comparison]:
    states: list[Tensor] = []
    x = _draw(
        case, _ROWS, torch.Generator().manual_seed(1), on_step=lambda k, t, z: states.append(z)
    )
    axes = ("step", "example", "position")
    prompt = _prompt(case)
    prefixes = torch.stack(states)[..., : len(prompt)]
    yield Comparison("the prompt", axes, prefixes, prompt.expand_as(prefixes), 0.0)
    yield Comparison("tokens", axes[1:], x, x.clamp(0, case.process.vocab_size - 1), 0.0)


def _calls(case: Case, point: Point) -> Iterator[Comparison]:
    network = _Network(case)
    counts = list[int]()
    _draw(
        case,
        _ROWS,
        torch.Generator().manual_seed(2),
        network,
        lambda k, t, z: counts.append(network.rows),
    )
    used = torch.tensor(counts).diff()
    yield Comparison(
        f"rows in the calls of a step, of {_ROWS}", ("step",), used, used.clamp_max(_ROWS), 0.0
    )


CLAIMS = (
    Claim(
        "length",
        "keyed noise",
        "the same noise draws the same tokens, in any batch",
        "exactly",
        _repeats,
    ),
    Claim(
        "length",
        "limits",
        "the prompt does not change, and all positions are tokens at the end",
        "exactly",
        _limits,
    ),
    Claim(
        "length", "network calls", "the rule uses the network call of the step", "exactly", _calls
    ),
)

verify = case_verifier("length", runs, CLAIMS, PART_CLAIMS)

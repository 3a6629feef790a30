"""Noise and loss of a dense process, 16 x 144 tokens of 256 states, against an exponential in every
function.

    python -m benchmarks.dense

Two rate matrices, float64, one thread: Gaussian steps of width 2, and steps to a neighbour at rate
2,000. The peer is the same process with ``torch.linalg.matrix_exp``, called by each function that
needs the transition at a time, as in a direct implementation of D3PM or SEDD. A step draws z_t and
computes the training loss and its gradient for given logits.
"""

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

import ddlib as dd
from benchmarks.measuring import REPEATS, command_line, medians, over_ours, seconds

SEQUENCES = 16
LENGTH = 144
STATES = 256


class Direct(nn.Module):
    """Matrix exponential exp(sigma G) by torch, computed at each call."""

    def __init__(self, matrix: Tensor) -> None:
        super().__init__()
        self.matrix = matrix

    def forward(self, sigma: Tensor) -> Tensor:
        return torch.linalg.matrix_exp(sigma[..., None, None] * self.matrix)


def rates(kind: str, states: int) -> Tensor:
    """Return (S, S) rates of "gaussian" steps or of a "walk"."""
    apart = (torch.arange(states)[:, None] - torch.arange(states)).abs().double()
    off = (
        torch.exp(-(apart**2) / 8).fill_diagonal_(0)
        if kind == "gaussian"
        else 2000.0 * (apart == 1).double()
    )
    return off - torch.diag(off.sum(1))


def steps(kind: str, sequences: int, length: int, states: int) -> dict[str, Callable[[], float]]:
    """Build a step of ``ours`` and of the peer, which return their loss.

    Both get the same times and noise.
    """
    x = torch.randint(states, (sequences, length), generator=torch.Generator().manual_seed(1))
    logits = torch.randn(sequences, length, states, requires_grad=True)

    def step(process: dd.processes.RateMatrix, draw: torch.Generator) -> float:
        t = dd.sample_times(sequences, generator=draw)
        loss = dd.training_loss(process, logits, x, process.sample(x, t, draw), t)
        loss.backward()  # type: ignore[no-untyped-call]
        return float(loss.detach())

    ours, peer = (
        dd.processes.RateMatrix(rates(kind, states), dd.schedules.Linear()) for _ in range(2)
    )
    peer.exponential = Direct(peer.exponential.matrix)
    return {
        "ours": partial(step, ours, torch.Generator().manual_seed(0)),
        "matrix_exp": partial(step, peer, torch.Generator().manual_seed(0)),
    }


def measure(
    repeats: int = REPEATS, sequences: int = SEQUENCES, length: int = LENGTH, states: int = STATES
) -> dict[str, Any]:
    """Return CPU seconds of a step of either process, and the speedup of ``ours``."""
    all_timings: dict[str, list[float]] = {}
    ratios: dict[str, float] = {}
    for kind in ("gaussian", "walk"):
        both = steps(kind, sequences, length, states)
        losses = [step() for step in both.values()]
        if abs(losses[0] - losses[1]) > 1e-6 * losses[0]:
            raise AssertionError(f"the two losses differ: {losses}")
        timings = seconds(both, repeats)
        all_timings |= {f"{kind}, {name}": values for name, values in timings.items()}
        ratios |= {
            f"{kind}: {name}": value for name, value in over_ours(medians(timings), "time").items()
        }
    return {"ratios": ratios, "cpu_seconds": all_timings}


def main() -> None:
    """Run the command."""
    options = command_line(__doc__).parse_args()
    torch.set_num_threads(1)
    small = dict(sequences=4, length=16, states=32) if options.tiny else {}
    print(json.dumps(measure(options.repeats, **small), indent=1))


if __name__ == "__main__":
    main()

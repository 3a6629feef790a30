"""Times of the steps of a sampler."""

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.processes import ForwardProcess, LevelProcess
from ddlib.utils.bisection import bisect
from ddlib.utils.validation import check_count, require


def equal_times(steps: int) -> Float64[Tensor, "n"]:
    """Return equally spaced times from 1 to 0, (steps + 1,)."""
    return torch.linspace(1, 0, check_count("steps", steps) + 1, dtype=torch.float64)


def equal_jump_times(process: ForwardProcess, steps: int) -> Float64[Tensor, "n"]:
    r"""Return times from 1 to 0 between which a position makes equally many jumps on average,
    (steps + 1,).

    With occupancies :math:`a_i(t)` of the levels, the expected level :math:`E(t) = \sum_i i\,
    a_i(t)` is the expected number of jumps until t. The times solve :math:`E(t_k) / E(1) = 1 - k /
    \text{steps}`. For masks with a linear schedule they are equally spaced. The more levels, the
    later are most jumps of a hierarchy whose edges share a schedule: with 8 edges, the first of 64
    equally spaced steps makes half of all jumps.

    Args:
        process: a process with levels.
        steps: number of steps, at least 1.

    Raises:
        TypeError: a process without levels.

    Example:
        >>> import ddlib as dd
        >>> process = dd.presets.hdlm([0, 0, 1, 1])
        >>> [round(float(t), 2) for t in dd.samplers.equal_jump_times(process, 4)]
        [1.0, 0.88, 0.68, 0.4, 0.0]
    """
    if not isinstance(process, LevelProcess):
        raise TypeError(
            f"process is {process!r}, must have levels: its jumps are not those between levels"
        )
    device = process.device
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64, device=device)

    @torch.no_grad()
    def expected(t: Tensor) -> Tensor:
        return process.expected_level(t)

    least, most = expected(ends)
    left = (
        torch.arange(check_count("steps", steps) - 1, 0, -1, dtype=torch.float64, device=device)
        / steps
    )
    target = least + (most - least) * left
    between = bisect(lambda t: expected(t) < target, target)
    return torch.cat([ends[1:], between, ends[:1]])


def check_times(times: Tensor) -> Float64[Tensor, "n"]:
    """Return times of steps in float64, or raise ValueError unless they decrease from 1 to 0."""
    require(
        times.ndim == 1 and len(times) > 1,
        f"times has shape {tuple(times.shape)}, must be (steps + 1,)",
    )
    grid = times.to(torch.float64)
    require(
        bool((grid.diff() < 0).all()), f"times is {times.tolist()}, must be strictly decreasing"
    )
    require(
        float(grid[0]) == 1 and float(grid[-1]) == 0,
        f"times is {times[0]}..{times[-1]}, must begin with 1 and end with 0",
    )
    return grid

"""Claims about paces: paths from data to noise, whose weighted draws give the bound."""

from collections.abc import Iterator
from contextlib import suppress

import torch
from torch import Tensor

from ddlib.paces import Pace
from ddlib.processes import ForwardProcess, unsqueeze_times
from ddlib.processes.examples import three
from ddlib.verification.claims.arguments import PART_CLAIMS
from ddlib.verification.claims.objective.times import integral
from ddlib.verification.framework.claim import Claim, Comparison, Point, of_dtype
from ddlib.verification.framework.dependencies import verifier
from ddlib.verification.framework.reference import exact_cavity, path_integrand

_LENGTHS = (1, 2, 3, 4, 6, 12)
_GRID = torch.linspace(0, 1, 121, dtype=torch.float64)
_BESIDE = 1e-9
"""Distance from the ends of a segment, where a path may have kinks."""
_STEP = 1e-7
_MANY = 4096


def _lengths(pace: Pace, longest: int = 12) -> list[int]:
    """Return the supported lengths, shortest first."""
    lengths = []
    for length in _LENGTHS:
        with suppress(ValueError):
            pace.parts(length)
            lengths += [length] * (length <= longest)
    return lengths


def _chance(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.rand(
        rows, length, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def _along(pace: Pace, u: Tensor, length: int, speeds: bool = False) -> Tensor:
    """Compute times, or speeds, of one sequence at path parameters u (N,), (N, L)."""
    chance = _chance(1, length).expand(len(u), -1) * pace.random
    return unsqueeze_times((pace.speeds if speeds else pace.times)(u, chance)).expand(-1, length)


def _path(pace: Pace, point: Point) -> Iterator[Comparison]:
    for length in _lengths(pace):
        t = _along(pace, _GRID, length)
        where = ("u", "position")
        labels = {"u": _GRID}
        message = (
            f"in a sequence of {length} position(s) the time {{got:.6g}} of position {{position}} "
            "must be "
            "{expected:.6g}"
        )
        yield Comparison(
            "times are in [0, 1]",
            where,
            t,
            t.clamp(0, 1),
            0.0,
            labels,
            f"{message}: times are in [0, 1]",
        )
        ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
        reached = t[[0, -1]]
        want = ends[:, None].expand_as(reached)
        yield Comparison(
            "times at the ends",
            where,
            reached,
            want,
            1e-12,
            {"u": ends},
            f"{message} at u = {{u:g}}",
        )
        rising = t.diff(dim=0)
        falls = (
            f"in a sequence of {length} position(s) the time of position {{position}} decreases "
            "after u = {u:.6g}"
        )
        yield Comparison(
            "times rise", where, rising, rising.clamp_min(0), 1e-12, {"u": _GRID[:-1]}, falls
        )
        yield of_dtype("times(u)", t, torch.float64)


def _measure(pace: Pace, point: Point) -> Iterator[Comparison]:
    """Compare speeds with finite differences away from kinks, and their integral with one."""
    for length in _lengths(pace):
        parts = pace.parts(length)
        subject = f"in a sequence of {length} position(s)"
        u = (torch.arange(97 * parts, dtype=torch.float64) + 0.381966) / (97 * parts)
        slope = (_along(pace, u + _STEP, length) - _along(pace, u - _STEP, length)) / (2 * _STEP)
        speed = _along(pace, u, length, True)
        allowed = 1e-6 * parts * (1 + slope.abs())
        message = (
            f"{subject} position {{position}} has the speed {{got:.6g}} at u = {{u:.6g}}, must be "
            "{expected:.6g}, "
            "the derivative of its time"
        )
        yield Comparison("speeds", ("u", "position"), speed, slope, allowed, {"u": u}, message)
        u = (torch.arange(_MANY * parts, dtype=torch.float64) + 0.5) / (_MANY * parts)
        every = _along(pace, u, length, True)
        total = every.mean(0)
        turns = 8 * every.amax(0).nan_to_num(0, 0, 0) / len(u)
        message = (
            f"{subject} the measure of position {{position}} integrates to {{got:.6g}}, must "
            "integrate to one"
        )
        yield Comparison(
            "measure", ("position",), total, torch.ones_like(total), 1e-6 + turns, message=message
        )


def _apart(pace: Pace, point: Point) -> Iterator[Comparison]:
    for length in _lengths(pace):
        u = _GRID[7::30]
        chance = _chance(len(_GRID[7::30]), length) * pace.random
        together = pace.times(u, chance)
        alone = torch.cat([pace.times(u[i : i + 1], chance[i : i + 1]) for i in range(len(u))])
        yield Comparison(
            f"times of {length} position(s), alone in the batch",
            ("sequence",),
            together,
            alone,
            0.0,
        )


def _blocks(pace: Pace, point: Point) -> Iterator[Comparison]:
    """Check that blocks before the moving one are data and blocks after it are noise."""
    for length in _lengths(pace):
        size = int(pace.block or 0)
        parts = pace.parts(length)
        u = (torch.arange(parts, dtype=torch.float64) + 0.375) / parts
        block = torch.arange(length) // size
        turn = torch.arange(parts - 1, -1, -1)[:, None]
        want = torch.where(block < turn, 0.0, torch.where(block > turn, 1.0, 0.375)).double()
        message = (
            f"in a sequence of {length} the time of position {{position}} is {{got:.6g}}, must be "
            "{expected:.6g} "
            "block by block"
        )
        got = _along(pace, u, length)
        yield Comparison("times of blocks", ("u", "position"), got, want, 1e-12, {"u": u}, message)


def _draws(pace: Pace, point: Point) -> Iterator[Comparison]:
    """Check that the measure of stratified draws has mean one, at every position and in every third
    of its time.
    """
    for length in _lengths(pace):
        rows = 1800 * pace.parts(length)
        draw = pace.draw(rows, length, torch.Generator().manual_seed(3))
        t, measure = (
            unsqueeze_times(v).expand(-1, length).double() for v in (draw.t, draw.measure)
        )
        third = (3 * t).floor().clamp(0, 2)
        got = torch.stack([(measure * (third == k)).mean(0) for k in range(3)])
        message = (
            f"in a sequence of {length} position(s) the draws of position {{position}} in a third "
            "of its time have "
            "measure {got:.4g}, must have a third"
        )
        allowed = 12 / 1800 if not pace.random else 0.1
        yield Comparison(
            "measure of draws",
            ("third", "position"),
            got,
            torch.full_like(got, 1 / 3),
            allowed,
            message=message,
        )


def _joint(tokens: int, length: int) -> Tensor:
    """Return a joint distribution in which all tokens depend on each other."""
    noise = torch.randn(
        tokens**length, dtype=torch.float64, generator=torch.Generator().manual_seed(length)
    )
    return noise.softmax(0).view([tokens] * length)


def bound_along(pace: Pace, process: ForwardProcess, joint: Tensor, chance: Tensor) -> Tensor:
    """Compute the bound of the exact denoiser along one path, averaged exactly over sequences and
    noise, in nats.
    """
    at = path_integrand(process, joint, exact_cavity(process, joint), pace, chance)
    low = torch.arange(pace.parts(joint.ndim), dtype=torch.float64) / pace.parts(joint.ndim)
    return integral(at, low + _BESIDE, low + 1 / len(low) - _BESIDE, 1e-6).sum()


def _entropy(pace: Pace, point: Point) -> Iterator[Comparison]:
    for length in _lengths(pace, longest=2):
        for name, process in (("masks", three()["masked"]), ("two levels", three()["tree"])):
            joint = _joint(process.vocab_size, length)
            chance = _chance(1, length) * pace.random
            got = bound_along(pace, process, joint, chance)
            entropy = -torch.xlogy(joint, joint).sum()
            message = (
                f"the bound of {length} token(s), {name}, is {{got:.6g}} nats, must be their "
                "entropy, {expected:.6g}"
            )
            yield Comparison("bound of the exact denoiser", (), got, entropy, 1e-4, message=message)


def _no_blocks(pace: Pace) -> str:
    return "" if pace.block is not None else "it has no blocks"


CLAIMS = (
    Claim(
        "pace",
        "path",
        "times go from 0 to 1 at every position and do not decrease",
        "1e-12",
        _path,
        means=(
            "the bound is an integral over a path from data to noise: times must not decrease, "
            "and "
            "must reach 1"
        ),
    ),
    Claim(
        "pace",
        "measure",
        "speeds are derivatives of times: each position's measure integrates to one",
        "1e-6",
        _measure,
        rests_on=("path",),
        means="each position must be counted once: speeds(u) must be d times / du",
    ),
    Claim(
        "pace",
        "sequences apart",
        "times of a sequence depend on its u and chance only",
        "exactly",
        _apart,
        rests_on=("path",),
    ),
    Claim(
        "pace",
        "blocks",
        "before the current block is data, after it noise",
        "1e-12",
        _blocks,
        applies=_no_blocks,
        rests_on=("path",),
    ),
    Claim(
        "pace",
        "draws",
        "the mean measure of stratified draws is one",
        "1e-2",
        _draws,
        rests_on=("measure", "sequences apart"),
        means="parts must be the number of equal parts of the path",
    ),
    Claim(
        "pace",
        "bound = entropy",
        "along the path the bound of the exact denoiser is the entropy of two tokens",
        "1e-4",
        _entropy,
        rests_on=("measure",),
    ),
)

verify = verifier(*CLAIMS, *PART_CLAIMS)

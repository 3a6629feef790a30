"""Deviations of bound estimates, and their stated errors: the table of docs/concepts/times.md.

    python -m studies.deviations.run  # measures, writes the result file, prints the table
    # measures, writes the result file and the table into the page
    python -m studies.deviations.run --docs docs
    # reports whether the page holds the table of the result file
    python -m studies.deviations.run --check

Each run is ``dd.bound`` of 256 sequences of 16 uniformly drawn tokens under flat logits, whose true
bound is computed by quadrature. 400 runs for each row. The 95 % interval is the value and 1.96
stated errors to either side.
"""

import argparse
import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import ddlib as dd
from benchmarks.measuring import report
from ddlib.objective.bound import reconstruction
from ddlib.processes import ForwardProcess
from ddlib.times import TimeDensity
from ddlib.times.draws import latest_time
from ddlib.verification.claims.objective.times import mean_bound
from studies.page import DOCS, fill, page

SEQUENCES, LENGTH, RUNS, CHANCE = 256, 16, 400, 0.2
PAGE = DOCS / "concepts" / "times.md"
RESULTS = Path(__file__).parent / "results.json"
BEGIN, END = "<!-- table: python -m studies.deviations.run -->", "<!-- end of table -->"
HEAD = (
    "| process | states | times | deviation of a run | mean stated error | 95 % intervals that "
    "hold the truth |"
)
_HELD = 2**21


def gaussian(states: int, width: float, rate: float) -> Tensor:
    """Return rates of ordinal noise: exp(-d^2 / 2 width^2) between values d apart; largest exit
    rate ``rate``.
    """
    values = torch.arange(states, dtype=torch.float64)
    rates = torch.exp(-((values[:, None] - values) ** 2) / (2 * width**2)).fill_diagonal_(0)
    rates = rates * (rate / rates.sum(1).max())
    return rates - torch.diag(rates.sum(1))


def walk(states: int, rate: float) -> Tensor:
    """Return rates of a birth-death chain: to both neighbours at ``rate / 2``."""
    beside = torch.ones(states - 1, dtype=torch.float64) * (rate / 2)
    rates = torch.diag(beside, 1) + torch.diag(beside, -1)
    return rates - torch.diag(rates.sum(1))


def processes(states: int = 16) -> dict[str, ForwardProcess]:
    """Return one process of each kind over so many tokens."""
    linear, parents = dd.schedules.Linear(), torch.arange(states) // 4
    return {
        "masks": dd.presets.mdlm(states),
        "clusters of 4": dd.presets.hdlm(parents),
        "clusters of 4, xi = 0.8": dd.presets.hdlm(parents, xi=0.8),
        "masks, a rate per token": dd.processes.PerWord(
            linear, torch.linspace(0.5, 2, states).tolist()
        ),
        "clusters of 4, tokens redrawn": dd.presets.hdlm_noisy(parents, 0.1),
        "GIDD(0.1)": dd.presets.gidd(states, 0.1),
        "uniform": dd.processes.Uniform(states, linear),
        "uniform, cosine": dd.processes.Uniform(states, dd.schedules.Cosine()),
        "Gaussian steps of width 2": dd.processes.RateMatrix(gaussian(states, 2.0, 10.0), linear),
        "Gaussian steps of width 1": dd.processes.RateMatrix(gaussian(states, 1.0, 20.0), linear),
        "steps of one": dd.processes.RateMatrix(walk(states, 100.0), linear),
    }


@torch.no_grad()
def exact(process: ForwardProcess) -> float:
    """Compute the bound of flat logits on uniform tokens in nats per token, by the trapezoid rule
    in the log-odds.
    """
    size, states = process.vocab_size, process.num_states
    odds = torch.linspace(-30, 16.6, 2001, dtype=torch.float64)
    t, flat = odds.sigmoid(), torch.zeros(size, dtype=torch.float64)
    weight = (odds[1] - odds[0]) * t * (1 - t)
    parts = max(1, _HELD // (size * size * states))
    pieces = zip(t.split(parts), weight.split(parts), strict=True)
    whole = math.fsum(float((mean_bound(process, flat, some) * by).sum()) for some, by in pieces)
    x, ends = (
        torch.arange(size)[None],
        torch.tensor([0.0, latest_time(torch.float32)], dtype=torch.float64),
    )
    whole += float(process.prior_kl(x, ends[1:]).mean())
    if process.exact_ends:
        return whole
    x, z = x.repeat_interleave(states, 1), torch.arange(states).repeat(size)[None]
    left = reconstruction(process, flat.expand(*x.shape, -1), x, z, ends[:1])
    mass = process.likelihood(z, x, ends[:1])
    return whole + float(torch.where(mass > 0, mass * left, 0.0).sum()) / size


@torch.no_grad()
def repeated(
    process: ForwardProcess,
    density: TimeDensity | None,
    runs: int = RUNS,
    sequences: int = SEQUENCES,
    seed: int = 0,
) -> list[dd.Measure]:
    """Compute the bound of so many runs, each with separate strata.

    Many runs are one call of ``dd.bound``.
    """
    logits, found = torch.zeros(process.vocab_size), []
    at_once = max(1, min(runs, _HELD // (sequences * LENGTH * process.num_states)))
    for first in range(0, runs, at_once):
        rows = torch.arange(first * sequences, min(first + at_once, runs) * sequences)
        generator = torch.Generator().manual_seed(1000 * seed + first)
        x = torch.randint(process.vocab_size, (len(rows), LENGTH), generator=generator)
        key = dd.KeyedGenerator(
            seed, 0, rows
        )  # aligned windows of 2^k indices are strata by themselves
        bound = dd.bound(process, lambda z, t: logits.expand(*z.shape, -1), x, key, density=density)
        assert bound.times is not None
        nats, times = (
            bound.total.double().sum(1).view(-1, sequences),
            bound.times.view(-1, sequences),
        )
        found += [
            dd.Measure.ratio(some, torch.full_like(some, LENGTH), "nats per token", when)
            for some, when in zip(nats, times, strict=True)
        ]
    return found


def covered(measures: list[dd.Measure], truth: float) -> float:
    """Return the share of 95 % intervals that contain the truth."""
    return sum(abs(one.value - truth) <= 1.96 * one.standard_error for one in measures) / len(
        measures
    )


def row(name: str, process: ForwardProcess, own: bool, runs: int, sequences: int) -> dict[str, Any]:
    """Measure a row under uniform times, or the process's optimal density."""
    density = process.time_density(LENGTH, chance=CHANCE) if own else None
    measures, truth = repeated(process, density, runs, sequences), exact(process)
    values = torch.tensor([one.value for one in measures], dtype=torch.float64)
    stated = torch.tensor([one.standard_error for one in measures], dtype=torch.float64)
    return {
        "process": name,
        "states": process.num_states,
        "times": "own density" if own else "uniform",
        "truth": truth,
        "mean": float(values.mean()),
        "deviation": float((values - truth).square().mean().sqrt()),
        "stated": float(stated.mean()),
        "covered": covered(measures, truth),
        "tails": list(process.tail_exponents(density).values()),
    }


def rows(results: Mapping[str, Any]) -> str:
    """Return the page's table."""
    lines = [HEAD, "| --- |" + " --- |" * 5]
    for one in results["runs"]:
        numbers = f"{one['deviation']:.3f} | {one['stated']:.3f} | {100 * one['covered']:.1f} %"
        lines.append(f"| {one['process']} | {one['states']} | {one['times']} | {numbers} |")
    return "\n".join(lines)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true")
    parser.add_argument(
        "--docs", type=Path, help="folder of the page; without it the table is printed"
    )
    parser.add_argument("--runs", type=int, default=RUNS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if not options.check:
        found = []
        for name, process in processes().items():
            for own in (False, True):
                found.append(row(name, process, own, options.runs, SEQUENCES))
                print(found[-1], flush=True)
        report(RESULTS.stem, found, folder=RESULTS.parent)
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    if options.check:
        text = PAGE.read_text(encoding="utf-8")
        sys.exit(text != page(text, rows(results), BEGIN, END))
    if options.docs is None:
        print(rows(results))
    else:
        fill(options.docs / PAGE.relative_to(DOCS), rows(results), BEGIN, END)


if __name__ == "__main__":
    main()

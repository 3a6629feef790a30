"""Figures of the pages that no single study's tables show.

python -m studies.pooled
"""

import json
import math
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

import ddlib

STUDIES = Path(__file__).parent
TREES = ("overlap 1 (HDLM-64)", "random tree")
TIMES = (0.25, 0.5, 0.75, 0.9, 0.95, 0.99)


def runs_of(study: str) -> list[dict[str, Any]]:
    """Return the runs of a study."""
    return json.loads((STUDIES / study / "results.json").read_text())["runs"]


def differences(study: str, first: str, second: str, millions: int) -> Iterator[float]:
    """Yield the bound of ``second`` minus that of ``first`` for each seed of a study, in nats per
    token.
    """
    bounds = {
        (run["process"], run["seed"]): run["all_sources"]["value"]
        for run in runs_of(study)
        if run["millions"] == millions
    }
    for seed in sorted({seed for process, seed in bounds if process == first}):
        yield bounds[second, seed] - bounds[first, seed]


def kept_by_clip(process: ddlib.processes.ForwardProcess, high: float, mode: str) -> list[float]:
    """Compute the share of a training loss that ``Clip(high)`` keeps, at ``TIMES`` and over all
    times.

    The loss is that of uniform predictions, averaged over the noise of one token. In the processes
    of this module every edge then costs the same number of nats.
    """
    grid = (torch.arange(2_000, dtype=torch.float64) + 0.5) / 2_000
    times = torch.cat([torch.tensor(TIMES, dtype=torch.float64), grid])
    z = torch.arange(process.num_states).expand(len(times), -1)
    x = torch.zeros_like(z)
    probabilities = process.marginal(x[:, :1], times)[:, 0]
    possible = probabilities > 0
    logits = torch.zeros(*z.shape, process.vocab_size, dtype=torch.float64)

    def mean_loss(weighting: ddlib.weightings.Weighting | None) -> torch.Tensor:
        losses = ddlib.training_loss(
            process, logits, x, z, times, weighting, mode, mask=possible, reduction="none"
        )
        return (probabilities * losses).sum(-1)

    kept, whole = mean_loss(ddlib.weightings.Clip(high)), mean_loss(None)
    at_times = (kept / whole)[: len(TIMES)]
    return [*at_times.tolist(), float(kept[len(TIMES) :].sum() / whole[len(TIMES) :].sum())]


def effect_of_consistency(process: str) -> str:
    """Return the judge's nats with the consistency loss minus those without, over all cells of
    ``ancestral``.
    """
    cells = {}
    for run in runs_of("orders"):
        if run["millions"] == 10:
            for cell in run["frontier"]:
                if cell["sampler"] == "ancestral":
                    cells[run["process"], run["seed"], cell["budget"]] = cell["nats"]
    pairs = [
        (nats, cells[process, seed, budget])
        for (name, seed, budget), nats in cells.items()
        if name == f"{process}, consistency"
    ]
    changes = [new["value"] - old["value"] for new, old in pairs]
    variances = [new["error"] ** 2 + old["error"] ** 2 for new, old in pairs]
    error = math.sqrt(sum(variances)) / len(pairs)
    return f"{statistics.mean(changes):+.3f} ± {error:.3f} ({len(pairs)} cells)"


def distances_of_data() -> dict[str, float]:
    """Return the Fréchet distance of held-out to training pictures, the least that samples can
    reach.
    """
    found = {}
    for run in runs_of("structure"):
        for cell in run.get("samples", {}).values():
            if "classifier_frechet_of_data" in cell:
                found[run["data"]] = cell["classifier_frechet_of_data"]
    return found


def main() -> None:
    """Print all figures."""
    for millions in (2, 8):
        gaps = list(differences("scales", *TREES, millions=millions))
        seeds = ", ".join(f"{gap:+.3f}" for gap in gaps)
        print(f"random above semantic tree, {millions} million tokens, each seed: {seeds}")
    tree = ddlib.processes.Hierarchical(
        ddlib.hierarchies.Tree([torch.arange(64) // 8]), ddlib.schedules.Linear()
    )
    masks = ddlib.presets.mdlm(8)
    for high in (2.0, 10.0):
        for name, process, mode in (
            ("masks", masks, "standard"),
            ("HDLM", tree, "standard"),
            ("HDLM, all edges", tree, "edges"),
        ):
            shares = ", ".join(f"{share:.2f}" for share in kept_by_clip(process, high, mode))
            print(f"kept by Clip({high:g}), {name}, at {TIMES} and in total: {shares}")
    for process in ("masks", "HDLM-64"):
        print(f"consistency loss, {process}: {effect_of_consistency(process)}")
    for data, distance in distances_of_data().items():
        print(f"Fréchet distance of held-out {data}: {distance:.1f}")


if __name__ == "__main__":
    main()

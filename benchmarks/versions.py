"""Speed of this checkout against another one: losses, bounds, samplers, a training step, imports.

    python -m benchmarks.versions OTHER [--pairs 5]

OTHER is a checkout of another version. The two are measured in turns, each in a separate process that runs this file
with that checkout's packages, so this file uses only what 0.1.0 has. Ratios are time of OTHER over time of this one,
pair by pair; the medians are reported.
"""

import json
import os
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import ddlib as dd
from ddlib_models import DiT

V, CLUSTERS, BATCH, LENGTH, STEPS = 4096, 64, 8, 128, 16
REPEATS = 7
PROCESSES = ("masked", "hierarchical", "gidd", "uniform")
SAMPLERS = ("ancestral", "remask", "confidence")
MEASURE = "--measure"


def process(name: str) -> dd.processes.ForwardProcess:
    """A process over V tokens by its name in ``PROCESSES``."""
    linear = dd.schedules.Linear()
    if name == "hierarchical":
        return dd.processes.Hierarchical(dd.hierarchies.Tree([torch.arange(V) % CLUSTERS]), linear)
    if name == "gidd":
        return dd.processes.GIDD(V, p_uniform=0.1)
    return (dd.processes.Masked if name == "masked" else dd.processes.Uniform)(V, linear)


class Backbone(torch.nn.Module):
    """A small network over the states: its cost does not hide the cost of the library."""

    def __init__(self, states: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(states, 32)
        self.output = torch.nn.Linear(32, V)

    def forward(self, z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        """Logits (B, L, V)."""
        hidden = self.embedding(z) + t.reshape(len(z), -1, 1)
        return self.output(hidden.to(self.output.weight.dtype))


def cases() -> dict[str, Callable[[], Any]]:
    """Functions to time, by name."""
    found: dict[str, Callable[[], Any]] = {}
    x = torch.randint(V, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
    for name in PROCESSES:
        p = process(name)
        network = Backbone(p.num_states)

        def loss(p: dd.processes.ForwardProcess = p, network: Backbone = network) -> None:
            generator = torch.Generator().manual_seed(1)
            t = dd.sample_times(BATCH, generator=generator)
            z = p.sample(x, t, generator=generator)
            dd.training_loss(p, network(z, t), x, z, t).backward()

        def bound(p: dd.processes.ForwardProcess = p, network: Backbone = network) -> None:
            with torch.no_grad():
                dd.bound(p, network, x, generator=torch.Generator().manual_seed(2))

        found[f"{name}, loss and gradients"] = loss
        found[f"{name}, bound"] = bound
        for sampler in SAMPLERS:
            if sampler != "ancestral" and name in ("gidd", "uniform"):
                continue

            def sample(p: dd.processes.ForwardProcess = p, network: Backbone = network, sampler: str = sampler) -> None:
                generator = torch.Generator().manual_seed(3)
                dd.sample(p, network, (2, LENGTH), dd.build("samplers", sampler), STEPS, generator=generator)

            found[f"{name}, {sampler}"] = sample
    found["hierarchical, DiT training step"] = training_step()
    return found


def training_step() -> Callable[[], Any]:
    """One optimiser step of a small DiT with the fused loss."""
    p = process("hierarchical")
    torch.manual_seed(0)
    network = DiT(p.num_states, V, dim=128, depth=4, heads=4)
    optimizer = torch.optim.AdamW(network.parameters())
    x = torch.randint(V, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))

    def step() -> None:
        generator = torch.Generator().manual_seed(1)
        t = dd.sample_times(BATCH, generator=generator)
        z = p.sample(x, t, generator=generator)
        optimizer.zero_grad()
        dd.training_loss(p, network(z, t), x, z, t).backward()
        optimizer.step()

    return step


def measure() -> dict[str, float]:
    """Median CPU seconds of each case in this process."""
    torch.set_num_threads(1)
    taken = {}
    for name, work in cases().items():
        work()
        seconds = []
        for _ in range(REPEATS):
            begin = time.process_time()
            work()
            seconds.append(time.process_time() - begin)
        taken[name] = statistics.median(seconds)
    return taken


def measured(checkout: Path) -> dict[str, float]:
    """Run this file with the packages of a checkout; add the CPU seconds of ``import ddlib``."""
    kept = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
    environment = os.environ | kept | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout)}
    imports = "import time, torch; begin = time.process_time(); import ddlib; print(time.process_time() - begin)"
    cases, seconds = (  # from standard input: the folder of this file, with its ``signal``, must not be on the path
        subprocess.run(
            [sys.executable, "-", MEASURE],
            input=source,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            env=environment,
            cwd=checkout,
        ).stdout
        for source in (Path(__file__).read_text(encoding="utf-8"), imports)
    )
    return json.loads(cases) | {"import ddlib": float(seconds)}


def main() -> None:
    """Measure both checkouts in turns and write results/versions.json."""
    from benchmarks.measuring import RESULTS, machine  # not in a process that measures another version

    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("--pairs", type=int, default=5)
    args = parser.parse_args()
    here = Path(__file__).parent.parent
    runs = [(measured(args.other.resolve()), measured(here)) for _ in range(args.pairs)]
    ratios = {name: [other[name] / ours[name] for other, ours in runs] for name in runs[0][1]}
    report = {
        "machine": machine(),
        "command": f"python -m benchmarks.versions OTHER --pairs {args.pairs}",
        "other": git(args.other, "rev-parse", "--short", "HEAD"),
        "this": git(here, "rev-parse", "--short", "HEAD"),
        "ratios": {
            name: {"median": round(statistics.median(r), 3), "all": [round(one, 3) for one in r]}
            for name, r in ratios.items()
        },
    }
    (RESULTS / "versions.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    for name, one in report["ratios"].items():
        print(f"{one['median']:6.2f}  {name}")


def git(checkout: Path, *arguments: str) -> str:
    """Output of a git command in a checkout."""
    return subprocess.run(["git", *arguments], cwd=checkout, stdout=subprocess.PIPE, text=True).stdout.strip()


if __name__ == "__main__":
    if sys.argv[1:] == [MEASURE]:
        print(json.dumps(measure()))
    else:
        main()

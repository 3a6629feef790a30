"""Speed of this checkout against another one: losses, bounds, samplers, a training step, imports.

    python -m benchmarks.versions OTHER [--pairs 40]
    python -m benchmarks.versions OTHER --counts     # on a busy machine: counts alone

OTHER is a checkout of another version. Each version runs in a separate process, with this file and
that checkout's packages, so this file uses only what both have. The two processes run each case in
turns, since the speed of a shared machine changes within seconds. Ratios are time of OTHER over
time of this one, pair by pair; medians are reported. Beside them are counts that no other work on
the machine changes: torch operations and Python calls of one run.
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
from tempfile import TemporaryDirectory
from typing import Any

import torch

import ddlib as dd
from ddlib_models import DiT

V = 4096
CLUSTERS = 64
BATCH = 8
LENGTH = 128
STEPS = 16
PROCESSES = ("masked", "hierarchical", "gidd", "uniform")
SAMPLERS = ("ancestral", "remask", "confidence")
SERVE = "--serve"
IMPORT = "import ddlib"
SECONDS, COUNTS = "seconds", "counts"
"""What a process measures of a case."""


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
    functions: dict[str, Callable[[], Any]] = {}
    x = torch.randint(V, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0))
    for name in PROCESSES:
        p = process(name)
        torch.manual_seed(0)  # the work of an order by scores depends on the network
        network = Backbone(p.num_states)

        def loss(p: dd.processes.ForwardProcess = p, network: Backbone = network) -> None:
            generator = torch.Generator().manual_seed(1)
            t = dd.sample_times(BATCH, generator=generator)
            z = p.sample(x, t, generator=generator)
            dd.training_loss(p, network(z, t), x, z, t).backward()

        def bound(p: dd.processes.ForwardProcess = p, network: Backbone = network) -> None:
            with torch.no_grad():
                dd.bound(p, network, x, generator=torch.Generator().manual_seed(2))

        functions[f"{name}, loss and gradients"] = loss
        functions[f"{name}, bound"] = bound
        for sampler in SAMPLERS:
            if sampler != "ancestral" and name in ("gidd", "uniform"):
                continue

            def sample(
                p: dd.processes.ForwardProcess = p,
                network: Backbone = network,
                sampler: str = sampler,
            ) -> None:
                generator = torch.Generator().manual_seed(3)
                dd.sample(
                    p,
                    network,
                    (2, LENGTH),
                    dd.build("samplers", sampler),
                    STEPS,
                    generator=generator,
                )

            functions[f"{name}, {sampler}"] = sample
    functions["hierarchical, DiT training step"] = training_step()
    return functions


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


def serve() -> None:
    """Run the cases whose names are lines of standard input.

    Print the CPU seconds of each run, or its counts.
    """
    torch.set_num_threads(1)
    functions = cases()
    for line in sys.stdin:
        quantity, name = line.strip().split(" ", 1)
        if quantity == COUNTS:
            print(json.dumps(count_operations(functions[name])), flush=True)
            continue
        begin = time.process_time()
        functions[name]()
        print(time.process_time() - begin, flush=True)


def count_operations(case: Callable[[], Any]) -> dict[str, int]:
    """Return the numbers of torch operations and of Python calls in the second run of a case."""
    case()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        case()
    operations = sum(
        event.count for event in profile.key_averages() if event.key.startswith("aten::")
    )
    calls = 0

    def count_call(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count_call)
    try:
        case()
    finally:
        sys.setprofile(None)
    return {"torch operations": operations, "Python calls": calls}


def environment(checkout: Path, bytecode: str) -> dict[str, str]:
    """Return the environment of a process with the packages of a checkout, which keeps compiled
    files in a folder.
    """
    allocator = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40)}
    compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": bytecode}
    return os.environ | allocator | compiled | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout)}


class Version:
    """A process that runs the cases with the packages of a checkout."""

    def __init__(self, checkout: Path, bytecode: str) -> None:
        self.checkout = checkout
        self.environment = environment(checkout, bytecode)
        # Not as a file: its folder, with a module ``signal``, must not be on the path.
        command = [sys.executable, "-c", Path(__file__).read_text(encoding="utf-8"), SERVE]
        self.worker = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            env=self.environment,
            cwd=checkout,
        )

    def seconds(self, case: str) -> float:
        """CPU seconds of one run of a case, or of ``import ddlib`` in a new process."""
        if case == IMPORT:
            program = (
                f"import time, torch; begin = time.process_time(); {IMPORT}; "
                "print(time.process_time() - begin)"
            )
            return float(
                subprocess.run(
                    [sys.executable, "-c", program],
                    stdout=subprocess.PIPE,
                    check=True,
                    env=self.environment,
                    cwd=self.checkout,
                ).stdout
            )
        return float(self.request(SECONDS, case))

    def counts(self, case: str) -> dict[str, int]:
        """Return the counts of one run of a case."""
        return dict(json.loads(self.request(COUNTS, case)))

    def request(self, quantity: str, case: str) -> str:
        """Return the line that the process prints for a case."""
        assert self.worker.stdin is not None and self.worker.stdout is not None
        self.worker.stdin.write(f"{quantity} {case}\n")
        return self.worker.stdout.readline()

    def close(self) -> None:
        """Stop the process."""
        assert self.worker.stdin is not None
        self.worker.stdin.close()
        self.worker.wait()


def ratios(other: Version, ours: Version, case: str, pairs: int) -> list[float]:
    """Time of the other version over time of ours, pair by pair.

    The version that runs first alternates.
    """
    quotients = []
    for pair in range(pairs + 1):
        order = (other, ours) if pair % 2 else (ours, other)
        times = {version: version.seconds(case) for version in order}
        quotients.append(times[other] / times[ours])
    return quotients[1:]  # without the first pair, which fills caches


def main() -> None:
    """Measure both checkouts in turns and write results/versions.json."""
    from benchmarks.measuring import (
        RESULTS,
        machine,
    )  # not in a process that measures another version

    parser = ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("other", type=Path)
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument(
        "--counts", action="store_true", help="count again and keep the ratios of the file"
    )
    args = parser.parse_args()
    here = Path(__file__).parent.parent
    result = RESULTS / "versions.json"
    with TemporaryDirectory() as folder:
        other = Version(args.other.resolve(), folder)
        ours = Version(here, folder)
        origin = {
            "machine": machine(),
            "command": "python -m benchmarks.versions " + " ".join(["OTHER", *sys.argv[2:]]),
            "other": git(args.other, "rev-parse", "--short", "HEAD"),
            "this": git(here, "rev-parse", "--short", "HEAD"),
        }
        report = (
            json.loads(result.read_text(encoding="utf-8"))
            if args.counts
            else origin | time_cases(other, ours, args.pairs)
        )
        report["counts"] = origin | count_cases(other, ours)
        other.close()
        ours.close()
    result.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def time_cases(other: Version, ours: Version, pairs: int) -> dict[str, Any]:
    """Return the ratios of all cases."""
    summaries = {}
    for case in [*cases(), IMPORT]:
        low, median, high = statistics.quantiles(ratios(other, ours, case, pairs))
        quartiles = [round(low, 3), round(high, 3)]
        summaries[case] = {"median": round(median, 3), "quartiles": quartiles, "pairs": pairs}
        print(f"{median:6.3f} ({low:.2f} to {high:.2f})  {case}", flush=True)
    return {"ratios": summaries}


def count_cases(other: Version, ours: Version) -> dict[str, Any]:
    """Return the counts of all cases in both versions."""
    counts = {}
    for case in cases():
        counts[case] = {"other": other.counts(case), "this": ours.counts(case)}
        print(case, counts[case], flush=True)
    return {"cases": counts}


def git(checkout: Path, *arguments: str) -> str:
    """Output of a git command in a checkout."""
    return subprocess.run(
        ["git", *arguments], cwd=checkout, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


if __name__ == "__main__":
    if sys.argv[1:] == [SERVE]:
        serve()
    else:
        main()

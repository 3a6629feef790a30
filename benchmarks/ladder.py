"""Training steps on a GPU that is there for minutes: the present step, its options, its peers.

    python -m benchmarks.ladder --folder runs/ladder --deadline 570

The items follow in order of priority. After each, FOLDER/ladder.json has its result, and the
compiled code is packed beside it, so nothing is lost when the machine is taken away. The same
command on another day continues there: items that this code has measured on such a device are left
out. An item that exceeds its limit, twice the time that is expected, is skipped, and tried again
after all others.

Rungs are options of the engine. Their first losses must be those of the baseline, else they are not
timed; the baseline is timed again after every third. The milliseconds of a step are of windows of
20 steps; busy and idle time are from three more, under the profiler.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import torch

from benchmarks import card, constants, gpu_head, hub_decoding, sampling_steps
from benchmarks.compile_caches import Caches
from benchmarks.device_trace import peak_bytes, profile_steps
from benchmarks.gpu_losses import TINY as TINY_LOSSES
from benchmarks.gpu_losses import Batch, methods, training
from benchmarks.gpu_losses import Sizes as LossSizes
from benchmarks.head import Sizes
from benchmarks.measuring import require_equal, require_gpu
from benchmarks.peer import Peer
from benchmarks.priorities import Item, Results, climb, is_failure
from benchmarks.profile import TINY_PROFILE, Size, launching, run
from benchmarks.sampling import TINY_TEXT, Text
from benchmarks.training import Step
from benchmarks.utilisation import SIZES, share_over_times, throughput, windows
from recipes.engine.utilisation import peak

BASELINE = "baseline"
LADDER: Mapping[str, Mapping[str, Any]] = {
    BASELINE: {},
    "one_thread": {"hardware.threads": 1},
    "no_average": {"optimizer.ema": 0.0},
    "trunk": {"hardware.compile": True, "hardware.graph": "trunk"},
    "half_residual": {"model.half_residual": True},
    "fused_norms": {"model.fused_norms": True},
    "joint_modulation": {"model.joint_modulation": True},
    "not_ahead": {"hardware.ahead": False},
    "waiting": {"hardware.wait": True},
    "not_ahead_and_waiting": {"hardware.ahead": False, "hardware.wait": True},
    "eager": {"hardware.compile": False},
}
"""Options of the recipe by name, in order of priority, see ``benchmarks.profile.run``.

None changes the loss.
"""
LAUNCH_BOUND: Mapping[str, Mapping[str, Any]] = {
    BASELINE: {},
    "step": {"hardware.graph": "step"},
    "step, eager": {"hardware.graph": "step", "hardware.compile": False},
    "eager": {"hardware.compile": False},
}
"""The same for a network so small that the device waits for launches."""
OTHER_LOSS: Mapping[str, Mapping[str, Any]] = {"children": {"model.head": "children"}}
"""The same for options with another loss."""
SEQUENCES = 32, 4, 1
"""Numbers of sequences that are sampled together."""
AGAIN = 3
"""Number of rungs between two measurements of the baseline."""
LOSSES = ("triton", "children", "compiled_cross_entropy", "compiled_padded_cross_entropy")
TOLERANCE = {"cuda": 1e-2, "cpu": 1e-5}
"""Relative tolerance of the first losses; on a GPU matrix products are in bfloat16."""
FILE = "ladder.json"


class Count(NamedTuple):
    """Numbers of steps and windows, of calls and bytes of a constant of the device."""

    warm_up: int = 10
    steps: int = 20
    windows: int = 5
    profiled: int = 3
    calls: int = 20
    copied: int = constants.COPY


class Setting(NamedTuple):
    """Sizes by name, of the losses, numbers of steps, device, and torch.compile's back end."""

    sizes: Mapping[str, Size] = MappingProxyType(
        SIZES
        | {
            "base_128": SIZES["base"]._replace(sequences=128),
            "laptop": Size(Sizes(words=4096), 4, 128, 16, 128, "cuda", compile=True),
        }
    )
    text: Text = Text(device="cuda")
    hub: hub_decoding.Text = hub_decoding.TEXT._replace(device="cuda")
    losses: LossSizes = LossSizes()
    count: Count = Count()
    device: str = "cuda"
    backend: str = "inductor"

    @property
    def stance(self) -> str:
        """Stance of torch.compile: a test of the rungs on a CPU does not wait for a compiler."""
        return "default" if self.backend == "inductor" else "force_eager"


GPU = Setting()
TINY = Setting(
    {
        "small": TINY_PROFILE,
        "base": TINY_PROFILE._replace(depth=3),
        "base_128": TINY_PROFILE._replace(depth=3, sequences=4),
        "laptop": TINY_PROFILE._replace(depth=1),
    },
    TINY_TEXT,
    hub_decoding.TINY_TEXT,
    TINY_LOSSES,
    Count(2, 2, 2, 1, 2, 2**10),
    "cpu",
    "aot_eager",
)


def measure_step(
    step: Callable[[], Any], count: Count, device: str, expected: Sequence[float] | None = None
) -> dict[str, Any]:
    """Measure a training step: first losses, seconds of windows, peak memory, and a profile.

    Args:
        step: takes one step and returns its loss, a number or a tensor.
        count: numbers of steps.
        device: "cuda" or "cpu".
        expected: the first losses of a step that computes the same; None for none.

    Raises:
        AssertionError: other first losses than expected.
    """
    peak_bytes(device)
    begin = time.perf_counter()
    losses = [float(step())]
    compiled = time.perf_counter() - begin
    losses += [float(step()) for _ in range(count.warm_up - 1)]
    for value, wanted in zip(losses, losses if expected is None else expected, strict=True):
        require_equal({"ours": wanted, "this step": value}, TOLERANCE[device])
    seconds = windows(step, count.steps, device, count.windows)
    return {
        "losses": losses,
        "first_step_s": compiled,
        "seconds": seconds,
        "ms": 1000 * statistics.median(seconds) / count.steps,
        "peak_bytes": peak_bytes(device),
        "profile": profile_steps(step, count.profiled, device),
    }


def rung(
    name: str,
    toggles: Mapping[str, Any],
    compares: bool,
    setting: Setting,
    results: Results,
) -> dict[str, Any]:
    """Measure the engine's step of a size with some options.

    Args:
        name: of the size.
        toggles: the options.
        compares: whether the first losses must be those of the baseline.
        setting: sizes and device.
        results: those before, with that of the baseline.

    Raises:
        AssertionError: other first losses than the baseline's.
        ValueError: no baseline to compare with; a toggle that is not an option.
    """
    size = setting.sizes[name]
    trained = run(size, toggles)
    first = results.latest_success(f"{name}, {BASELINE}")
    if compares and toggles and first is None:
        raise ValueError(f"{name}, {BASELINE}: not measured, its first losses are required")
    expected = first["losses"] if compares and first is not None else None
    with launching(trained) as step, torch.compiler.set_stance(setting.stance):
        measurement = measure_step(step, setting.count, setting.device, expected)
    # with logits of children fewer than 1 % of those over tokens are computed
    logits = share_over_times(size, trained.process) if compares else 0.0
    share = throughput(size, logits, measurement["ms"] / 1000, at_best(setting.device))
    return measurement | {"toggles": dict(toggles)} | share


def peer(name: str, whole: bool, setting: Setting, results: Results) -> dict[str, Any]:
    """Measure MDLM's compiled step at a size."""
    size = setting.sizes[name]
    network = dict(dim=size.width, depth=size.depth, heads=size.heads, pad_to=128)
    step = Step(size.vocabulary, network, size.sequences, size.length, device=size.device)
    trainer = Peer(step, whole, setting.backend)
    measurement = measure_step(trainer.step, setting.count, setting.device)
    return measurement | throughput(size, 1.0, measurement["ms"] / 1000, at_best(setting.device))


def losses(masks: bool, setting: Setting, results: Results) -> dict[str, Any]:
    """Measure output layer and loss alone: ours, and cross-entropies of all logits."""
    batch = Batch("hdlm", masks, setting.losses, setting.device)
    work = {
        name: partial(training, batch, loss)
        for name, loss in methods(setting.backend != GPU.backend).items()
        if name in LOSSES
    }
    rows = gpu_head.measure(work, batch.reference(), setting.device, setting.count.windows)
    for name, row in rows.items():
        if "loss" in row:
            row["profile"] = profile_steps(work[name], setting.count.profiled, setting.device)
    return {"ratios": gpu_head.ratios({"all masks" if masks else "all levels": rows}), "rows": rows}


def sampling(sequences: int, setting: Setting, results: Results) -> dict[str, Any]:
    """Measure calls of the sampler, in three ways, and the steps of the papers."""
    text = setting.text._replace(sequences=sequences)
    with torch.compiler.set_stance(setting.stance):
        return sampling_steps.measure(text, backend=setting.backend)


def hub(sequences: int, setting: Setting, results: Results) -> dict[str, Any]:
    """Measure block by block decoding of a hub network, ours and Fast-dLLM's."""
    text = setting.hub._replace(sequences=sequences)
    return hub_decoding.measure(text, setting.count.windows)


def floor(setting: Setting, results: Results) -> dict[str, Any]:
    """Measure the constants of the device."""
    count = setting.count
    sizes = {
        name: {
            "products": constants.products(size, count.calls),
            "attention": constants.attention(size, count.calls),
        }
        for name, size in setting.sizes.items()
    }
    copy = constants.bandwidth(setting.device, count.copied, count.calls)
    return {"ratios": {"copy GB/s": copy}, "sizes": sizes}


def at_best(device: str) -> float | None:
    """Return the operations per second at the peak of the device, if it is known."""
    return peak(torch.cuda.get_device_name()) if device == "cuda" else None


def items(setting: Setting) -> list[Item]:
    """Return all items in order of priority."""
    small, base, large, laptop = setting.sizes
    candidates = [
        Item("constants", 30, partial(floor, setting)),
        *_rungs(small, {BASELINE: {}}, setting, 80),
        *_rungs(base, {BASELINE: {}}, setting, 100),
        Item("losses, all levels", 60, partial(losses, False, setting)),
        Item("losses, masks", 60, partial(losses, True, setting)),
        Item(f"{small}, peer", 80, partial(peer, small, False, setting)),
        *_rungs(laptop, LAUNCH_BOUND, setting, 25),
        *(Item(f"sampling, {n}", 60, partial(sampling, n, setting)) for n in SEQUENCES),
        *_rungs(small, LADDER, setting, 40),
        Item(f"{base}, peer", 100, partial(peer, base, False, setting)),
        *_rungs(small, OTHER_LOSS, setting, 60, compares=False),
        *_rungs(base, OTHER_LOSS, setting, 60, compares=False),
        *_rungs(large, {BASELINE: {}}, setting, 60),
        Item(f"{small}, peer in one graph", 150, partial(peer, small, True, setting)),
        *_rungs(base, LADDER, setting, 60),
        *(Item(f"hub decoding, {n}", 60, partial(hub, n, setting)) for n in SEQUENCES[1:]),
    ]
    unique = {item.name: item for item in reversed(candidates)}  # the first of each name
    return [item for number, item in enumerate(candidates) if unique[item.name] is item]


def _rungs(
    size: str,
    rungs: Mapping[str, Mapping[str, Any]],
    setting: Setting,
    expected: float,
    compares: bool = True,
) -> Iterator[Item]:
    """Yield the rungs of a size, and the baseline again after every third and after the last."""
    others = 0
    for name, toggles in rungs.items():
        yield Item(f"{size}, {name}", expected, partial(rung, size, toggles, compares, setting))
        others += name != BASELINE
        if compares and name != BASELINE and (others % AGAIN == 0 or name == list(rungs)[-1]):
            again = partial(rung, size, rungs[BASELINE], True, setting)
            yield Item(f"{size}, {BASELINE} after {name}", expected, again)


def speedups(runs: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Return the time of the baseline over that of each rung.

    The former is the mean of the baselines before and after the rung in its session.
    """
    ratios = {}
    timed = [one for one in runs if "toggles" in one]
    for one in timed:
        session = [other for other in timed if other["session"] == one["session"]]
        number = session.index(one)
        name = f"{one['name'].split(', ')[0]}, {BASELINE}"
        near = [
            [other["ms"] for other in others if other["name"].startswith(name)]
            for others in (session[:number], session[number + 1 :])
        ]
        if one["toggles"] and any(near):
            ratios[one["name"]] = statistics.mean([*near[0][-1:], *near[1][:1]]) / one["ms"]
    return ratios


def line(run: Mapping[str, Any]) -> str:
    """Format a result as one line."""
    begin = f"{run['name']:<36} {run['wall_s']:6.1f} s  "
    if is_failure(run):
        return begin + str(run.get("error") or run["skipped"])
    if "profile" not in run:
        return begin + ", ".join(f"{name} {value:.3g}" for name, value in run["ratios"].items())
    profile = run["profile"]
    return begin + (
        f"{run['ms']:.1f} ms, {run['ratios']['tokens per second']:,.0f} tokens/s, "
        f"busy {profile['busy_ms']:.1f} ms, {profile['launches']:.0f} launches, "
        f"{profile['waits']:.0f} waits"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--folder",
        type=Path,
        required=True,
        help="of results and compiled code, of earlier calls too",
    )
    parser.add_argument("--deadline", type=float, default=570, help="seconds, after the imports")
    parser.add_argument("--tiny", action="store_true", help="small sizes on a CPU: a test run")
    options = parser.parse_args(arguments)
    setting = TINY if options.tiny else GPU
    options.folder.mkdir(parents=True, exist_ok=True)
    if setting.device == "cuda":
        require_gpu(parser)
        print(json.dumps(card.state()), flush=True)
    os.environ["DDLIB_TRITON"] = "1"
    results = Results(options.folder / FILE, setting.device)
    caches = Caches(options.folder) if setting.device == "cuda" else None

    def after(result: Mapping[str, Any]) -> None:
        print(line(result), flush=True)
        if caches is not None:
            caches.save()

    climb(items(setting), results, options.deadline, after)
    for name, ratio in speedups(results.runs).items():
        print(f"{name:<36} {ratio:.3f} x the speed of the baseline")


if __name__ == "__main__":
    main()

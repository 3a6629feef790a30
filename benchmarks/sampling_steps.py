"""Whole calls of the sampler on a GPU, in steps of fixed sizes and as CUDA graphs.

    python -m benchmarks.sampling_steps --device cuda --sequences 1

512 tokens in 512 steps of HDLM by a 12 x 768 DiT with random weights, its blocks compiled as one
graph. Every step is taken, unlike in ``benchmarks.sampling``:

- ``called``: the sampler without a control but ``WholeBatch``, so that all calls have one shape;
- ``fixed``: ``FixedCapacity``;
- ``recorded``: ``FixedCapacity(graph=True)``;
- ``papers``: the ancestral step over all positions and states in the papers' code, timed at some
  states spread over the sequence, with the network compiled; ``papers, compiled``: the rest of that
  step too.

All ways of ours draw the same tokens, which is asserted on a CPU; on a GPU the share is reported.
``outside`` is the time of a step without that of the blocks, for a step that calls them.
"""

import argparse
import json
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

import ddlib as dd
from benchmarks import measuring
from benchmarks.device_trace import profile_steps
from benchmarks.measuring import medians, now, require_gpu
from benchmarks.sampling import PROCESSES, TINY_TEXT, Papers, Text, _half, network
from ddlib.contrib import FixedCapacity
from ddlib_models import DiT

WAYS: Mapping[str, Callable[[], dd.controls.Control]] = {
    "called": dd.controls.WholeBatch,
    "fixed": FixedCapacity,
    "recorded": lambda: FixedCapacity(graph=True),
}
PROFILED = 16
"""Steps of a profiled call."""


class Half:
    """A split denoiser with matrix products in bfloat16 on a GPU; counts its calls.

    Args:
        model: the network.
    """

    def __init__(self, model: DiT) -> None:
        self.model = model
        self.output_weights = model.output_weights
        self.calls = 0

    def __call__(self, z: Tensor, t: Tensor) -> Tensor:
        """Compute the logits."""
        return _half(self.model, z, t)

    def features(self, z: Tensor, t: Tensor) -> Tensor:
        """Compute the output layer's input."""
        self.calls += 1
        return _half(self.model.features, z, t)


@torch.no_grad()
def measure(
    text: Text, name: str = "hdlm", papers_steps: int = 8, backend: str = "inductor"
) -> dict[str, Any]:
    """Return seconds of a call by each way, and the speedups over the papers' steps.

    Args:
        text: sizes; ``every`` is not read.
        name: of the process.
        papers_steps: number of steps of the papers that are timed.
        backend: of torch.compile for these.
    """
    process = PROCESSES[name](text.vocabulary).to(text.device)
    model = network(process, text)
    half = Half(model)
    shape = (text.sequences, text.length)

    def sample(control: dd.controls.Control, steps: int) -> Tensor:
        generator = torch.Generator(text.device).manual_seed(0)
        controls = [control]
        return dd.sample(process, half, shape, steps=steps, generator=generator, controls=controls)

    tokens: dict[str, Tensor] = {}
    seconds: dict[str, float] = {}
    profiles: dict[str, dict[str, Any]] = {}
    for way, control in WAYS.items():
        sample(control(), 2)  # compilation
        half.calls = 0
        begin = now(text.device)
        tokens[way] = sample(control(), text.steps)
        seconds[way] = now(text.device) - begin
        if way == "called":
            calls = half.calls
        profiles[way] = profile_steps(lambda one=control: sample(one(), PROFILED), 1, text.device)
    same = {way: (tokens[way] == tokens["called"]).double().mean().item() for way in WAYS}
    if text.device == "cpu" and min(same.values()) < 1:
        raise AssertionError(f"other tokens: {same}, not timed")
    theirs = papers(Papers(process, model), text, papers_steps, backend)
    call = {"blocks": lambda: half.features(*start(process, text))}
    blocks = medians(measuring.seconds(call, 8, text.device))["blocks"]
    fastest = min(theirs.values())
    return {
        "ratios": {
            f"papers time, {way}": fastest * text.steps / value for way, value in seconds.items()
        },
        "seconds": seconds,
        "ms": {
            "blocks": 1000 * blocks,
            **{step: 1000 * value for step, value in theirs.items()},
            **{
                f"outside, {way}": 1000 * (value - calls * blocks) / text.steps
                for way, value in seconds.items()
            },
        },
        "tokens_per_second": {way: shape[0] * shape[1] / value for way, value in seconds.items()},
        "same_tokens": same,
        "profiles": profiles,
        "calls": calls,
        "text": text._asdict() | {"vocabulary": text.vocabulary._asdict()},
    }


def papers(step: Papers, text: Text, number: int, backend: str) -> dict[str, float]:
    """Return the seconds of a step of the papers, medians over states spread over a sequence."""
    rows = torch.zeros(text.sequences, text.length, dtype=torch.int64, device=text.device)
    generator = torch.Generator(text.device).manual_seed(1)
    times = (torch.arange(number, dtype=torch.float64) + 0.5) / number
    ways = {"papers": step.step, "papers, compiled": torch.compile(step.step, backend=backend)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(2):  # the first one compiles
        for name, way in ways.items():
            seconds[name] = []
            for t in times[:1] if turn == 0 else times:
                here = t.expand(text.sequences).to(text.device)
                z = step.process.sample(rows, here, generator)
                begin = now(text.device)
                way(z, here, (here - 1 / text.steps).clamp_min(0))
                seconds[name].append(now(text.device) - begin)
    return medians(seconds)


def start(process: dd.processes.ForwardProcess, text: Text) -> tuple[Tensor, Tensor]:
    """Return masks at time 1."""
    shape = (text.sequences, text.length)
    mask = torch.full(shape, process.num_states - 1, device=text.device)
    return mask, torch.ones(text.sequences, device=text.device)


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="8 tokens, 2 x 16: a test run")
    options = parser.parse_args()
    if options.device == "cuda" and not options.tiny:
        require_gpu(parser)
    text = TINY_TEXT if options.tiny else Text(sequences=options.sequences, device=options.device)
    backend = "aot_eager" if options.tiny else "inductor"
    print(json.dumps(measure(text, backend=backend), indent=1))


if __name__ == "__main__":
    main()

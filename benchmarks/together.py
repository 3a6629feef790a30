"""Unlike drawings with joint network calls: time beyond the network, throughput, first blocks, and
the tokens that another shape of the calls changes.

    python -m studies.corpus.build OUT --smollm2        # the weights
    python -m benchmarks.together --weights OUT/smollm2

SmolLM2-135M with attention to all positions, on one thread of a CPU, 16 drawings at once: lengths
of 34 to 64 tokens, ancestral and by confidence, with their own seeds, temperatures and steps.

``beyond`` is the time of a run without the network over that of the network, its blocks and the
products of its output layer. ``faster`` is the time of the drawings one by one over that at once,
and ``limit`` the same of the network's calls alone: with 16 rows in every call, empty ones too, and
with the fewest of 1, 2, 4, 8 and 16 that suffice. With blocks of 32 a drawing has a cache, and a
call of its own: the seconds until the first block is drawn, for the last of all drawings.

For the changed tokens, every step of a drawing is evaluated at the states that it had in calls of
one shape, in calls of another one. A token is counted if its argmax is another; its margin is the
difference of the two largest logits. ``products`` are the numbers of rows at which the rounding of
a sequence's product depends on its place, or on their number.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

import ddlib as dd
from benchmarks.measuring import command_line, now, report
from benchmarks.window_cache import SMOLLM2, TINY
from ddlib.contrib import Batcher, sample_together
from ddlib.samplers.runtime.output_layer import Head
from ddlib.samplers.sampling import Plan
from ddlib_models.hf.causal_lm import CausalLM, causal_lm

ROWS = 16
BLOCK = 32
SHAPES = {"1 x own": (1, ()), "16 x 96": (16, (96,)), "4 x 64": (4, (64,))}
"""Rows and lengths of calls, against those of 16 x 64."""


class Timed:
    """Seconds in the network: its features, and the products of its output layer."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.calls = 0

    @contextmanager
    def __call__(self) -> Iterator[None]:
        begin = time.thread_time()  # the other threads may compute too
        yield
        self.seconds += time.thread_time() - begin
        self.calls += 1


@contextmanager
def timed(model: CausalLM) -> Iterator[Timed]:
    """Time the network inside the block."""
    clock = Timed()
    features, product = model.features, Head.product

    def time_of(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def call(*args: Any, **options: Any) -> Tensor:
            with clock():
                return function(*args, **options)

        return call

    with patch.object(Head, "product", time_of(product)):
        model.features = time_of(features)  # type: ignore[method-assign]
        try:
            yield clock
        finally:
            del model.features


def network(weights: Path | None, tiny: bool, **options: Any) -> CausalLM:
    """Return the network, with random weights if there are none."""
    if weights is not None:
        config = json.loads((weights / "config.json").read_text(encoding="utf-8"))
        rows = int(config["vocab_size"])
        return causal_lm(rows + 1, rows, str(weights), **options)
    config = TINY if tiny else SMOLLM2
    rows = int(config["vocab_size"])  # type: ignore[call-overload]
    torch.manual_seed(0)
    return CausalLM(rows + 1, rows, dict(config), **options).eval()


def drawings(model: CausalLM, count: int, longest: int, **options: Any) -> list[Plan]:
    """Return unlike plans."""
    process = dd.presets.mdlm(model.vocab_size)
    samplers = [dd.samplers.Ancestral(), dd.samplers.Confidence()]
    numbers = torch.Generator().manual_seed(1)
    return [
        dd.plan(
            process,
            model,
            (1, longest - 2 * (k % ROWS) if "pace" not in options else longest),
            samplers[k % 2],
            4 + k % 5,
            torch.randint(process.vocab_size, (2 + k,), generator=numbers),
            generator=[k],
            temperature=k % 4 / 3,
            **options,
        )
        for k in range(count)
    ]


def measure_overhead(model: CausalLM, plans: Sequence[Plan], longest: int) -> dict[str, Any]:
    """Return the time beyond the network, and the throughput of all at once over one by one."""
    plans[0].run()
    results: dict[str, Any] = {}
    fewer = [1, 2, 4, 8, ROWS], (longest // 2, 3 * longest // 4, longest)
    for name, run in {
        "at once": lambda: sample_together(plans, ROWS, (longest,)),
        "at once, fewer rows": lambda: sample_together(plans, *fewer),
        "one by one": lambda: [plan.run() for plan in plans],
    }.items():
        begin = now()
        with timed(model) as clock:
            run()
        whole = now() - begin
        results[name] = {
            "seconds": whole,
            "network": clock.seconds,
            "calls": clock.calls,
            "beyond": whole / clock.seconds - 1,
        }
    alone = results["one by one"]
    joint = {name: one for name, one in results.items() if one is not alone}
    ratios = {f"beyond, {name}": one["beyond"] for name, one in joint.items()}
    for name, one in joint.items():
        ratios[f"faster, {name}"] = alone["seconds"] / one["seconds"]
        ratios[f"limit, {name}"] = alone["network"] / one["network"]
    return results | {"tokens": sum(int(plan.free.sum()) for plan in plans), "ratios": ratios}


def measure_first_blocks(model: CausalLM, longest: int) -> dict[str, Any]:
    """Return the wall seconds until drawings of blocks have their first block: alone, and the last
    of all at once.
    """
    first: dict[int, float] = {}
    begin = 0.0

    def watch(number: int) -> Callable[[int, Tensor, Tensor], None]:
        def on_step(k: int, t: Tensor, z: Tensor) -> None:
            if number not in first and bool((t == 0).reshape(len(t), -1)[:, : 2 * BLOCK].all()):
                first[number] = time.perf_counter() - begin

        return on_step

    plans = [
        replace(plan, on_step=watch(number))
        for number, plan in enumerate(
            drawings(model, ROWS, longest, pace=dd.paces.Blocks(model.block_size))
        )
    ]
    for plan in plans[:4]:
        begin = time.perf_counter()
        plan.run()
    alone = list(first.values())
    first.clear()
    begin = time.perf_counter()
    sample_together(plans, ROWS)
    return {"alone": statistics.median(alone), "at once": sorted(first.values())}


@torch.no_grad()
def count_changes(model: CausalLM, plans: Sequence[Plan], longest: int) -> dict[str, Any]:
    """Return how many argmaxes another shape of the calls changes, and the margins there."""
    reference: list[tuple[Tensor, Tensor, Tensor]] = []

    def logits(batcher: Batcher, z: Tensor, t: Tensor) -> Tensor:
        with batcher.join() as denoiser:
            return denoiser(z, t)

    def noting(denoiser: Callable[..., Tensor]) -> Callable[..., Tensor]:
        def note(z: Tensor, t: Tensor) -> Tensor:
            output = denoiser(z, t)
            reference.append((z.clone(), t, output))
            return output

        return note

    mask = model.num_states - 1
    with Batcher(model, ROWS, (longest,)) as batcher:
        for plan in plans:
            with batcher.join() as denoiser:
                dd.sample(
                    plan.process,
                    noting(denoiser),
                    tuple(plan.free.shape),
                    plan.sampler,
                    plan.steps,
                    torch.where(plan.free, mask, plan.fixed),
                    generator=list(plan.seeds),
                )
    result: dict[str, Any] = {}
    for name, shape in SHAPES.items():
        rows, lengths = shape
        count, margins, differences = 0, [], []
        with Batcher(model, rows, [min(length, 2 * longest) for length in lengths]) as batcher:
            for z, t, output in reference:
                other = logits(batcher, z, t)
                drawn = z == mask
                here = output[drawn].float()
                top = here.topk(2).values
                changed = here.argmax(-1) != other[drawn].float().argmax(-1)
                count += int(drawn.sum())
                margins += (top[:, 0] - top[:, 1])[changed].tolist()
                differences.append(float((here - other[drawn].float()).abs().max()))
        result[name] = {
            "tokens": count,
            "changed": len(margins),
            "largest_margin": max(margins, default=0.0),
            "largest_difference": max(differences),
        }
    return result


@torch.no_grad()
def check_products(dtype: torch.dtype, width: int = 576) -> dict[str, Any]:
    """Return the numbers of rows, by length, at which a product of a sequence depends on its place,
    and those at which it is another one than with 16 rows.
    """
    numbers = torch.Generator().manual_seed(2)
    weight = torch.randn(width, width, generator=numbers).to(dtype)
    result: dict[str, Any] = {}
    for length in (1, 5, 8, 16, 24, 33, 64):
        x = torch.randn(length, width, generator=numbers).to(dtype)
        first: dict[int, Tensor] = {}
        places = []
        for rows in (1, 2, 3, 4, 5, 6, 8, 12, 16):
            others = torch.randn(rows, length, width, generator=numbers).to(dtype)
            outputs = []
            for place in range(rows):
                batch = others.clone()
                batch[place] = x
                outputs.append(torch.nn.functional.linear(batch, weight)[place])
            first[rows] = outputs[0]
            if not all(torch.equal(one, outputs[0]) for one in outputs):
                places.append(rows)
        result[str(length)] = {
            "place": places,
            "rows": [rows for rows, one in first.items() if not torch.equal(one, first[16])],
        }
    return result


def main() -> None:
    """Run the command."""
    parser = command_line(__doc__)
    parser.add_argument("--weights", type=Path, help="folder of SmolLM2-135M; default random")
    options = parser.parse_args()
    torch.set_num_threads(1)
    longest = 48 if options.tiny else 64
    runs: list[dict[str, Any]] = []
    for dtype in (torch.float32, torch.bfloat16):
        model = network(options.weights, options.tiny).to(dtype)
        plans = drawings(model, ROWS, longest)
        run: dict[str, Any] = {"dtype": str(dtype), "weights": options.weights is not None}
        run |= measure_overhead(model, plans, longest)
        run["changes"] = count_changes(model, plans[:2], longest)
        for threads in (1, 2):
            torch.set_num_threads(threads)
            run[f"products, {threads} threads"] = check_products(dtype)
        torch.set_num_threads(1)
        runs.append(run)
        print(json.dumps(run, indent=1))
    blocks = network(options.weights, options.tiny, block_size=BLOCK)
    runs.append({"first_block": measure_first_blocks(blocks, 2 * BLOCK)})
    print(json.dumps(runs[-1], indent=1))
    if not options.tiny:
        report("together", runs)


if __name__ == "__main__":
    main()

"""Profile of a training step and of a sampling step.

    python -m benchmarks.profile  # 12 x 768, 50,257 tokens, 2 x 256 tokens
    python -m benchmarks.profile --depth 4 --width 256 --sequences 8 --length 512
    python -m benchmarks.profile --device cuda --compile --length 512 --trace step.json

The training step is that of ``recipes.engine``, its parts timed where it calls them: prefetched
data, times and noise, the DiT's forward pass, output layer and loss with their gradients, the
backward pass of the DiT, clipping, AdamW, the moving average. The sampling step is ``Ancestral``'s,
at steps spread over a sequence of as many steps as tokens. A part runs between two timer readings,
a GPU idle at both, so that waiting counts where it is caused. ``--trace`` writes torch.profiler's
record of the same steps, as a Chrome trace with the names of the parts.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from torch.profiler import profile, record_function

import ddlib as dd
from benchmarks.head import GPT2, TINY, UNIFORM, XI, Sizes
from benchmarks.measuring import now
from ddlib.processes import identity
from ddlib.samplers import Ancestral
from ddlib.samplers.base import SamplingContext
from ddlib.samplers.base import State as Place
from ddlib.samplers.runtime.model import Model
from recipes.config import Data, Hardware, Optimizer, Output, Recipe
from recipes.config.recipe import with_parts
from recipes.data import Batch, Prepared, examples
from recipes.data.prepared import Documents
from recipes.engine import run as engine
from recipes.engine.launched import Launched
from recipes.engine.objectives import bound as objective
from recipes.engine.parallel import World
from recipes.engine.profiling import activities
from recipes.engine.setup import Rehearsal

ROWS = 2000  # as many as take the shuffle of a real text
NOWHERE = Path("unused")
PROCESSES: dict[str, dict[str, Any]] = {
    "hdlm": dict(kind="hdlm", clusters=64),
    "hdlm_xi": dict(kind="hdlm", clusters=64, xi=XI),
    "gidd": dict(kind="gidd", p_uniform=UNIFORM),
    "mdlm": dict(kind="mdlm"),
}


class Size(NamedTuple):
    """Sizes of vocabulary, network and batch, and the device."""

    vocabulary: Sizes = GPT2
    depth: int = 12
    width: int = 768
    sequences: int = 2
    length: int = 256
    device: str = "cpu"
    compile: bool = False
    kind: str = "hdlm"

    @property
    def heads(self) -> int:
        """Number of attention heads, 64 wide."""
        return max(self.width // 64, 1)


PROFILE = Size()
TINY_PROFILE = Size(TINY, 2, 16, 2, 8)


class Parts:
    """Seconds of each named part, over all calls."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Return a context whose time counts for this part."""
        begin = now(self.device)
        with record_function(name):
            yield
        self.seconds[name] = self.seconds.get(name, 0.0) + now(self.device) - begin

    def around(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap the function, so that each call counts for a part."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return function(*args, **kwargs)

        return call

    def of(self, stack: ExitStack, where: Any, names: Mapping[str, str]) -> None:
        """Wrap attributes of an object, by name, until the stack is left."""
        for attribute, name in names.items():
            stack.enter_context(
                patch.object(where, attribute, self.around(name, getattr(where, attribute)))
            )


def run(size: Size, toggles: Mapping[str, Any] | None = None) -> engine.Run:
    """Build a run of the engine without files, its output layer not at the initial zero.

    Args:
        size: sizes and device; matrix products are in bfloat16 on a GPU.
        toggles: other values of the recipe by their place, such as ``{"hardware.threads": 1}``.

    Raises:
        ValueError, TypeError: a toggle that is not an option, or a value that it does not take.
    """
    process = PROCESSES[size.kind]
    network = dict(kind="dit", dim=size.width, depth=size.depth, heads=size.heads, pad_to=128)
    places = dict(toggles or {})
    for place in [place for place in places if place.startswith("model.")]:
        network[place.removeprefix("model.")] = places.pop(place)
    recipe = Recipe(
        data=Data(folder=NOWHERE, length=size.length),
        process=process | ({"clusters": size.vocabulary.clusters} if "clusters" in process else {}),
        model=network,
        optimizer=Optimizer(lr=1e-4),
        hardware=Hardware(bf16=size.device == "cuda", compile=size.compile),
        output=Output(folder=NOWHERE),
        batch=size.sequences,
        steps=100,
    )
    recipe = with_parts(recipe, places)
    world = World(0, 1, torch.device(size.device))
    trained = engine.Run.prepare(recipe, world, random_tokens(size), Rehearsal, writes=False)
    nn.init.normal_(trained.network.model.head.weight, std=0.02)
    return trained


def random_tokens(size: Size) -> Prepared:
    """Return random tokens in memory."""
    words = size.vocabulary.words
    tokens = np.random.default_rng(0).integers(words, size=(ROWS, size.length), dtype=np.int32)
    columns = pa.chunked_array([pa.array(list(tokens))]), pa.chunked_array([[1] * ROWS])
    documents = Documents(*columns, words)
    tokenizer = Tokenizer(WordLevel({str(index): index for index in range(words)}, unk_token="0"))
    manifest = {"corpus": {"tokenizer": "none"}, "inputs": {}}
    return Prepared(NOWHERE, tokenizer, 0, 0, 0, documents, documents, "", manifest)


def batches(trained: engine.Run) -> Iterator[Batch]:
    """Yield batches as in a run: windows drawn by position, with read-ahead threads."""
    length = trained.recipe.data.length
    threads = trained.recipe.hardware.threads
    return examples(
        trained.data.train,
        length=length,
        pad_id=0,
        batch_size=trained.recipe.batch,
        seed=0,
        threads=threads,
    )


class Loss:
    """Loss of a step that was launched, which is waited for when it is read."""

    def __init__(self, trained: engine.Run, launched: Launched) -> None:
        self._trained = trained
        self._launched = launched

    def __float__(self) -> float:
        return self._trained.finish(self._launched).loss


@contextmanager
def launching(trained: engine.Run) -> Iterator[Callable[[], Loss]]:
    """Yield a function that launches the next step, as a run does: its data are computed ahead, and
    nothing waits for its numbers.
    """
    with closing(trained.inputs(sys.maxsize)) as inputs:
        yield lambda: Loss(trained, trained.launch(next(inputs), False))


def training(size: Size, steps: int) -> dict[str, float]:
    """Return seconds of the parts of a training step, after a warm-up step."""
    trained = run(size)
    parts = Parts(size.device)
    stream = batches(trained)
    trained.step([next(stream)], False)
    with ExitStack() as stack:
        parts.of(stack, objective, {"add_noise": "times and noise"})
        parts.of(stack, engine, {"update": "AdamW", "level_sums": "loss by level"})
        parts.of(stack, trained.network.model, {"features": "DiT, forwards"})
        parts.of(stack, dd, {"summed_loss": "output layer and loss, both ways"})
        parts.of(stack, Tensor, {"backward": "DiT, backwards"})
        parts.of(stack, nn.utils, {"clip_grad_norm_": "clipping"})
        if trained.state.average is not None:
            parts.of(stack, trained.state.average, {"update": "running average"})
        total = now(size.device)
        for _ in range(steps):
            with parts.part("data"):
                batch = next(stream)
            trained.step([batch], False)
        total = now(size.device) - total
    stream.close()
    return per_step(parts, total, steps)


def sampling(size: Size, steps: int) -> dict[str, float]:
    """Return seconds of the parts of a sampling step."""
    trained = run(size)
    model = trained.network.model
    process = trained.process
    model.eval()
    count = max(size.length, 2)
    generator = torch.Generator(size.device).manual_seed(0)
    shape = (size.sequences, size.length)
    wrapper = Model(process, model, compact=True)
    times = torch.linspace(1, 0, count + 1, dtype=torch.float64)
    free = torch.ones(shape, dtype=torch.bool, device=size.device)
    context = SamplingContext(process, wrapper, identity, times.to(size.device), free, generator)
    parts = Parts(size.device)
    x = torch.zeros(shape, dtype=torch.int64, device=size.device)
    half = torch.autocast(size.device, torch.bfloat16, enabled=size.device == "cuda")
    with ExitStack() as stack, torch.no_grad(), half:
        parts.of(
            stack,
            process,
            {"sample_level": "which positions jump", "sample_given_level": "where they land"},
        )
        parts.of(stack, wrapper.head, {"logits": "output layer at jumping positions"})
        parts.of(stack, model, {"features": "DiT", "features_at": "DiT"})
        spent = 0.0
        for number, k in enumerate(
            [0, *torch.linspace(0, count - 1, steps).round().int().tolist()]
        ):
            if number == 1:  # the first is warm-up
                parts.seconds.clear()
                spent = 0.0
            t = times[k].expand(size.sequences).to(size.device)
            place = Place(process.sample(x, t, generator), t)
            begin = now(size.device)
            Ancestral().step(context, place, k)
            spent += now(size.device) - begin
    return per_step(parts, spent, steps)


def per_step(parts: Parts, total: float, steps: int) -> dict[str, float]:
    """Return seconds of a step by part, and the remainder outside of all parts."""
    spent = {name: value / steps for name, value in parts.seconds.items()}
    return spent | {"all else": total / steps - sum(spent.values())}


def table(title: str, spent: Mapping[str, float]) -> str:
    """Format milliseconds and shares, the largest first."""
    whole = sum(spent.values())
    rows = sorted(spent.items(), key=lambda item: -item[1])
    lines = [
        f"{name:<34} {1000 * value:>10.1f} ms {100 * value / whole:>6.1f} %" for name, value in rows
    ]
    return "\n".join([f"{title}: {1000 * whole:.1f} ms", *lines])


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, default=PROFILE.depth)
    parser.add_argument("--width", type=int, default=PROFILE.width)
    parser.add_argument("--sequences", type=int, default=PROFILE.sequences)
    parser.add_argument("--length", type=int, default=PROFILE.length)
    parser.add_argument("--kind", choices=PROCESSES, default=PROFILE.kind, help="kind of process")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cuda" if torch.cuda.is_available() else "cpu"
    )
    parser.add_argument("--compile", action="store_true", help="compile the blocks, in training")
    parser.add_argument("--trace", type=Path, metavar="FILE", help="write a Chrome trace")
    parser.add_argument("--tiny", action="store_true", help="2 x 16, 40 tokens: a test run")
    options = parser.parse_args()
    if options.device == "cpu":
        torch.set_num_threads(1)
    sizes = dict(
        depth=options.depth, width=options.width, sequences=options.sequences, length=options.length
    )
    size = TINY_PROFILE if options.tiny else Size(**sizes)
    size = size._replace(device=options.device, compile=options.compile, kind=options.kind)
    with ExitStack() as stack:
        seen = (
            stack.enter_context(profile(activities=activities(size.device)))
            if options.trace
            else None
        )
        print(table("training step", training(size, options.steps)))
        print(table("sampling step", sampling(size, options.steps)))
    if seen is not None:
        seen.export_chrome_trace(str(options.trace))


if __name__ == "__main__":
    main()

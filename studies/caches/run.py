"""Error and time of approximate caches of keys and values, for a model in which all positions
attend to each other.

Sequences are drawn block by block, within a block in the order of a sampler. Each cache is compared
with no cache: total variation between the two distributions at the positions that are not drawn
yet, along held-out sequences, for each block; nats per token of these sequences, whose order may
differ too; tokens that change in greedy decoding behind the first block of a held-out sequence; and
the time of a token, one sequence at a time, by turns. Prints a line per cache and block, and writes
cache_error.json into the folder of the run.

A record of the code: it ran at commit db76a745, and protocol.md has the commands.
"""

import os
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, cast

import torch
import tyro
from jaxtyping import Bool, Int
from rich.console import Console
from torch import Tensor

import ddlib as dd
from ddlib.paces import Blocks
from ddlib.parameterization.capabilities import Capabilities
from ddlib.samplers.likelihood import block_runs, read_steps
from ddlib.samplers.ordered import Ordered, levels
from ddlib.samplers.runtime.model import Model
from ddlib.samplers.runtime.reuse import check_reuse, reuse_of
from recipes.config import at_least
from recipes.console import check_file, command, make_console, plain_errors
from recipes.data import examples, wrapped
from recipes.engine.provenance import provenance
from recipes.engine.validation import WINDOWS
from recipes.model_io import make_order
from recipes.evaluation.report import check_model, result_path, value_and_error, write
from recipes.model_io import LoadedModel, LoadOptions, held_out, measured_length
from recipes.model_io.samplers import check_sampler

RESULT = "cache_error.json"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of ``python -m recipes.cache_error``."""

    run: tyro.conf.Positional[str]
    """Folder of a run or of weights, or owner/name on the Hugging Face hub, also of a third-party
    denoiser.
    """
    caches: tuple[str, ...] = ("prefix", "dual", "dual:refresh=8")
    """Caches, as ``keep`` of ``dd.sample`` and --keep of recipes.generate."""
    block: int = 32
    """Positions of a block."""
    steps: int | None = None
    """Network calls of a block; by default one for each token."""
    order: str = "confidence"
    """Order within a block: a sampler with a likelihood, with options as in recipes.generate."""
    sequences: int = 8
    """Number of held-out sequences."""
    length: int | None = None
    """Tokens of a sequence; as in training by default, and at most 512 for a third-party model."""
    data: Path | None = None
    """Folder of prepared text; by default that of the run."""
    repeats: int = 3
    """Number of sequences drawn with and without each cache for its time, of which the median is
    reported.
    """
    reading: Annotated[LoadOptions, tyro.conf.arg(name="")] = field(default_factory=LoadOptions)
    out: Path | None = None
    """File for the result; by default cache_error.json in the folder of the run, or
    cache_error-NAME.json here.
    """

    def __post_init__(self) -> None:
        numbers = {
            name: 1 if (value := getattr(self, name)) is None else value
            for name in ("steps", "length")
        }
        at_least(1, block=self.block, sequences=self.sequences, repeats=self.repeats, **numbers)
        check_sampler(self.order, "order")
        for name in self.caches:
            reuse_of(name)
        if not self.caches:
            raise ValueError("caches: must be at least one, such as dual")

    @property
    def path(self) -> Path:
        """Path of the result."""
        return result_path(RESULT, self.run, self.out)


@dataclass(frozen=True)
class Subject:
    """A model with held-out sequences and the order in which they are drawn."""

    saved: LoadedModel
    x: Int[Tensor, "B L"]
    free: Bool[Tensor, "B L"]
    """True at tokens, False at padding."""
    order: Ordered
    pace: Blocks
    steps: int | None

    @property
    def own(self) -> int:
        """Number of positions of a block."""
        return self.pace.block

    def variation(self, keep: str) -> list[dict[str, float]]:
        """Return mean and largest total variation of each block, over calls and positions that are
        not drawn yet.
        """
        saved = self.saved
        found = []
        network = Model(saved.process, saved.denoiser, saved.parameterization)
        given = network, self.x, self.order, self.free, self.pace
        runs = (block_runs(*given, rule, self.steps, None) for rule in (False, keep))
        for (here, exact), (_, cached) in zip(*runs, strict=True):
            values = []
            for step in read_steps(self.order, exact, self.x[:, here], None):
                z = step.state.z
                t = step.state.t
                p, q = (run.predict(z, t).double().softmax(-1) for run in (exact, cached))
                values.append((p - q).abs().sum(-1)[levels(exact, z) > 0] / 2)
            every = torch.cat(values)
            found.append(
                {
                    "block": here.start // self.own,
                    "mean": float(every.mean()),
                    "largest": float(every.max()),
                }
            )
        return found

    def nats(self, keep: str | bool) -> Tensor:
        """Return the nats of each held-out sequence, drawn in the order with this cache."""
        saved = self.saved
        found: Tensor = dd.likelihood(
            saved.process,
            saved.denoiser,
            self.x,
            self.order,
            steps=self.steps,
            pace=self.pace,
            keep=keep,
            mask=self.free,
            parameterization=saved.parameterization,
        ).log_likelihood
        return -found

    def per_token(self, nats: Tensor) -> dict[str, float | None]:
        """Return nats per token with their standard error over sequences, None for a single
        sequence.
        """
        return value_and_error(dd.Measure.ratio(nats, self.free.sum(-1).double(), "nats/token"))

    def greedy(self, keep: str | bool, rows: slice = slice(None)) -> Tensor:
        """Draw the likeliest tokens behind the first block of held-out sequences."""
        saved = self.saved
        x = self.x[rows]
        steps = self.steps or self.own * (len(saved.process.levels) - 1)
        tokens: Tensor = dd.sample(
            saved.process,
            saved.denoiser,
            x.shape,
            self.order,
            steps,
            x[:, : self.own],
            temperature=0.0,
            pace=self.pace,
            keep=keep,
            seeds=range(len(x)),
            parameterization=saved.parameterization,
        )
        return tokens

    def seconds(self, keep: str, repeats: int) -> dict[str, Any]:
        """Time greedy decoding of one sequence with and without the cache, by turns."""
        tokens = self.x.shape[1] - self.own
        taken = []
        for number in range(repeats):
            row = slice(number % len(self.x), number % len(self.x) + 1)
            taken.append(
                [
                    _seconds(lambda rule=rule, row=row: self.greedy(rule, row)) / tokens
                    for rule in (False, keep)
                ]
            )
        plain, cached = zip(*taken, strict=True)
        ratios = [a / b for a, b in taken]
        middle = {"without": statistics.median(plain), "with": statistics.median(cached)}
        return {
            "seconds_per_token": middle,
            "times_faster": statistics.median(ratios),
            "ratios": ratios,
        }


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def subject_of(options: Options, saved: LoadedModel) -> Subject:
    """Return the model with its held-out sequences, after checks.

    Raises:
        ValueError: an order without a likelihood, a length without a second block, no text, or a
            network that does not support one of the caches.
    """
    length = measured_length(saved, options.length, options.block)
    pace = Blocks(options.block)
    if length < 2 * options.block or length % options.block:
        raise ValueError(
            f"length={length}: must be a multiple of --block {options.block}, at least two blocks"
        )
    able = Capabilities.of(saved.denoiser)
    if able.block_size:
        raise ValueError(
            f"{saved.name} attends by blocks of {able.block_size}: its cache is exact, so there is "
            "no error to measure"
        )
    try:
        for name in options.caches:
            check_reuse(reuse_of(name), pace, able)
    except TypeError as error:
        raise ValueError(f"caches={name!r}: {error}") from error
    order = cast(Ordered, make_order(saved, options.order, length))
    data = held_out(saved, options.data)
    part = (wrapped(data, length) if saved.rows == "wrapped" else data).validation
    count = min(options.sequences, len(part))
    stream = examples(
        part, length=length, pad_id=data.fill_id, batch_size=count, seed=WINDOWS, threads=0
    )
    with closing(stream):
        batch = next(iter(stream))
    device = saved.process.device
    x, there = (torch.as_tensor(values, device=device) for values in (batch.x, batch.mask))
    return Subject(saved, x.long(), there.bool(), order, pace, options.steps)


@torch.no_grad()
def cache_error(options: Options, console: Console) -> dict[str, Any]:
    """Measure every cache; write and return the result.

    Raises:
        ValueError: before anything is measured, see ``subject_of``; a file of another model.
    """
    check_file("out", options.path)
    check_model("out", options.path, options.run)
    saved = options.reading.open(
        options.run, "cuda" if torch.cuda.is_available() else "cpu", "float32"
    )
    subject = subject_of(options, saved)
    exact = subject.nats(False)
    plain = subject.greedy(False)
    rows, length = subject.x.shape
    result: dict[str, Any] = {
        "protocol": {
            "run": options.run,
            "checkpoint_sha256": saved.sha256,
            "block": options.block,
            "steps": options.steps,
            "order": repr(subject.order),
            "sequences": rows,
            "length": length,
            "repeats": options.repeats,
            **options.reading.recorded(),
        },
        "without": {"nats_per_token": subject.per_token(exact)},
        "caches": [],
        "starts": [
            provenance(saved.plugins)
            | {"load": list(os.getloadavg()), "threads": torch.get_num_threads()},
        ],
    }
    console.print(f"no cache: {_measure(result['without']['nats_per_token'])}")
    for name in options.caches:
        changed = (
            (subject.greedy(name) != plain).unflatten(1, (-1, options.block)).double().mean((0, 2))
        )
        blocks = [
            one | {"changed": float(changed[one["block"]])} for one in subject.variation(name)
        ]
        more = subject.per_token(subject.nats(name) - exact)
        found: dict[str, Any] = {"cache": name, "more_nats_per_token": more, "blocks": blocks}
        found |= {"changed": float(changed[1:].mean()), **subject.seconds(name, options.repeats)}
        result["caches"].append(found)
        write(options.path, result)
        show(found, console)
    console.print(f"written to {options.path}", markup=False, soft_wrap=True)
    return result


def _measure(found: dict[str, float | None], sign: str = "") -> str:
    error = "" if found["error"] is None else f" ± {found['error']:.4f}"
    return f"{found['value']:{sign}.4f}{error} nats/token"


def show(found: dict[str, Any], console: Console) -> None:
    """Print the result of a cache: a line, and one for each block."""
    taken = found["seconds_per_token"]
    more = found["more_nats_per_token"]
    console.print(
        f"{found['cache']}: {_measure(more, '+')}, {found['changed']:.1%} of greedy "
        f"tokens changed, {1e3 * taken['with']:.1f} ms/token ({found['times_faster']:.2f} times "
        "as fast as without)",
        soft_wrap=True,
    )
    for one in found["blocks"]:
        console.print(
            f"  block {one['block']}: total variation {one['mean']:.4f}, at most "
            f"{one['largest']:.4f}; "
            f"{one['changed']:.1%} changed",
            soft_wrap=True,
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the run of the command line."""
    with plain_errors():
        options = tyro.cli(
            Options, args=arguments, prog="python -m recipes.cache_error", description=__doc__
        )
        cache_error(options, make_console())


if __name__ == "__main__":
    command(main)

"""Training loops side by side: the engine, a bare loop with the same loss, Trainer and Lightning
with MDLM's formula.

    python -m benchmarks.loops  # measures, writes the result file
    python -m benchmarks.loops --page --docs docs  # the table of docs/performance.md

The same network, rows of text, batch, optimizer, clipping and constant rate in every loop; a loop
starts anew in every turn, and loops take turns. A step lasts from one update of the optimizer to
the next, in wall time, so that data, noise, records and all else of a loop count; start,
validation, samples and checkpoints do not. The losses of engine and bare loop are asserted equal at
every recorded step, and so are the formula and ``dd.training_loss`` on the same noise.
"""

import logging
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib.metadata import version
from itertools import islice
from pathlib import Path
from statistics import quantiles
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader

import ddlib as dd
from benchmarks.measuring import RESULTS, command_line, medians, report, require_equal
from recipes.config import Data, Hardware, Optimizer, Output, Recipe
from recipes.data import prepare, speeches
from recipes.engine import train
from recipes.engine.parallel import World
from recipes.engine.run import Run
from recipes.logging import read_metrics
from studies.page import Page

WARM = 5
"""Steps before the first that is timed."""
BARE = "bare loop, the engine's loss"
"""The loop that others are compared with."""


class Size(NamedTuple):
    """Vocabulary, network, batch and number of steps of a turn."""

    words: int = 4096
    dim: int = 128
    depth: int = 4
    length: int = 128
    batch: int = 16
    steps: int = 25


@dataclass(frozen=True)
class Task:
    """Recipe, rows of text, and the objects that a loop starts with."""

    recipe: Recipe
    rows: list[dict[str, Tensor]]
    """Rows of text in the order of training, with their positions."""

    @classmethod
    def prepare(cls, size: Size, work: Path) -> "Task":
        """Prepare the text, and collect the rows that the engine reads."""
        corpus = speeches(size.words)
        prepare(corpus, work / "data")
        recipe = Recipe(
            data=Data(corpus=corpus, folder=work / "data", length=size.length, wrap=True),
            model={
                "kind": "dit",
                "dim": size.dim,
                "depth": size.depth,
                "heads": max(size.dim // 64, 1),
            },
            process={"kind": "mdlm"},
            loss=dict(weighting={"kind": "clip", "high": None}),
            optimizer=Optimizer(lr=1e-3, warmup=0, final=1.0, ema=0.0),
            output=Output(
                folder=work / "run",
                validate_every=10**9,
                validate_sequences=2,
                sample_every=10**9,
                sample_steps=1,
                samples=1,
                save_every=10**9,
                tensorboard=False,
            ),
            hardware=Hardware(threads=1),
            batch=size.batch,
            steps=size.steps,
        )
        batches = Run.prepare(recipe, World(0, 1, torch.device("cpu"))).batches()
        x = torch.cat([batch.x for (batch,) in islice(batches, size.steps)])
        return cls(
            recipe, [{"x": row, "index": torch.tensor(index)} for index, row in enumerate(x)]
        )

    def network(self) -> tuple[Any, dd.processes.ForwardProcess]:
        """Return the network at its start, as the engine builds it, and the process."""
        run = Run.prepare(self.recipe, World(0, 1, torch.device("cpu")))
        return run.network.model, run.process

    def loader(self) -> DataLoader[dict[str, Tensor]]:
        """Return the batches of all steps."""
        return DataLoader(self.rows, self.recipe.batch)  # type: ignore[arg-type]  # a list is a dataset

    def optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return the engine's AdamW."""
        settings = self.recipe.optimizer
        values: dict[str, Any] = dict(
            lr=settings.lr,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
        )
        return torch.optim.AdamW(model.parameters(), **values, fused=True)


def formula(model: nn.Module, x: Tensor, masked: Tensor, t: Tensor, mask: int) -> Tensor:
    """Compute MDLM's loss of a linear schedule: the cross-entropy of masked tokens, over the time,
    per token.
    """
    logits = model(torch.where(masked, mask, x), t)
    nats = F.cross_entropy(logits.flatten(0, 1), x.flatten(), reduction="none").view_as(x)
    return (nats * masked / t[:, None]).sum() / x.numel()


def engine(task: Task, work: Path) -> list[float]:
    """Train by the engine; return the losses that it records."""
    train(replace(task.recipe, output=replace(task.recipe.output, folder=work / "run")))
    return [
        record["loss"]
        for _, record in read_metrics(work / "run" / "metrics.jsonl")
        if record["kind"] == "train"
    ]


def fused_loss(
    model: Any, process: dd.processes.ForwardProcess, batch: dict[str, Tensor], step: int
) -> Tensor:
    """Compute the engine's loss: only the logits that it depends on."""
    noise = dd.KeyedGenerator(0, step, batch["index"])
    t = dd.sample_times(len(batch["x"]), generator=noise)
    z = process.sample(batch["x"], t, noise)
    weight, bias = dd.Hidden.layer(model, "cavity")
    return dd.training_loss(
        process, dd.Hidden(model.features(z, t), weight, bias), batch["x"], z, t
    )


def write_out(
    model: Any, process: dd.processes.ForwardProcess, batch: dict[str, Tensor], step: int
) -> Tensor:
    """Draw independent times and masks, and compute the formula."""
    x = batch["x"]
    t = 1e-3 + (1 - 1e-3) * torch.rand(len(batch["x"]))
    return formula(model, x, torch.rand(x.shape) < t[:, None], t, process.num_states - 1)


def bare(loss_of: Callable[..., Tensor], task: Task, work: Path) -> list[float]:
    """Train by the shortest loop; return the loss of every tenth step."""
    model, process = task.network()
    model.train()
    optimizer = task.optimizer(model)
    losses = []
    for step, batch in enumerate(task.loader()):
        loss = loss_of(model, process, batch, step)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), task.recipe.optimizer.max_grad_norm)
        optimizer.step()
        optimizer.zero_grad()
        if (step + 1) % 10 == 0:
            losses.append(loss.item())
    return losses


def trainer(task: Task, work: Path) -> list[float]:
    """Train by the ``Trainer`` of transformers with the formula."""
    from transformers import Trainer, TrainingArguments

    model, process = task.network()

    class MDLM(Trainer):
        def compute_loss(
            self, model: nn.Module, inputs: dict[str, Tensor], *rest: Any, **options: Any
        ) -> Tensor:
            return write_out(model, process, inputs, 0)

        def _get_train_sampler(self, *rest: Any) -> None:
            """Keep the order."""

    arguments = TrainingArguments(
        str(work / "trainer"),
        max_steps=task.recipe.steps,
        per_device_train_batch_size=task.recipe.batch,
        max_grad_norm=task.recipe.optimizer.max_grad_norm,
        lr_scheduler_type="constant",
        logging_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
    )
    loop = MDLM(model, arguments, train_dataset=task.rows, optimizers=(task.optimizer(model), None))
    loop.train()
    return [entry["loss"] for entry in loop.state.log_history if "loss" in entry]


def lightning(task: Task, work: Path) -> list[float]:
    """Train by Lightning with the formula."""
    import lightning as L

    network, process = task.network()

    class MDLM(L.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network

        def training_step(self, batch: dict[str, Tensor], index: int) -> Tensor:
            loss = write_out(self.network, process, batch, index)
            self.log("train_loss", loss.detach(), batch_size=len(batch["x"]))
            return loss

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return task.optimizer(self.network)

    loop = L.Trainer(
        max_steps=task.recipe.steps,
        accelerator="cpu",
        gradient_clip_val=task.recipe.optimizer.max_grad_norm,
        default_root_dir=work,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    loop.fit(MDLM(), task.loader())
    return [float(loop.callback_metrics["train_loss"])]


LOOPS: Mapping[str, Callable[[Task, Path], list[float]]] = {
    "ours": engine,
    BARE: partial(bare, fused_loss),
    "bare loop, the formula": partial(bare, write_out),
    "Trainer of transformers, the formula": trainer,
    "Lightning, the formula": lightning,
}


@contextmanager
def stamps() -> Iterator[list[tuple[float, float]]]:
    """Return a context that records wall and CPU seconds after every step of any optimizer."""
    times = list[tuple[float, float]]()
    handle = register_optimizer_step_post_hook(
        lambda *_: times.append((time.perf_counter(), time.process_time()))
    )
    try:
        yield times
    finally:
        handle.remove()


@torch.no_grad()
def check(task: Task) -> None:
    """Raise AssertionError unless the formula is the loss of ddlib on the same noise."""
    model, process = task.network()
    nn.init.normal_(model.head.weight, std=0.02)  # at zero all losses would agree
    x = next(iter(task.loader()))["x"]
    t = torch.linspace(0.1, 1, task.recipe.batch)
    z = process.sample(x, t)
    ours = dd.training_loss(process, model(z, t), x, z, t)
    other = formula(model, x, z != x, t, process.num_states - 1)
    require_equal({"ours": float(ours), "formula": float(other)})


def over_bare(timings: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Return times over those of the bare loop in the same turn: between turns the speed of the
    machine changes.
    """
    return {
        name: [one / two for one, two in zip(values, timings[BARE], strict=True)]
        for name, values in timings.items()
    }


def measure(task: Task, size: Size, repeats: int, threads: int, work: Path) -> dict[str, Any]:
    """Return seconds of a step of every loop, in turns, and their ratios to the bare loop with the
    same loss.
    """
    torch.set_num_threads(threads)
    wall, cpu = ({name: list[float]() for name in LOOPS} for _ in range(2))
    for _ in range(repeats):
        losses = {}
        for name, loop in LOOPS.items():
            with tempfile.TemporaryDirectory(dir=work) as folder, stamps() as times:
                torch.manual_seed(0)
                losses[name] = loop(task, Path(folder))
            for seconds, begin, end in zip(
                (wall, cpu), times[WARM - 1], times[size.steps - 1], strict=True
            ):
                seconds[name].append((end - begin) / (size.steps - WARM))
        for one, two in zip(
            losses["ours"], losses[BARE], strict=False
        ):  # the engine records its last step too
            require_equal({"ours": one, "bare": two}, 1e-3)
    return {
        "threads": threads,
        "size": size._asdict(),
        "seconds_per_step": wall,
        "cpu_seconds_per_step": cpu,
        "tokens_per_second": {
            name: size.batch * size.length / value for name, value in medians(wall).items()
        },
        "ratios": {f"{name} time": value for name, value in medians(over_bare(wall)).items()},
        "versions": {name: version(name) for name in ("transformers", "lightning")},
    }


def tables(results: dict[str, Any]) -> str:
    """Return the table of the page: tokens per second and time over the bare loop, by number of
    threads.
    """
    runs = results["runs"]
    where = results["machine"]
    parts = ("tokens/s", "time of a step over the bare loop")
    heads = [f"{part}, threads: {run['threads']}" for run in runs for part in parts]
    lines = [f"| loop | {' | '.join(heads)} |", "|" + " --- |" * (1 + len(heads))]
    for name in runs[0]["tokens_per_second"]:
        cells = [
            f"{run['tokens_per_second'][name]:,.0f} | {run['ratios'][f'{name} time']:.3f}"
            for run in runs
        ]
        lines.append(
            f"| {'engine of the recipes' if name == 'ours' else name} | {' | '.join(cells)} |"
        )
    ours = [over_bare(run["seconds_per_step"])["ours"] for run in runs]
    halves = [
        quantiles(one if len(one) > 1 else 2 * one) for one in ours
    ]  # a test has a single turn
    about = (
        f"Medians of {len(ours[0])} turns, times over those of the same turn; the middle half "
        "of the engine's: "
    )
    about += ", ".join(f"{low:.2f} to {high:.2f}" for low, _, high in halves)
    about += f"; {where['processor']}, {where['cores']} cores, torch {where['torch']}"
    about += "".join(f", {name} {number}" for name, number in runs[0]["versions"].items())
    return "\n".join([*lines, "", f"{about}."])


PAGE = Page("performance", "benchmarks/loops.py", tables)


def main(words: Sequence[str] | None = None) -> None:
    """Run the command."""
    parser = command_line(__doc__)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--out", type=Path, default=RESULTS / "loops.json", help="the result file")
    parser.add_argument(
        "--page", action="store_true", help="measure nothing: the table of the result file"
    )
    parser.add_argument(
        "--docs", type=Path, help="folder of the page; without it the table is printed"
    )
    options = parser.parse_args(words)
    if options.tiny and options.out.parent == RESULTS:
        parser.error("--tiny: pass another file with --out, these numbers are not results")
    if not options.page:
        warnings.filterwarnings("ignore", module="lightning")
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        size = Size(300, 16, 1, 16, 4, 12) if options.tiny else Size()
        with tempfile.TemporaryDirectory() as work:
            check(task := Task.prepare(size, Path(work)))
            runs = [
                measure(task, size, options.repeats, threads, Path(work))
                for threads in options.threads
            ]
        report(options.out.stem, runs, folder=options.out.parent)
    PAGE.write(options.out, options.docs)


if __name__ == "__main__":
    main()

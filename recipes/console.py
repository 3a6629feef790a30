"""What the quickstart shows: noisy text in colour, and one progress bar or plain lines."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from jaxtyping import Int
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text
from tokenizers import Tokenizer
from torch import Tensor

MASK = "_"
CLUSTER_STYLE, MASK_STYLE = "dark_orange italic", "grey50"


def make_console(file: TextIO | None = None) -> Console:
    """A console that wraps plain output at 100 columns and never fails on what the terminal cannot spell."""
    file = sys.stdout if file is None else file
    if hasattr(file, "reconfigure"):
        file.reconfigure(errors="replace")
    return Console(file=file, highlight=False, width=None if file.isatty() else 100)


def render(tokenizer: Tokenizer, states: Int[Tensor, " L"], names: list[str]) -> Text:
    """Noisy text of one sequence: words as they are, clusters as [name], masks as _.

    Args:
        tokenizer: spells the words 0..V-1.
        states: words, then clusters, then the mask.
        names: of the clusters, in the order of their states.
    """
    vocab_size, text, run = tokenizer.get_vocab_size(), Text(), []

    def flush() -> None:
        # Neighbouring words are decoded together: a character may be spread over several of them.
        text.append(tokenizer.decode(run).replace("\n", " ¶ "))
        run.clear()

    for state in states.tolist():
        if state < vocab_size:
            run.append(state)
            continue
        flush()
        if state < vocab_size + len(names):
            text.append(f" [{names[state - vocab_size]}]", style=CLUSTER_STYLE)
        else:
            text.append(f" {MASK}", style=MASK_STYLE)
    flush()
    return text


Report = Callable[[int, float], None]


@contextmanager
def training_progress(console: Console, name: str, steps: int, tokens_per_step: int) -> Iterator[Report]:
    """Yields ``report(step, loss)``, to be called after every step: a bar on a terminal, ten lines elsewhere."""
    started, smooth = time.perf_counter(), None

    def speed(step: int) -> float:
        return step * tokens_per_step / max(time.perf_counter() - started, 1e-9)

    def mean(loss: float) -> float:
        nonlocal smooth
        smooth = loss if smooth is None else 0.95 * smooth + 0.05 * loss
        return smooth

    if not console.is_terminal:

        def line(step: int, loss: float) -> None:
            loss = mean(loss)
            if step * 10 // steps > (step - 1) * 10 // steps:
                left = (steps - step) * tokens_per_step / speed(step)
                console.print(
                    f"  {name:<12} step {step:>5}/{steps}  loss {loss:.3f} nats/token  "
                    f"{speed(step):>7,.0f} tokens/s  {left:>3.0f} s left"
                )

        yield line
        return

    columns = (
        TextColumn("  {task.description:<12}"),
        BarColumn(),
        TextColumn("{task.completed}/{task.total}  loss {task.fields[loss]} nats/token"),
        TextColumn("{task.fields[speed]:,.0f} tokens/s"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(name, total=steps, loss="  ...", speed=0.0)
        yield lambda step, loss: progress.update(task, completed=step, loss=f"{mean(loss):.3f}", speed=speed(step))

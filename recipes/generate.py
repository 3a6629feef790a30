"""Text from a trained model: from nothing, after a prompt, or in the gaps of a text.

    python -m recipes.generate runs/owt/hdlm --samples 4 --steps 256
    python -m recipes.generate runs/owt/hdlm --prompt "The weather in Boston" --sampler first_hitting
    python -m recipes.generate runs/owt/hdlm --prompt "The [MASK:3] in Boston was [MASK]." --trajectory
    python -m recipes.generate runs/owt/hdlm --sampler remask:eta=0.05 --html text.html

Without a gap the prompt is the beginning of a text. With gaps it is a whole text: [MASK] is one free token, [MASK:12]
are twelve, and all else stands. A space before a gap belongs to what fills it, as it does in tokens.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import torch
import tyro
from jaxtyping import Int
from rich.console import Console
from torch import Tensor

from ddlib import parts
from recipes.config import at_least, own_times
from recipes.console import make_console, on_its_way, plain_errors, render
from recipes.engine.provenance import provenance
from recipes.film import Filmed, Text, check_page, write_page
from recipes.lexicon.naming import cluster_names
from recipes.sampling import Sampling, draw, protocol
from recipes.saved import Precision, Saved, open_saved

GAP = re.compile(r"\[MASK(?::(\d+))?\]")
LIKE_A_GAP = re.compile(r"[\[<({]\s*mask\s*(?::\s*\d*\s*)?[\]>)}]", re.IGNORECASE)
"""What others write for one."""

SNAPSHOTS = 6
"""States of a trajectory that are shown."""

FILMED = 16
"""Samples that a page shows, at most."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What ``python -m recipes.generate`` takes."""

    run: tyro.conf.Positional[str]
    """Folder of a run or of weights, or owner/name on the Hugging Face hub."""
    prompt: str | None = None
    """How the text begins; or, with [MASK] or [MASK:12] in it, the text whose gaps are filled."""
    samples: int = 4
    length: int | None = None
    """Tokens of a sequence; as in training by default."""
    sampling: Annotated[Sampling, tyro.conf.arg(name="")] = field(default_factory=Sampling)
    precision: Precision = "float32"
    """Of the network; draws are always made in float64."""
    batch: int = 16
    """Samples drawn at a time; changes nothing but memory and speed."""
    seed: int = 0
    numbers: tuple[int, ...] = ()
    """Of the samples, in place of 0, 1, 2 and so on: a number is a seed of its own, whatever is drawn beside it."""
    trajectory: bool = False
    """Show the first sample on its way from noise."""
    html: Path | None = None
    """File for a page to look at in a browser: the samples on their way from noise, and the chance of every draw."""
    trust: tuple[str, ...] = ()
    """Modules that weights from elsewhere may import parts from, as package.module."""
    out: Path | None = None
    """File for the samples, one JSON object per line, each with all that it takes to draw it again."""

    def __post_init__(self) -> None:
        at_least(1, samples=self.samples, batch=self.batch, length=1 if self.length is None else self.length)
        at_least(0, seed=self.seed, numbers=min(self.numbers, default=0))
        if self.prompt is not None and (found := LIKE_A_GAP.search(GAP.sub("", self.prompt))):
            raise ValueError(f"prompt: {found[0]} would be read as text; did you mean [MASK], or [MASK:3] for three?")


def prompt_states(saved: Saved, text: str, length: int) -> Int[Tensor, " n"]:
    """What stands and what is free: words, and the mask at every free position of a text with gaps.

    A text with gaps is a whole document: behind it come the end of text and, unless the model was trained on packed
    rows, padding up to ``length``. A text without gaps is a beginning: what follows it is free.

    Raises:
        ValueError: it is longer than ``length``.
    """
    states, special, end = [saved.special.bos], saved.special, 0
    for gap in GAP.finditer(text):
        states += saved.encode(text[end : gap.start()].removesuffix(" "))
        states += [saved.process.num_states - 1] * int(gap[1] or 1)
        end = gap.end()
    states += saved.encode(text[end:])
    if end:
        states.append(special.eos)
    if len(states) > length:
        raise ValueError(f"prompt: {len(states)} tokens with its special ones, the sequence has only {length}")
    if end and saved.rows == "padded":
        states += [special.pad] * (length - len(states))
    return torch.tensor(states)


def show(saved: Saved, trace: Sequence[tuple[float, Tensor]], console: Console) -> None:
    """Prints states of one sample, from noise to words."""
    names = cluster_names(saved.process, saved.model, saved.clusters, saved.tokenizer)
    for number in torch.linspace(0, len(trace) - 1, min(SNAPSHOTS, len(trace))).round().int().tolist():
        t, states = trace[number]
        console.print(on_its_way(t, render(saved.tokenizer, states, names)))


def generate(options: Options, console: Console) -> list[str]:
    """Draws, prints and keeps samples; returns their texts.

    Raises:
        ValueError: before anything is drawn, whatever does not fit.
    """
    if options.html is not None:
        check_page(options.html)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    saved = open_saved(options.run, device, options.precision, options.trust)
    length = options.length or saved.length
    prompt = None if options.prompt is None else prompt_states(saved, options.prompt, length)
    if prompt is not None and GAP.search(options.prompt):
        length = len(prompt)
    pace = options.sampling.course(saved, length)
    if options.html is not None and own_times(pace, length):
        raise ValueError(f"html: not with pace={pace!r}, a page shows texts at one time; --trajectory shows any")
    trace: list[tuple[float, Tensor]] = []
    follow = (lambda k, t, z: trace.append((float(t[0].mean()), z[0].cpu()))) if options.trajectory else None
    rows: list[list[int]] = []
    filmed: list[Text] = []
    numbers = options.numbers or range(options.samples)
    for index in torch.tensor(numbers, device=device).split(options.batch):
        on_step, film = follow if not rows else None, None
        if options.html is not None and len(rows) < FILMED:
            film = Filmed(parts.build("samplers", options.sampling.sampler), FILMED - len(rows), on_step)
            on_step = film.on_step
        drawn = draw(saved, options.sampling, options.seed, index, length, prompt, on_step, film)
        filmed += [] if film is None else film.end(drawn)
        rows += drawn.tolist()
    if options.trajectory:
        show(saved, trace, console)
    texts = [saved.tokenizer.decode(saved.document(row)) for row in rows]
    for number, text in zip(numbers, texts, strict=True):
        console.print(f"sample {number}", style="bold")
        console.print(text, markup=False)
    how = protocol(saved, options.sampling, options.seed, length) | {"prompt": options.prompt}
    if options.html is not None:
        shown = list(zip(numbers, filmed, rows, strict=False))  # as many as were filmed
        write_page(options.html, saved, shown, options.run, how | {"samples": len(rows), "shown here": len(shown)})
        console.print(f"page: {options.html}", markup=False, soft_wrap=True)
    if options.out is not None:
        how["provenance"] = provenance(saved.plugins)
        lines = [
            json.dumps({"index": number, "text": text, "tokens": row, "protocol": how}, ensure_ascii=False)
            for number, text, row in zip(numbers, texts, rows, strict=True)
        ]
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return texts


def main(arguments: Sequence[str] | None = None) -> None:
    with plain_errors():
        options = tyro.cli(Options, args=arguments, prog="python -m recipes.generate", description=__doc__)
        generate(options, make_console())


if __name__ == "__main__":
    main()

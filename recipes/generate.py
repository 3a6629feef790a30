"""Text from a model: from nothing, after a prompt, in the gaps of a text, or in answer to a message.

    python -m recipes.generate runs/owt/hdlm --samples 4 --steps 256
    python -m recipes.generate runs/owt/hdlm --prompt "The weather in Boston" --sampler first_hitting
    python -m recipes.generate runs/owt/hdlm --prompt "The [MASK:3] in Boston was [MASK]." --trajectory
    python -m recipes.generate runs/owt/hdlm --sampler remask:eta=0.05 --html text.html
    python -m recipes.generate runs/owt/hdlm --prompt "The weather" --prompt "Yesterday we" --stream

Without a gap a prompt is the beginning of a text. With gaps it is a whole text: [MASK] is one free token, [MASK:12]
are twelve, and all else stands. A space before a gap belongs to what fills it, as it does in tokens. Several prompts
are drawn together, and each gives what it gives alone.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import torch
import tyro
from rich.console import Console
from rich.text import Text as RichText
from torch import Tensor

from ddlib import parts
from recipes.config import at_least, own_times
from recipes.console import check_file, make_console, on_its_way, plain_errors, render
from recipes.embeddings.naming import cluster_names
from recipes.engine.provenance import provenance
from recipes.generation.drafts import Drafts
from recipes.generation.prompt import Row, check_known, check_prompt, check_text, read_prompts, row, stacked, together
from recipes.generation.sampling import OnStep, Sampling, draw, protocol
from recipes.model_io import LoadedModel, LoadOptions, Precision, one_of
from recipes.visualization import Filmed, Text, write_page

SNAPSHOTS = 6
"""States of a trajectory that are shown."""

FILMED = 16
"""Samples that a page shows, at most."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What ``python -m recipes.generate`` takes."""

    run: tyro.conf.Positional[str | None] = None
    """Folder of a run or of weights, or owner/name on the Hugging Face hub; pretrained denoisers of others as well."""
    model: str | None = None
    """The same by name, in place of that."""
    prompt: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """How the text begins; or, with [MASK] or [MASK:12] in it, the text whose gaps are filled. Once for each prompt."""
    prompts: Path | None = None
    """File with a prompt on each line, in place of that."""
    chat: bool = False
    """A prompt is what a user says to the model, which answers; for tokenizers with a chat template."""
    system: str | None = None
    """What a chat begins with."""
    unknown: bool = False
    """Let symbols of a prompt pass that the tokenizer does not have: they become its unknown token, or are left out."""
    samples: int = 4
    """Of each prompt."""
    length: int | None = None
    """Tokens of a sequence; by default as in training, or of a model of others as many as a prompt takes."""
    new: int | None = None
    """Tokens behind each prompt without gaps, in place of that."""
    sampling: Annotated[Sampling, tyro.conf.arg(name="")] = field(default_factory=Sampling)
    precision: Precision = "float32"
    """Of the network; draws are always made in float64."""
    batch: int = 16
    """Samples drawn at a time; changes nothing but memory and speed."""
    seed: int = 0
    numbers: tuple[int, ...] = ()
    """Of the samples, in place of 0, 1, 2 and so on: a number is a seed of its own, whatever is drawn beside it."""
    stream: bool = False
    """Show the texts as they stand after each step, redrawn in place on a terminal."""
    trajectory: bool = False
    """Show the first sample on its way from noise."""
    html: Path | None = None
    """File for a page to look at in a browser: the samples on their way from noise, and the chance of every draw."""
    reading: Annotated[LoadOptions, tyro.conf.arg(name="")] = field(default_factory=LoadOptions)
    out: Path | None = None
    """File for the samples, one JSON object per line, each with all that it takes to draw it again."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "run", one_of(self.run, self.model))
        object.__setattr__(self, "model", None)  # so that replace() finds one
        given = (self.prompt,) if isinstance(self.prompt, str) else tuple(self.prompt or ())
        object.__setattr__(self, "prompt", given)  # one may be said as it is
        limits = {name: 1 if (value := getattr(self, name)) is None else value for name in ("length", "new")}
        at_least(1, samples=self.samples, batch=self.batch, **limits)
        at_least(0, seed=self.seed, numbers=min(self.numbers, default=0))
        if self.length is not None and self.new is not None:
            raise ValueError(f"new={self.new}: not with length={self.length}, which says the whole")
        if given and self.prompts is not None:
            raise ValueError(f"prompts={self.prompts}: not with prompt={given[0]!r}, say all prompts in one way")
        if self.system is not None and not self.chat:
            raise ValueError(f"system={self.system!r}: only with --chat")
        if self.chat and not given and self.prompts is None:
            raise ValueError("chat: says nothing to the model, give a message by --prompt")
        check_text("system", self.system or "")
        for text in given:
            check_prompt(text, self.chat)

    def texts(self) -> tuple[str | None, ...]:
        """The prompts; None for a text from nothing.

        Raises:
            OSError, ValueError: a file that holds none, or one that would not be read as it is meant.
        """
        if self.prompts is None:
            return self.prompt or (None,)
        found = read_prompts(self.prompts)
        for text in found:
            check_prompt(text, self.chat)
        return found

    def rows(self, saved: LoadedModel, texts: Sequence[str | None]) -> list[Row]:
        """The row of each of these prompts, and whether the model can be asked for it.

        Raises:
            ValueError: before anything is drawn, whatever does not fit.
        """
        for name, text in (*(("prompt", text) for text in texts), ("system", self.system)):
            check_known(saved, name, text or "", self.unknown)
        pace = self.sampling.named(saved)
        found = [row(saved, text, pace, self.length, self.new, self.chat, self.system) for text in texts]
        for length in dict.fromkeys(one.length - one.lead for one in found):
            pace = self.sampling.course(saved, length)
            if self.html is not None and pace.block is None and own_times(pace, length):
                raise ValueError(
                    f"html: not with pace={pace!r}, a page shows texts or blocks at one time; --trajectory shows any"
                )
        return found


@dataclass
class Sample:
    """A text that is drawn."""

    row: Row
    number: int
    name: str
    """What it is called among the others."""
    tokens: list[int] = field(default_factory=list)
    film: Text | None = None

    def shown(self, saved: LoadedModel) -> list[int]:
        """The words that are shown: without beginning and end; of a chat the answer."""
        if self.row.text is None:
            return saved.document(self.tokens)
        return self.tokens[self.row.first : self.row.end(self.tokens, saved.ends)]

    def about(self, saved: LoadedModel, options: Options) -> dict[str, Any]:
        """All that decides it but its number."""
        how = protocol(saved, options.sampling, options.seed, self.row.length - self.row.lead) | {
            "prompt": self.row.text
        }
        how |= options.reading.said()
        return how | ({"chat": True, "system": options.system} if self.row.chat else {})


def asked(rows: Sequence[Row], numbers: Sequence[int]) -> list[Sample]:
    """The samples of each prompt, by number."""
    several = len(rows) > 1
    return [
        Sample(row, number, f"prompt {place}, sample {number}" if several else f"sample {number}")
        for place, row in enumerate(rows)
        for number in numbers
    ]


def show(saved: LoadedModel, trace: Sequence[tuple[float, Tensor]], console: Console) -> None:
    """Prints states of one sample, from noise to words."""
    names = cluster_names(saved.process, saved.model, saved.clusters, saved.tokenizer)
    for number in torch.linspace(0, len(trace) - 1, min(SNAPSHOTS, len(trace))).round().int().tolist():
        t, states = trace[number]
        console.print(on_its_way(t, render(saved.tokenizer, states, names)))


def draw_all(saved: LoadedModel, options: Options, samples: Sequence[Sample], console: Console) -> None:
    """Draws the samples, as many at once as can be drawn together."""
    names = cluster_names(saved.process, saved.model, saved.clusters, saved.tokenizer) if options.stream else []
    sampler = parts.build("samplers", options.sampling.sampler)
    block = options.sampling.named(saved).block
    trace: list[tuple[float, Tensor]] = []
    filmed = 0
    for group in together(saved, [sample.row for sample in samples], block, sampler, options.batch):
        mine = [samples[place] for place in group]
        prompt, length, lengths = stacked(saved, [one.row for one in mine])
        follow, film = list[OnStep](), None
        if options.trajectory and 0 in group:
            follow.append(partial(_keep, trace, group.index(0), samples[0].row.length - samples[0].row.lead))
        with Drafts(console, [one.name for one in mine], partial(_shown, saved, names, mine)) as drafts:
            follow += [drafts] if options.stream else []
            on_step = partial(_tell, follow) if follow else None
            if options.html is not None and filmed < FILMED:
                film = Filmed(parts.build("samplers", options.sampling.sampler), FILMED - filmed, on_step)
                on_step = film.on_step
            index = torch.tensor([one.number for one in mine], device=saved.process.device)
            lead = mine[0].row.lead
            drawn = draw(saved, options.sampling, options.seed, index, length, prompt, on_step, film, lengths, lead)
        for one, tokens in zip(mine, drawn.tolist(), strict=True):
            one.tokens = tokens[: one.row.length]
        for one, text in zip(mine, [] if film is None else film.end(drawn[:, lead:]), strict=False):
            one.film, filmed = text.first(one.row.length - lead), filmed + 1
    if options.trajectory:
        show(saved, trace, console)


def _shown(saved: LoadedModel, names: Sequence[str], samples: Sequence[Sample], place: int, z: Tensor) -> RichText:
    row = samples[place].row
    return render(saved.tokenizer, z[row.first if row.chat and not row.lead else 0 : row.length - row.lead], names)


def _keep(trace: list[tuple[float, Tensor]], place: int, length: int, k: int, t: Tensor, z: Tensor) -> None:
    trace.append((float(t[place].mean()), z[place, :length].cpu()))


def _tell(listeners: Sequence[OnStep], k: int, t: Tensor, z: Tensor) -> None:
    for listener in listeners:
        listener(k, t, z)


def generate(options: Options, console: Console) -> list[str]:
    """Draws, prints and keeps samples; returns their texts, those of the first prompt first.

    Raises:
        ValueError: before anything is drawn, whatever does not fit.
    """
    for name in ("html", "out"):
        if (path := getattr(options, name)) is not None:
            check_file(name, path)
    prompts = options.texts()  # before the weights, which may take minutes
    device = "cuda" if torch.cuda.is_available() else "cpu"
    saved = options.reading.open(options.run, device, options.precision)
    samples = asked(options.rows(saved, prompts), options.numbers or range(options.samples))
    draw_all(saved, options, samples, console)
    texts = [saved.tokenizer.decode(one.shown(saved)) for one in samples]
    for one, text in zip(samples, texts, strict=True):
        console.print(one.name, style="bold")
        console.print(text, markup=False)
    if options.html is not None:
        page(options, saved, samples)
        console.print(f"page: {options.html}", markup=False, soft_wrap=True)
    if options.out is not None:
        keep(options.out, options, saved, samples, texts)
    return texts


def page(options: Options, saved: LoadedModel, samples: Sequence[Sample]) -> None:
    """Writes the page of the samples that were filmed."""
    rows = list({id(one.row): one.row for one in samples}.values())
    several = len(rows) > 1
    shown = []
    for one in samples:
        if one.film is not None:
            end = max(one.row.end(one.tokens, saved.ends) - one.row.lead, 0)
            shown.append((one.name if several else one.number, one.film, end))
    how = samples[0].about(saved, options)
    if several:
        how |= {"prompt": [one.text for one in rows], "length": [one.length for one in rows]}
    write_page(options.html, saved, shown, options.run, how | {"samples": len(samples), "shown here": len(shown)})


def keep(path: Path, options: Options, saved: LoadedModel, samples: Sequence[Sample], texts: Sequence[str]) -> None:
    """Writes a line for each sample, with all that it takes to draw it again."""
    where = provenance(saved.plugins)
    lines = [
        {
            "index": one.number,
            "text": text,
            "tokens": one.tokens,
            "protocol": one.about(saved, options) | {"provenance": where},
        }
        for one, text in zip(samples, texts, strict=True)
    ]
    path.write_text("\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    with plain_errors():
        options = tyro.cli(Options, args=arguments, prog="python -m recipes.generate", description=__doc__)
        generate(options, make_console())


if __name__ == "__main__":
    main()

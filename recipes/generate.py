r"""Text from a model: unconditional, after a prompt, in the gaps of a text, or in answer to a
message.

    python -m recipes.generate runs/owt/hdlm --samples 4 --steps 256
    python -m recipes.generate runs/owt/hdlm --prompt "The weather" --sampler first_hitting
    python -m recipes.generate runs/owt/hdlm --prompt "The [MASK:3] was [MASK]." --trajectory
    python -m recipes.generate runs/owt/hdlm --sampler remask:eta=0.05 --html text.html
    python -m recipes.generate runs/owt/hdlm --prompt "The weather" --prompt "Yesterday we" --stream
    python -m recipes.generate runs/owt/hdlm --prompt "The weather" --length auto:max=512
    python -m recipes.generate runs/owt/mdlm --prompt "Born in" --regex " (19|20)[0-9]{2}" \
        --sampler left_to_right
    python -m recipes.generate runs/mnist/masks --label 3 --guidance 2 --out threes.gif
    python -m recipes.generate runs/table/columns --given "cut=Ideal,carat=1" --out rows.csv
    python -m recipes.generate runs/table/columns --impute incomplete.csv --out complete.csv

Without a gap a prompt is the beginning of a text. With gaps it is a whole text: [MASK] is one free
token, [MASK:12] are twelve, and the rest is fixed. A space before a gap belongs to the first token
in it, as in most tokenizers; behind a gap there is a space only where the text has one. Several
prompts are drawn in one batch, with the same result as each alone.
"""

import json
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.text import Text as RichText
from torch import Tensor

import ddlib as dd
from recipes.config import at_least, own_times
from recipes.console import check_file, check_inputs_kept, command, make_console, plain_errors
from recipes.data.names import names_of
from recipes.engine.provenance import provenance
from recipes.generation.calls import NetworkCalls, network_calls
from recipes.generation.constrained import Constraint
from recipes.generation.drafts import Drafts, Trace, renderer_of, show, tell
from recipes.generation.lengths import Steps
from recipes.generation.pipeline import Pipeline
from recipes.generation.prompt import Prompt, check_prompt, read_prompts
from recipes.generation.request import Request
from recipes.generation.row_samples import RowRequest, generate_rows, wants_rows
from recipes.generation.rows import TABULAR
from recipes.generation.samples import Sample, batched, draw_batch
from recipes.generation.sampling import OnStep, Sampling
from recipes.model_io import (
    LoadedModel,
    LoadOptions,
    Precision,
    make_sampler,
    one_of,
)
from recipes.visualization import write_page
from recipes.visualization.saving import (
    FASTA,
    FILMS,
    MIDI,
    PNG,
    SUFFIXES,
    check_samples,
    write_samples,
)

JSON = (".jsonl", ".json")
"""Suffixes of files with a JSON object per line; a file without a suffix is one too."""
FILMED = 16
"""Maximum number of samples on a page."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of ``python -m recipes.generate``."""

    run: tyro.conf.Positional[str | None] = None
    """Folder of a run or of weights, or owner/name on the Hugging Face hub, also of a third-party
    denoiser.
    """
    model: str | None = None
    """The same as a named option, in place of the positional one."""
    prompt: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Beginning of the text; or, with [MASK] or [MASK:12] in it, the text whose gaps are filled.
    Once per prompt.
    """
    prompts: Path | None = None
    """File with a prompt on each line, in place of --prompt."""
    chat: bool = False
    """A prompt is a user's message to the model, which answers; for tokenizers with a chat
    template.
    """
    system: str | None = None
    """System message of a chat."""
    given: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Values of a sample that are kept, for data with several alphabets: "age=40,sex=F" of a table,
    "size=12,node[0]=N" of a graph; quoted as in CSV where they have commas, and empty for a missing
    value. Several are joined.
    """
    impute: Path | None = None
    """Table, .csv or .parquet, whose missing values are drawn, once for each row."""
    unknown: bool = False
    """Allow symbols of a prompt that the tokenizer lacks: they become its unknown token, or are
    dropped.
    """
    samples: int = 4
    """Samples per prompt."""
    length: int | str | None = None
    """Tokens of a sequence; by default as in training, drawn where lengths differ and have no end,
    or for a third-party
    model as many as a prompt requires. Or a rule that finds it: auto:max=1024, rho_eos:low=0.3,
    daedal:start=32."""
    regex: str | None = None
    """Regular expression that the text behind each prompt matches, or the whole text of a prompt
    with gaps.
    """
    json_schema: Path | None = None
    """File with a JSON schema, in place of --regex."""
    new: int | None = None
    """Tokens behind each prompt without gaps, in place of --length."""
    sampling: Annotated[Sampling, tyro.conf.arg(name="")] = field(default_factory=Sampling)
    precision: Precision = "float32"
    """Precision of the network; draws are always made in float64."""
    batch: int = 16
    """Samples drawn at a time; affects only memory and speed."""
    seed: int = 0
    numbers: tuple[int, ...] = ()
    """Numbers of the samples, in place of 0, 1, 2 and so on; a sample depends on its number, not on
    the others.
    """
    stream: bool = False
    """Show the texts after each step, redrawn in place on a terminal."""
    trajectory: bool = False
    """Show the denoising trajectory of the first sample."""
    html: Path | None = None
    """File for a page to view in a browser: the denoising trajectories, and the probability of
    every draw.
    """
    reading: Annotated[LoadOptions, tyro.conf.arg(name="")] = field(default_factory=LoadOptions)
    out: Path | None = None
    """File for the samples, one JSON object per line, each with all settings to draw it again. For
    a model of symbols also a picture (.png), a film of pictures (.gif, .apng), music (.mid),
    .fasta, or one sample a line (.smi, .txt). For rows of several alphabets .csv or .parquet.
    """

    def __post_init__(self) -> None:
        object.__setattr__(self, "run", one_of(self.run, self.model))
        object.__setattr__(self, "model", None)  # so that replace() gets one of the two
        texts = (self.prompt,) if isinstance(self.prompt, str) else tuple(self.prompt or ())
        object.__setattr__(self, "prompt", texts)  # a single prompt may be a plain string
        at_least(1, samples=self.samples, batch=self.batch)
        check_inputs_kept(
            {name: getattr(self, name) for name in ("prompts", "impute", "json_schema")},
            {"out": self.out, "html": self.html},
        )
        if self.request.rule is not None and (
            self.html is not None or (self.out is not None and self.out.suffix in FILMS)
        ):
            raise ValueError(
                f"length={self.length!r}: not with a page or a film, which show fixed positions"
            )
        if self.out is not None and self.out.suffix not in ("", *JSON, *SUFFIXES, *TABULAR):
            raise ValueError(
                f"out={self.out}: must end in {JSON[0]}, or for a model of symbols in "
                f"{', '.join((*SUFFIXES, *TABULAR))}"
            )
        if any(not values.strip() for values in self.given):
            raise ValueError("given='': states no value, must be NAME=VALUE; leave it out for none")
        if self.given and self.impute is not None:
            raise ValueError(f"impute={self.impute}: not with given={self.known!r}, choose one")
        if texts and self.prompts is not None:
            raise ValueError(
                f"prompts={self.prompts}: not with prompt={texts[0]!r}, give all prompts by one of "
                "them"
            )
        if self.system is not None and not self.chat:
            raise ValueError(f"system={self.system!r}: only with --chat")
        if self.chat and not texts and self.prompts is None:
            raise ValueError("chat: requires a message, given by --prompt")
        for text in texts:
            check_prompt(self.as_prompt(text))

    @property
    def known(self) -> str | None:
        """Values that are kept, as one text; None for none."""
        return ",".join(self.given) or None

    def as_prompt(self, text: str) -> Prompt:
        """Return the prompt of a text: itself, or a chat whose message it is."""
        if not self.chat:
            return text
        before = [] if self.system is None else [{"role": "system", "content": self.system}]
        return [*before, {"role": "user", "content": text}]

    @cached_property
    def request(self) -> Request:
        """The request for the samples."""
        constrained = self.regex is not None or self.json_schema is not None
        return Request(
            sampling=self.sampling,
            seed=self.seed,
            numbers=self.numbers or range(self.samples),
            length=self.length,
            new=self.new,
            constraint=Constraint(self.regex, self.json_schema) if constrained else None,
            given=self.known,
            unknown=self.unknown,
        )

    def about(self, saved: LoadedModel, sample: Sample) -> dict[str, Any]:
        """Return all settings that determine a sample except its number."""
        request = self.request
        others = self.reading.options_of_results() | (
            {} if request.rule is None else {"length": self.length}
        )
        others |= {} if request.constraint is None else request.constraint.setting
        others |= {} if self.known is None else {"given": self.known}
        others |= {"chat": True, "system": self.system} if sample.row.chat else {}
        return sample.about(saved, self.sampling, self.seed, others)

    def all_prompts(self) -> list[Prompt]:
        """Return the prompts, None for an unconditional sample.

        Raise OSError or ValueError for a file without any.
        """
        texts = self.prompt if self.prompts is None else read_prompts(self.prompts)
        prompts = [self.as_prompt(text) for text in texts]
        for prompt in prompts:
            check_prompt(prompt)
        return prompts or [None]


def draw_all(
    pipeline: Pipeline,
    options: Options,
    samples: Sequence[Sample],
    console: Console,
) -> None:
    """Draw the samples, in batches as large as possible, and show or record their states."""
    saved = pipeline.model
    request = options.request
    render = renderer_of(saved) if options.stream else None
    sampler = make_sampler(saved, options.sampling.sampler)
    recorded = options.html is not None or (options.out is not None and options.out.suffix in FILMS)
    rule = None if request.rule is None else request.rule.rule(saved)
    automaton = pipeline.automaton(samples, request)
    trace = Trace()
    filmed = 0
    for group in batched(
        saved, samples, options.sampling, options.batch, constrained=automaton is not None
    ):
        mine = [samples[place] for place in group]
        film = None
        follow: list[OnStep] = []
        if options.trajectory and 0 in group:
            follow.append(
                partial(trace.keep, group.index(0), samples[0].row.length - samples[0].row.lead)
            )
        if rule is not None:
            follow.append(steps := Steps(saved.process.vocab_size))
        with (
            nullcontext()
            if render is None
            else Drafts(console, [one.name for one in mine], partial(_show, render, mine))
        ) as drafts:
            follow += [] if drafts is None else [drafts]
            on_step = partial(tell, follow) if follow else None
            if recorded and filmed < FILMED:
                film = dd.contrib.Filmed(sampler, FILMED - filmed, on_step)
                on_step = film.on_step
            drawn = draw_batch(
                saved,
                mine,
                options.sampling,
                options.seed,
                on_step,
                sampler if film is None else film,
                rule,
                automaton,
            )
        for place, one in enumerate(mine):
            one.steps = 0 if rule is None else steps.of[place]
        texts = [] if film is None else film.end(drawn[:, mine[0].row.lead :])
        for one, text in zip(mine, texts, strict=False):
            one.film = text.first(one.row.length - one.row.lead)
            filmed = filmed + 1
    if options.trajectory:
        show(saved, trace, console)


def _show(
    render: Callable[[Tensor], RichText], samples: Sequence[Sample], place: int, z: Tensor
) -> RichText:
    return render(samples[place].row.drafted(z))


def generate(options: Options, console: Console) -> list[str]:
    """Draw, print and save samples; return their texts, those of the first prompt first.

    Raises:
        ValueError: before anything is drawn, for anything that does not fit.
    """
    for name in ("html", "out"):
        if (path := getattr(options, name)) is not None:
            check_file(name, path)
    prompts = options.all_prompts()  # before loading the weights, which may take minutes
    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = options.reading.find(options.run, device, options.precision)
    saved = found.files
    asked = vars(options) | {"given": options.known}
    if wants_rows(asked, {one.name: one.default for one in fields(Options)}, saved):
        wanted = RowRequest(options.known, options.impute, tuple(options.request.numbers))
        return generate_rows(
            found, wanted, options.sampling, options.seed, options.batch, options.out, console
        )
    if (
        to_file := options.out is not None
        and saved.layout is not None
        and options.out.suffix in SUFFIXES
    ):
        symbols = names_of(saved.tokenizer, saved.layout.ends)
        check_samples(options.out, symbols, saved.layout)
    elif options.out is not None and options.out.suffix in (*PNG, *FILMS, *MIDI, *FASTA):
        raise ValueError(
            f"out={options.out}: {saved.name} generates text, whose file has a JSON object per "
            "line: must end in .jsonl"
        )
    pipeline = Pipeline(found, options.batch)
    samples = pipeline.samples(prompts, options.request)
    saved = pipeline.model
    if options.html is not None:
        check_page(saved, options.sampling, samples)
    rule = options.request.rule
    with nullcontext(NetworkCalls()) if rule is None else network_calls(saved.model) as counter:
        draw_all(pipeline, options, samples, console)
    texts = [one.text(saved) for one in samples]
    for one, text in zip(samples, texts, strict=True):
        console.print(one.name, style="bold")
        console.print(text, markup=False)
    if rule is not None:
        sizes = [len(one.shown_tokens(saved)) for one in samples]
        calls = counter.sequences / len(samples)
        console.print(
            f"tokens: {', '.join(map(str, sizes))}; network calls per sample: {calls:.1f}",
            soft_wrap=True,
        )
    if options.html is not None:
        page(options, saved, samples)
        console.print(f"page: {options.html}", markup=False, soft_wrap=True)
    if options.out is not None:
        if to_file:
            arrays = [np.array(one.shown_tokens(saved)) for one in samples]
            films = [one.film for one in samples if one.film]
            files = write_samples(
                options.out, arrays, symbols, saved.layout, process=saved.process, films=films
            )
            console.print(f"samples: {', '.join(map(str, files))}", markup=False, soft_wrap=True)
        else:
            keep(options.out, options, saved, samples, texts)
    return texts


def check_page(saved: LoadedModel, sampling: Sampling, samples: Sequence[Sample]) -> None:
    """Raise ValueError for a pace whose states a page cannot show."""
    for length in dict.fromkeys(one.row.length - one.row.lead for one in samples):
        pace = sampling.order(saved, length)
        if pace.block is None and own_times(pace, length):
            raise ValueError(
                f"html: not with pace={pace!r}, as a page shows texts or blocks with a single "
                "time; --trajectory supports any pace"
            )


def page(options: Options, saved: LoadedModel, samples: Sequence[Sample]) -> None:
    """Write the page of the recorded samples."""
    rows = list({id(one.row): one.row for one in samples}.values())
    several = len(rows) > 1
    shown = []
    for one in samples:
        if one.film is not None:
            end = max(one.row.end(one.tokens, saved.ends) - one.row.lead, 0)
            shown.append((one.name if several else one.number, one.film, end))
    settings = options.about(saved, samples[0])
    if several:
        settings |= {"prompt": [one.text for one in rows], "length": [one.length for one in rows]}
    write_page(
        options.html,
        saved,
        shown,
        options.run,
        settings | {"samples": len(samples), "shown here": len(shown)},
    )


def keep(
    path: Path,
    options: Options,
    saved: LoadedModel,
    samples: Sequence[Sample],
    texts: Sequence[str],
) -> None:
    """Write a line for each sample, with all settings to draw it again."""
    where = provenance(saved.plugins)
    lines = [
        dict(
            index=one.number,
            text=text,
            tokens=one.tokens,
            protocol=options.about(saved, one) | {"provenance": where},
        )
        | (
            {}
            if options.request.rule is None
            else {"length": len(one.shown_tokens(saved)), "steps": one.steps}
        )
        for one, text in zip(samples, texts, strict=True)
    ]
    path.write_text(
        "\n".join(json.dumps(line, ensure_ascii=False) for line in lines) + "\n", encoding="utf-8"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    with plain_errors():
        options = tyro.cli(
            Options, args=arguments, prog="python -m recipes.generate", description=__doc__
        )
        generate(options, make_console())


if __name__ == "__main__":
    command(main)

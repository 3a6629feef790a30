"""From text to text: prompts, chats and texts with gaps through a trained model."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

import ddlib as dd
from ddlib.samplers import Sampler
from ddlib.typing import Denoiser
from recipes.config import at_least, check_keys, of_types
from recipes.generation import scores
from recipes.generation.constrained import begun
from recipes.generation.drafts import mean_times, renderer_of
from recipes.generation.given import Conditions
from recipes.generation.prompt import (
    Conversation,
    Prompt,
    Row,
    check_gaps,
    check_known,
    check_whole,
    has_gaps,
    listed,
    row,
    texts_of,
)
from recipes.generation.request import Request, TextOptions
from recipes.generation.samples import Sample, batched, draw_batch, to_draw, until
from recipes.generation.sampling import OnStep
from recipes.generation.scores import Score, document
from recipes.generation.steps import follow
from recipes.model_io import (
    FoundModel,
    LoadedModel,
    LoadOptions,
    ModelFiles,
    Precision,
    check_order,
    make_order,
)


@dataclass(frozen=True)
class Generated:
    """A text that was drawn."""

    text: str
    """The text; for messages the answer."""
    prompt: int
    """Place of its prompt among those of the call."""
    number: int
    """Number of the sample: the same number draws the same text, whatever else is drawn."""
    tokens: tuple[int, ...]
    """Tokens of the whole row, with the prompt and special ones."""
    ended: bool
    """Whether the text ends by itself or by a stop string, not at the end of its row."""
    fills: tuple[str, ...] = ()
    """Text of each gap of the prompt, in their order."""


@dataclass(frozen=True)
class Draft:
    """State of a text while it is drawn."""

    text: str
    """Text so far, with _ at each position that is not a token."""
    prompt: int
    number: int
    time: float
    """Mean time of the positions, from 1 at noise to 0."""
    result: Generated | None = None
    """The text, in the last draft of a sample."""


class Pipeline:
    """A model and its tokenizer, from text to text.

    Every method takes one prompt or a list of any length. A text is a function of its prompt, the
    options, the seed and its number: batches change it by rounding only.

    What the files of the model show that it cannot do, such as answer messages without a chat
    template, is refused before its network is loaded, which happens at the first text or score.

    Args:
        model: the model, loaded or not.
        batch_size: samples that are drawn at a time.

    Raises:
        ValueError: a batch size below 1.
    """

    def __init__(self, model: LoadedModel | FoundModel, batch_size: int = 16) -> None:
        at_least(1, batch_size=batch_size)
        self._found = model
        self.batch_size = batch_size

    @property
    def files(self) -> ModelFiles:
        """What the files of the model state; the model itself if it was loaded before."""
        return self._found.files if isinstance(self._found, FoundModel) else self._found

    @cached_property
    def model(self) -> LoadedModel:
        """The model; its network is loaded at the first access."""
        return self._found.load() if isinstance(self._found, FoundModel) else self._found

    def check(self, prompts: Sequence[Prompt], request: Request) -> None:
        """Check what does not depend on the network.

        Raises:
            ValueError: symbols that the tokenizer lacks; messages without a chat template; gaps
                without a mask; given values with a prompt; a rule for lengths or endings without an
                end of text; a sampler that does not support the process; forbidden texts of several
                tokens.
        """
        for prompt in prompts:
            if prompt is not None and request.given is not None:
                raise ValueError(f"given={request.given!r}: not with a prompt, choose one")
            for name, text in texts_of(prompt):
                check_known(self.files, name, text, request.unknown)
            if has_gaps(prompt):
                check_gaps(self.files)
            elif prompt is not None and not isinstance(prompt, str):
                self.files.chat(prompt)
        request.sampling.check_files(self.files)
        if request.rule is not None:
            request.rule.rule(self.files)

    def rows(self, prompts: Sequence[Prompt], request: Request) -> list[Row]:
        """Return the row of each prompt, after checking that the model supports the request.

        Raises:
            ValueError: before anything is drawn, for anything that does not fit.
        """
        self.check(prompts, request)
        saved = self.model
        pace = request.sampling.pace_of(saved)
        length = request.length
        if request.rule is not None:
            length = request.rule.largest_length(saved, request.sampling, prompts)
        assert not isinstance(length, str)
        rows = [row(saved, prompt, pace, length, request.new) for prompt in prompts]
        if request.constraint is not None:
            rows = [begun(saved, one) for one in rows]
        for count in dict.fromkeys(one.length - one.lead for one in rows):
            request.sampling.course(saved, count)
        return rows

    def samples(self, prompts: Sequence[Prompt], request: Request) -> list[Sample]:
        """Return the samples of each prompt, after the checks of ``rows``."""
        free = request.length is None and request.new is None
        conditions = Conditions.of(self.files.layout, request.given)
        rows = self.rows(prompts, request)
        of_any_length = free and self.files.draws_lengths
        return to_draw(self.model, rows, request.numbers, request.seed, of_any_length, conditions)

    def automaton(self, samples: Sequence[Sample], request: Request) -> dd.contrib.Automaton | None:
        """Return the automaton of the constraint; None without one.

        Raises:
            ValueError: as in ``Constraint.automaton_of``.
        """
        if request.constraint is None:
            return None
        rows = list({id(one.row): one.row for one in samples}.values())
        return request.constraint.automaton_of(self.model, request.sampling, rows)

    def generate(
        self,
        prompts: Prompt | Sequence[Prompt] = None,
        *,
        each: Sequence[Mapping[str, Any]] = (),
        **options: Any,
    ) -> list[Generated]:
        """Draw texts: behind prompts, in the gaps of texts, or in answer to messages.

        Prompts with other options than the rest share its network calls
        (``ddlib.contrib.Batcher``): when a text is finished, the next one takes its place.

        Args:
            prompts: a prompt, or a list of them: the beginning of a text; a text with gaps, [MASK]
                or [MASK:3]; the messages of a chat; None for a text without a prompt.
            each: options of each prompt, in place of those for all; by default all have the same.
            options: those of ``TextOptions`` and ``Sampling``.

        Returns:
            the texts, those of the first prompt first.

        Raises:
            ValueError: before anything is drawn, for an option or a prompt that is invalid or that
                the model does not support.
        """
        drawings = self._drawings(prompts, each, options)
        self._draw(drawings)
        texts = [one.result(place) for one in drawings for place in range(len(one.samples))]
        return sorted(texts, key=lambda one: one.prompt)

    def chat(
        self, messages: Conversation | Sequence[Conversation], **options: Any
    ) -> list[Generated]:
        """Draw the next message of one chat or of several.

        Args:
            messages: those of a chat, each with its ``role`` and its ``content``, or a list of
                chats.
            options: as in ``generate``.

        Raises:
            TypeError: a prompt that is not messages.
            ValueError: as in ``generate``; a tokenizer without a chat template.
        """
        for prompt in listed(messages):
            if prompt is None or isinstance(prompt, str):
                raise TypeError(
                    f"messages: {prompt!r} must be messages, each with role and content; "
                    "generate takes texts"
                )
        return self.generate(messages, **options)

    def infill(self, texts: str | Sequence[str], **options: Any) -> list[Generated]:
        """Fill the gaps of one text or of several: [MASK] is one free token, [MASK:3] are three.

        The rest of a text is fixed. ``Generated.fills`` are the texts of the gaps.

        Args:
            texts: texts with gaps.
            options: as in ``generate``.

        Raises:
            ValueError: as in ``generate``; a text without a gap; a process without a mask.
        """
        for text in listed(texts):
            if not has_gaps(text):
                raise ValueError(
                    f"texts: {text!r} has no gap, must have one, as [MASK] or [MASK:3]; generate "
                    "takes prompts"
                )
        return self.generate(texts, **options)

    def stream(
        self,
        prompts: Prompt | Sequence[Prompt] = None,
        *,
        each: Sequence[Mapping[str, Any]] = (),
        **options: Any,
    ) -> Iterator[Draft]:
        """Yield a draft of every text after each step; the texts are those of ``generate``.

        The last draft of a text has its ``result``. The texts of a batch come together, batch after
        batch. An iterator that is closed stops drawing.

        Args:
            prompts: as in ``generate``.
            each: as in ``generate``.
            options: as in ``generate``.

        Raises:
            ValueError: as in ``generate``, at the call.
        """
        return self._drafts(self._drawings(prompts, each, options))

    def score(
        self,
        texts: str | Sequence[str],
        *,
        likelihood: str | None = None,
        draws: int = 16,
        seed: int = 0,
        unknown: bool = False,
    ) -> list[Score]:
        """Measure -log p of one text or of several: its bound, or itself by an order.

        A text stands between the beginning and the end of a document, as in training, and a score
        does not depend on the other texts.

        Args:
            texts: the texts.
            likelihood: short string of an order, such as "left_to_right", for the exact value with
                a network call per token and level; None for the bound.
            draws: draws of time and noise for each bound.
            seed: seed of times and noise.
            unknown: whether symbols that the tokenizer lacks are accepted.

        Raises:
            TypeError, ValueError: before anything is measured: another type; a gap; more tokens
                than the sequences of the model have; symbols that the tokenizer lacks; an order
                without an exact likelihood.
        """
        of_types(Pipeline.score, likelihood=likelihood)
        draws, seed = of_types(Pipeline.score, draws=draws, seed=seed).values()
        unknown = of_types(Pipeline.score, unknown=unknown)["unknown"]
        at_least(1, draws=draws)
        at_least(0, seed=seed)
        several = listed(texts)
        for text in several:
            check_whole("texts", text)
            check_known(self.files, "texts", text, unknown)
        if likelihood is not None:
            check_order(self.files, likelihood)
        saved = self.model
        order = None if likelihood is None else make_order(saved, likelihood, pace=saved.pace)
        documents = [document(saved, text) for text in several]
        if order is not None:
            return list(scores.likelihood(saved, documents, order, self.batch_size))
        return [scores.bound(saved, one, draws, seed, self.batch_size) for one in documents]

    def _drafts(self, drawings: Sequence["Drawing"]) -> Iterator[Draft]:
        render = renderer_of(self.model)
        for drawing, places, t, z in follow(partial(self._draw, drawings)):
            if t is None:
                for place in places:
                    result = drawing.result(place)
                    yield Draft(result.text, result.prompt, result.number, 0.0, result)
                continue
            for place, time, states in zip(places, mean_times(t), z.cpu(), strict=True):
                one = drawing.samples[place]
                text = render(one.row.drafted(states)).plain
                yield Draft(text, drawing.prompt_of(place), one.number, time)

    def _draw(
        self, drawings: Sequence["Drawing"], report: Callable[..., None] | None = None
    ) -> None:
        """Draw the samples of several drawings: those of one by batches, those of several one by
        one, with joint network calls.

        Args:
            drawings: each with its options.
            report: takes drawing, places, times and states after each step, and None for the last
                two at the end.
        """
        if len(drawings) < 2:
            for drawing in drawings:
                for places in drawing.batches():
                    drawing.draw_through(None, places, report)
            return
        alone = [
            partial(drawing.draw_through, places=[place], report=report)
            for drawing in drawings
            for place in range(len(drawing.samples))
        ]
        saved = self.model
        rows = call_rows(self.batch_size)
        with dd.contrib.Batcher(saved.denoiser, rows, call_lengths(saved.length)) as batcher:
            batcher.run(alone)

    def _drawings(
        self,
        prompts: Prompt | Sequence[Prompt],
        each: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
    ) -> list["Drawing"]:
        """Return the samples of a call by their options, after all checks."""
        several = listed(prompts)
        of_types(Pipeline.generate, each=each)
        if each and len(each) != len(several):
            raise ValueError(
                f"each: holds {len(each)} options, must be {len(several)}, those of each prompt"
            )
        ways = [TextOptions.of({**options, **own}) for own in each or [{}]]
        if not each:
            return [self.drawing(several, ways[0])]
        places: dict[str, list[int]] = {}
        for place, one in enumerate(ways):
            places.setdefault(repr(one), []).append(place)
        return [
            replace(self.drawing([several[k] for k in alike], ways[alike[0]]), prompts=alike)
            for alike in places.values()
        ]

    def drawing(self, prompts: Prompt | Sequence[Prompt], ways: TextOptions) -> "Drawing":
        """Return the samples of a call, which are to be drawn, after all checks.

        Raises:
            ValueError: as in ``generate``.
        """
        each = listed(prompts)
        for prompt in each:
            ways.check(prompt)
        samples = self.samples(each, ways.request)
        automaton = self.automaton(samples, ways.request)
        return Drawing(self, ways, samples, automaton, range(len(each)))


@dataclass(frozen=True)
class Drawing:
    """Samples of one call of a pipeline, to be drawn batch by batch."""

    pipeline: Pipeline
    options: TextOptions
    samples: Sequence[Sample]
    automaton: dd.contrib.Automaton | None
    prompts: Sequence[int]
    """Places of its prompts among those of the call."""

    def through(self, denoiser: Denoiser) -> "Drawing":
        """Return the same drawing by another form of the model's network."""
        model = replace(self.pipeline.model, denoiser=denoiser)
        return replace(self, pipeline=Pipeline(model, self.pipeline.batch_size))

    def batches(self) -> Iterator[list[int]]:
        """Yield the places of samples that are drawn in one batch."""
        yield from batched(
            self.pipeline.model,
            self.samples,
            self.options.sampling,
            self.pipeline.batch_size,
            self.automaton is not None,
        )

    def draw(
        self,
        places: Sequence[int],
        on_step: OnStep | None = None,
        sampler: Sampler | None = None,
    ) -> Int[Tensor, "B L"]:
        """Draw the samples at these places; arguments as in ``draw_batch``."""
        saved = self.pipeline.model
        rule = self.options.request.rule
        return draw_batch(
            saved,
            [self.samples[place] for place in places],
            self.options.sampling,
            self.options.seed,
            on_step,
            sampler,
            rule=None if rule is None else rule.rule(saved),
            constraint=self.automaton,
        )

    def draw_through(
        self,
        denoiser: Denoiser | None,
        places: Sequence[int],
        report: Callable[..., None] | None,
    ) -> None:
        """Draw samples by a form of the network; ``report`` is that of ``Pipeline._draw``."""
        drawing = self if denoiser is None else self.through(denoiser)
        if report is None:
            drawing.draw(places)
            return
        drawing.draw(places, lambda k, t, z: report(self, places, t, z))
        report(self, places, None, None)

    def prompt_of(self, place: int) -> int:
        """Return the place of a sample's prompt."""
        return self.prompts[place // self.options.num_return_sequences]

    def result(self, place: int) -> Generated:
        """Return the text of a sample that was drawn."""
        saved = self.pipeline.model
        one = self.samples[place]
        new = self.options.max_new_tokens
        before, behind = one.parts(saved, new)
        text = until(behind, self.options.stop_strings)
        tokens = one.limited(new)
        ended = text != behind or one.row.end(tokens, saved.ends) < len(tokens)
        return Generated(
            before + text if self.options.return_full_text else text,
            self.prompt_of(place),
            one.number,
            tuple(one.tokens),
            ended,
            tuple(map(saved.tokenizer.decode, one.fills(saved))),
        )


def call_rows(most: int) -> list[int]:
    """Return the numbers of rows of joint network calls: powers of two, and the largest."""
    return [2**k for k in range(most.bit_length()) if 2**k < most] + [most]


def call_lengths(longest: int) -> list[int]:
    """Return the lengths of joint network calls: 32, 48, 64, 96 and so on, and the largest."""
    steps = [size << k for k in range(longest.bit_length()) for size in (32, 48)]
    return [length for length in steps if length < longest] + [longest]


def pipeline(
    model: str | Path,
    *,
    device: str | torch.device | None = None,
    precision: Precision = "float32",
    batch_size: int = 16,
    **reading: Any,
) -> Pipeline:
    """Find a model for texts: a run, its weights, a published folder, or a third-party denoiser.

    Args:
        model: folder, or owner/name on the hub.
        device: for the network; by default CUDA if there is any.
        precision: precision of the network's products; for a third-party model of its weights too.
        batch_size: sequences at a time; affects only memory and speed.
        reading: fields of ``LoadOptions``: ``trust``, ``revision``, ``family``, ``mask_token``,
            ``block_size``.

    Raises:
        FileNotFoundError, OSError, PermissionError, ValueError: as in ``open_saved``.
    """
    check_keys("pipeline:", reading, LoadOptions)
    options = LoadOptions(**of_types(LoadOptions, **reading))
    of_types(pipeline, model=model, precision=precision)
    batch_size = of_types(pipeline, batch_size=batch_size)["batch_size"]
    return Pipeline(options.find(str(model), usable_device(device), precision), batch_size)


def usable_device(device: str | torch.device | None) -> str | torch.device:
    """Return a device after checking that torch supports it; by default CUDA if there is any.

    Raises:
        ValueError: it does not.
    """
    where = device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=where)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(f"device={device!r}: {error}") from error
    return where

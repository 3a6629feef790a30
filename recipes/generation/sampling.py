"""Sampling from a trained model: options and draws."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Int
from torch import Tensor

import ddlib as dd
from ddlib.contrib import Cache, Length
from ddlib.guidance import ClassifierFree
from ddlib.paces import Pace
from ddlib.samplers import UnsupportedError
from ddlib.typing import Denoiser
from recipes.config import at_least, fitting, make_pace
from recipes.engine.model_protocols import supported_pace
from recipes.generation.prompt import check_known
from recipes.metrics.conditioned import with_label
from recipes.model_io import LoadedModel, ModelFiles, check_sampler, make_sampler, with_padding

NOISE = 2**62
"""Number of the step whose noise samples use; passes over a corpus have small ones."""

OnStep = Callable[[int, Tensor, Tensor], None]
Scheduled = float | tuple[float, float]
"""A number, or two: at noise and at data, interpolated in between."""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Options of sampling."""

    steps: int = 128
    """Steps of the sampler; with blocks the steps of each block."""
    pace: str | None = None
    """Schedule of positions: together, blocks:size=16, left_to_right, .... By default as the model
    was trained.
    """
    keep: str | None = None
    """Approximate cache at a pace of blocks: prefix, dual, or dual:refresh=4, refreshed after 4
    calls of a block. By default exact caches alone.
    """
    sampler: str = "ancestral"
    """A name that ``python -m ddlib`` lists or package.module:object, with options:
    ancestral:force_transition=true
    """
    spacing: Literal["time", "jumps"] = "time"
    """Equal steps in time, or with equally many expected jumps in each step, for hierarchies."""
    temperature: Scheduled = 1.0
    """Temperature of all distributions that are sampled; 0 is greedy. Two numbers: at the start,
    and at the end.
    """
    top_p: Scheduled = 1.0
    """Keep the fewest tokens with this total probability. Two numbers: at the start, and at the
    end.
    """
    top_k: int | None = None
    """Keep this many of the most probable tokens."""
    min_p: float = 0.0
    """Keep tokens whose probability is at least this share of the largest."""
    repetition_penalty: float = 1.0
    """Divide the probability of a token that occurs elsewhere in the sequence by this number."""
    forbidden: tuple[str, ...] = ()
    """Tokens that are never drawn, as text: " Boston" with its space is another token than
    "Boston".
    """
    end: Literal["free", "last"] = "free"
    """free: any token may follow the end of a text, as in rows of several texts; last: only padding
    follows it.
    """
    min_tokens: int = 0
    """No text ends before this many tokens of its row."""
    label: str | None = None
    """Class of the samples, by its name or number, for a model that was trained with labels; by
    default none.
    """
    guidance: float = 1.0
    """Strength of classifier-free guidance towards the label: 0 ignores the label, above 1
    strengthens it.
    """
    guidance_on: Literal["tokens", "states"] = "tokens"
    """Distribution that is guided: of the clean token, or of the next state."""
    guidance_interval: tuple[float, float] = (0.0, 1.0)
    """Times between which samples are guided; outside, they depend on the label without
    guidance.
    """
    memory: bool = False
    """Each call of the network takes the features of the previous one; for a model trained with
    loss.memory.
    """
    stop_entropy: float | None = None
    """Stop early: when no most probable token changed in a step, and their mean entropy in nats is
    at most this.
    """

    def __post_init__(self) -> None:
        at_least(1, steps=self.steps, top_k=1 if self.top_k is None else self.top_k)
        at_least(1, repetition_penalty=self.repetition_penalty)
        at_least(
            0,
            min_tokens=self.min_tokens,
            stop_entropy=self.stop_entropy or 0,
            guidance=self.guidance,
        )
        for value in _both(self.temperature):
            at_least(0, temperature=value)
        for value in _both(self.top_p):
            dd.controls.Truncation(top_p=value)
        if not 0 <= self.min_p <= 1:
            raise ValueError(f"min_p={self.min_p}: must lie in [0, 1]")
        if self.label is None and self.guidance != 1:
            raise ValueError(f"guidance={self.guidance}: must be 1 without a label, given by label")
        low, high = self.guidance_interval
        if not 0 <= low < high <= 1:
            raise ValueError(
                f"guidance_interval={low, high}: must be two times in [0, 1], the earlier first"
            )
        if self.guidance == 1 and (low, high) != (0, 1):
            raise ValueError(
                f"guidance_interval={low, high}: has no effect at guidance=1, the conditional "
                "network"
            )
        check_sampler(self.sampler)
        if self.pace is not None:
            make_pace(self.pace)
        if self.keep is not None:
            Cache(self.keep)

    def pace_of(self, saved: LoadedModel) -> Pace:
        """Return the pace of the options, or that of the model.

        Raises:
            ValueError: blocks that differ from those of a third-party model.
        """
        if self.pace is None:
            return saved.pace
        pace = make_pace(self.pace)
        seen = getattr(saved.model, "block_size", 0)
        if pace.block is not None and saved.undecided:
            raise ValueError(
                f"pace={self.pace!r}: the files do not determine whether {saved.name} was trained "
                "by blocks. Pass "
                f"block_size={pace.block} if it was, block_size=0 if all positions attend to each "
                "other (--block-size)"
            )
        # for a run, the recipe determines the default, and another pace is another measurement
        if pace.block is not None and seen and saved.recipe is None and seen % pace.block:
            raise ValueError(
                f"pace={self.pace!r}: {saved.name} has blocks of {seen}, block_size={seen}: must "
                "be a divisor of it"
            )
        return pace

    def check_files(self, saved: ModelFiles) -> None:
        """Check what does not depend on the network, before it is loaded.

        Raises:
            ValueError: as in ``make_sampler``, ``endings`` and ``forbidden_tokens``; a sampler that
                does not support the process.
        """
        sampler = make_sampler(saved, self.sampler)
        try:
            sampler.check(saved.process)
        except TypeError as error:
            raise ValueError(f"sampler={self.sampler!r}: {error}") from error
        self.endings(saved)
        self.forbidden_tokens(saved)

    def order(self, saved: LoadedModel, length: int) -> Pace:
        """Return the pace after checking a sequence length.

        Raises:
            ValueError: the pace or the network does not support sequences of this length.
        """
        return supported_pace(fitting(self.pace_of(saved), length), length, saved.model)

    def course(self, saved: LoadedModel, length: int) -> Pace:
        """Return the pace after checking a sequence length and the sampler.

        Raises:
            ValueError: as in ``order``, ``make_sampler``, ``conditioned``, ``endings`` and
                ``forbidden_tokens``; a sampler that does not support the pace; ``memory`` with a
                model, guidance or pace that has none; a cache that the pace or the network does not
                support; ``min_tokens`` above the length.
        """
        if self.min_tokens > length:
            raise ValueError(
                f"min_tokens={self.min_tokens}: must be at most {length}, the tokens of a row"
            )
        pace = self.order(saved, length)
        sampler = make_sampler(saved, self.sampler)
        self.plan(saved, saved.denoiser, (1, length), sampler, pace, self.controls(saved))
        return pace

    def plan(
        self,
        saved: LoadedModel,
        denoiser: Denoiser,
        shape: tuple[int, int],
        sampler: dd.samplers.Sampler,
        pace: Pace,
        controls: Sequence[dd.controls.Control],
        **options: Any,
    ) -> Any:
        """Return the checked call of ``dd.sample`` with these options.

        Args:
            saved: the model.
            denoiser: its network, or a wrapper of it.
            shape: (B, L) of the samples.
            sampler: the sampler.
            pace: see ``order``.
            controls: ``controls``, and those of the samples.
            options: further arguments of ``dd.plan``.

        Raises:
            ValueError: a part that the others do not support, by its option.
        """
        network = self.condition(saved, denoiser)
        try:
            return dd.plan(
                saved.process,
                network,
                shape,
                sampler,
                self.times(saved, sampler),
                pace=pace,
                # a network that is guided may state another meaning than its model
                parameterization=getattr(network, "parameterization", None)
                or saved.parameterization,
                controls=controls,
                **options,
            )
        except UnsupportedError as error:
            option = f"sampler={self.sampler!r}"
            if isinstance(error.part, dd.controls.Memory):
                option = "memory=True"
            if isinstance(error.part, Cache):
                option = f"keep={self.keep!r}"
            raise ValueError(f"{option}: {error}") from error

    def times(self, saved: LoadedModel, sampler: dd.samplers.Sampler) -> int | Tensor:
        """Return the steps, or their times if ``spacing`` sets them.

        Raises:
            ValueError: times with equally many expected jumps for a process or a sampler that has
                none.
        """
        if self.spacing == "time":
            return self.steps
        if not (
            isinstance(saved.process, dd.processes.LevelProcess) and sampler.guarantees.by_times
        ):
            raise ValueError(
                f"spacing='jumps': {self.sampler} or {saved.process!r} has no such times; must be "
                "'time'"
            )
        return dd.samplers.equal_jump_times(saved.process, self.steps)

    def controls(self, saved: LoadedModel) -> list[dd.controls.Control]:
        """Return the controls of a call of ``dd.sample`` with these options.

        Raises:
            ValueError: as in ``endings`` and ``forbidden_tokens``.
        """
        truncation = dd.controls.Truncation(
            _over_time(self.temperature), _over_time(self.top_p), self.top_k, self.min_p
        )
        return [
            truncation,
            dd.controls.Forbidden(self.forbidden_tokens(saved)),
            dd.controls.RepetitionPenalty(self.repetition_penalty),
            *self.endings(saved),
            *([dd.controls.Memory()] if self.memory else []),
            *([] if self.keep is None else [Cache(self.keep)]),
        ]

    def endings(self, saved: ModelFiles) -> list[dd.controls.Ending]:
        """Return the rules for finishing a sequence of this model early.

        Raises:
            ValueError: a rule on its end, and the model has no end token.
        """
        parts = list[dd.controls.Ending]()
        last = self.end == "last"
        if last or self.min_tokens:
            ends = saved.special.ends
            if not ends:
                raise ValueError(
                    f"end={self.end!r}, min_tokens={self.min_tokens}: {saved.name} has no end of "
                    "text"
                )
            parts += [
                dd.controls.EndOfText(
                    token, self.min_tokens, last=last, fill=saved.behind if last else None
                )
                for token in ends
            ]
        return (
            parts if self.stop_entropy is None else [*parts, dd.controls.Settled(self.stop_entropy)]
        )

    def condition(self, saved: LoadedModel, denoiser: Denoiser) -> Denoiser:
        """Return the denoiser at the label of the options, guided towards it.

        Args:
            saved: the model.
            denoiser: its network, or a wrapper of it.

        Raises:
            ValueError: a model without labels, a class that it lacks, guidance of a network without
                a null class.
        """
        if self.label is None:
            return denoiser
        at_label = with_label(denoiser, saved.class_of(self.label))
        if self.guidance == 1:
            return at_label
        return ClassifierFree(
            saved.process,
            at_label,
            denoiser,
            self.guidance,
            self.guidance_on,
            self.guidance_interval,
            saved.parameterization,
        )

    def forbidden_tokens(self, saved: ModelFiles) -> list[int]:
        """Return the ids of the tokens that are never drawn.

        Raises:
            ValueError: a text that is not one token, or has symbols that the model's tokenizer
                lacks.
        """
        token_ids = list[int]()
        for text in self.forbidden:
            check_known(saved, f"forbidden={text!r}", text)
            if len(tokens := saved.encode(text)) != 1:
                raise ValueError(
                    f"forbidden={text!r}: is {len(tokens)} tokens, must be a single token"
                )
            token_ids += tokens
        return token_ids


def draw(
    saved: LoadedModel,
    sampling: Sampling,
    seed: int,
    index: Int[Tensor, " B"],
    length: int,
    prompt: Int[Tensor, "... P"] | None = None,
    on_step: OnStep | None = None,
    sampler: dd.samplers.Sampler | None = None,
    lengths: Int[Tensor, " B"] | None = None,
    lead: int = 0,
    rule: Length | None = None,
    constraint: dd.contrib.Automaton | None = None,
) -> Int[Tensor, "B L"]:
    """Draw samples with the noise of these indices: each is independent of the others in the batch.

    Args:
        saved: the model.
        sampling: options.
        seed: seed of the noise.
        index: number of each sample, on the model's device.
        length: tokens of a sample.
        prompt: states in the format of ``dd.sample``; the mask marks free positions.
        on_step: see ``dd.sample``.
        sampler: the sampler; by default that of ``sampling``.
        lengths: tokens of each row, if some are shorter; any token of the prompt stands behind
            them. Only for a model that ``leaves_out``.
        lead: tokens at the front of the prompt, (B, P), which a model that ``leads`` encodes
            separately; ``on_step`` and the sampler get only the positions behind them.
        rule: rule for lengths up to ``length``, behind the ``lead``; None for that length.
        constraint: automaton that accepts the tokens behind the ``lead``. A sample stops behind its
            end.

    Raises:
        ValueError: a pace that the sequences, the network or the sampler do not support.
    """
    denoiser = saved.denoiser if lengths is None else with_padding(saved.denoiser, lengths)
    front = None
    if lead:
        front = prompt[:, :lead].to(index.device)
        prompt = None if prompt.shape[1] == lead else prompt[:, lead:]
        denoiser = saved.denoiser.after(front)
    sampler = make_sampler(saved, sampling.sampler) if sampler is None else sampler
    controls = sampling.controls(saved)
    if constraint is not None:
        controls += [dd.contrib.Constraint(constraint)]
        if constraint.end is not None and sampler.guarantees.supports_stopping:
            controls += [dd.controls.EndOfText(constraint.end, fill=constraint.fill)]
    if rule is not None:
        controls += [rule]
    if lengths is not None or front is not None:  # the denoiser depends on the number of a row
        controls += [dd.controls.WholeBatch()]
    plan = sampling.plan(
        saved,
        denoiser,
        (len(index), length - lead),
        sampler,
        sampling.order(saved, length - lead),
        controls,
        prompt=None if prompt is None else prompt.to(index.device),
        generator=dd.KeyedGenerator(seed, NOISE, index),
        on_step=on_step,
    )
    drawn = plan.run()
    return drawn if front is None else torch.cat([front, drawn], 1)


def _both(knob: Scheduled) -> tuple[float, ...]:
    return knob if isinstance(knob, tuple) else (knob,)


def _over_time(knob: Scheduled) -> float | Callable[[float], float]:
    if not isinstance(knob, tuple):
        return knob
    start, end = knob
    return lambda t: end + (start - end) * t

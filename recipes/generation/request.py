"""Requests of texts: what is drawn for prompts, and how."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from functools import cached_property
from pathlib import Path
from typing import Any, Self

from recipes.config import at_least, of_types
from recipes.generation.constrained import Constraint
from recipes.generation.lengths import FoundLength
from recipes.generation.prompt import Prompt, check_prompt, has_gaps
from recipes.generation.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is drawn for prompts, and how.

    Raises:
        ValueError: values out of range, or that exclude each other.
    """

    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    numbers: Sequence[int] = (0,)
    """Numbers of the samples of each prompt, which determine their noise."""
    length: int | str | None = None
    """Tokens of a sequence, or the short string of a rule that finds it; None for the model's."""
    new: int | None = None
    """Tokens behind a prompt, in place of ``length``."""
    constraint: Constraint | None = None
    """Constraint on the text."""
    given: str | None = None
    """Values of samples without a prompt, by the names of their positions."""
    unknown: bool = False
    """Whether symbols of a prompt that the tokenizer lacks are accepted."""

    def __post_init__(self) -> None:
        limits = {
            name: value
            for name in ("length", "new")
            if isinstance(value := getattr(self, name), int)
        }
        at_least(1, **limits)
        at_least(0, seed=self.seed, numbers=min(self.numbers, default=0))
        if self.length is not None and self.new is not None:
            raise ValueError(
                f"new={self.new}: not with length={self.length}, the length of the whole sequence"
            )
        if self.constraint is not None:
            self.constraint.check()
            if self.rule is not None:
                raise ValueError(
                    f"length={self.length!r}: not with a regex or a JSON schema, give a number"
                )

    @property
    def rule(self) -> FoundLength | None:
        """The rule for the lengths, if they are not given."""
        return FoundLength(self.length) if isinstance(self.length, str) else None


@dataclass(frozen=True, kw_only=True)
class TextOptions:
    """Options of ``Pipeline.generate``; those that transformers has too have its names.

    Raises:
        ValueError: values out of range, or that exclude each other.
    """

    max_new_tokens: int | None = None
    """Tokens behind a prompt without gaps, in place of ``max_length``; at a pace of blocks the last
    block is drawn whole, and the text is cut."""
    max_length: int | str | None = None
    """Tokens of a sequence, the prompt among them; or the short string of a rule that finds it,
    such as "auto:max=512"; by default as in ``recipes.generate``."""
    num_return_sequences: int = 1
    """Samples of each prompt."""
    seed: int = 0
    """Seed of the noise."""
    return_full_text: bool = True
    """Whether a text begins with its prompt. Messages of a chat are never returned."""
    stop_strings: str | Sequence[str] = ()
    """Where the text behind a prompt ends, before the first of them."""
    regex: str | None = None
    """Regular expression of the text behind a prompt, or of the whole text of one with gaps."""
    json_schema: str | Path | Mapping[str, Any] | None = None
    """JSON schema of that text, or a file with one."""
    unknown: bool = False
    """Whether symbols that the tokenizer lacks are accepted."""
    sampling: Sampling = field(default_factory=Sampling)
    """Further options, which a call takes by their names: ``sampler``, ``steps``, ``temperature``,
    ``top_p``, ``pace`` and so on."""

    def __post_init__(self) -> None:
        at_least(1, num_return_sequences=self.num_return_sequences)
        if self.max_length is not None and self.max_new_tokens is not None:
            raise ValueError(
                f"max_new_tokens={self.max_new_tokens}: not with max_length={self.max_length!r}, "
                "the length of the whole sequence"
            )
        self.request  # noqa: B018  checks its values

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return the options of a call by their names.

        Raises:
            ValueError: a name that is not one of them, with the nearest one, or an invalid value.
        """
        own = {one.name for one in fields(cls)}
        further = {one.name for one in fields(Sampling)}
        for name in options:
            if name not in own | further:
                near = get_close_matches(name, own | further, 1)
                hint = f"; did you mean {near[0]}?" if near else ""
                raise ValueError(f"{name}={options[name]!r}: is not an option of a text{hint}")
        steering = {name: value for name, value in options.items() if name in further}
        steering = of_types(Sampling, **steering)
        values = {name: value for name, value in options.items() if name in own}
        values = of_types(cls, **values)
        if steering:
            values["sampling"] = replace(values.get("sampling", Sampling()), **steering)
        return cls(**values)

    def check(self, prompt: Prompt) -> None:
        """Raise for a prompt that is invalid for any model, or with these options.

        Raises:
            TypeError: neither text nor messages.
            ValueError: as in ``check_prompt``; an option that a text with gaps does not have.
        """
        check_prompt(prompt)
        if has_gaps(prompt) and (self.stop_strings or not self.return_full_text):
            raise ValueError(
                f"stop_strings={self.stop_strings!r}, return_full_text={self.return_full_text}: "
                "not with gaps in a prompt, which is the whole text"
            )

    @cached_property
    def request(self) -> Request:
        """The request for samples with these options."""
        constrained = self.regex is not None or self.json_schema is not None
        schema = Path(self.json_schema) if isinstance(self.json_schema, str) else self.json_schema
        return Request(
            sampling=self.sampling,
            seed=self.seed,
            numbers=range(self.num_return_sequences),
            length=self.max_length,
            new=self.max_new_tokens,
            constraint=Constraint(self.regex, schema) if constrained else None,
            unknown=self.unknown,
        )

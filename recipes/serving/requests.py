"""Bodies of requests: their fields, checked, as prompts and options of a pipeline."""

import json
import re
import secrets
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from recipes.generation.pipeline import Drawing, Pipeline, TextOptions
from recipes.generation.prompt import Prompt, has_gaps
from recipes.generation.sampling import Sampling

TOP = 3
"""Largest number of other tokens beside a log-probability."""
STEPS = 4096
"""Largest number of steps."""

NEUTRAL: Mapping[str, tuple[Any, ...]] = {
    "audio": (None,),
    "best_of": (None, 1),
    "frequency_penalty": (None, 0),
    "function_call": (None, "none"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "modalities": (None, ["text"]),
    "prediction": (None,),
    "presence_penalty": (None, 0),
    "reasoning_effort": (None,),
    "service_tier": (None, "auto", "default"),
    "store": (None, False),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "verbosity": (None,),
    "web_search_options": (None,),
}
"""Fields of OpenAI that have no effect here, with the values that ask for none."""
IGNORED = (
    "metadata",
    "parallel_tool_calls",
    "prompt_cache_key",
    "safety_identifier",
    "user",
)
"""Fields of OpenAI that do not concern the text."""
NAMES = {
    "json_schema": "response_format",
    "length": "max_tokens",
    "max_new_tokens": "max_tokens",
    "new": "max_tokens",
    "num_return_sequences": "n",
    "stop_strings": "stop",
}
"""Fields by the names of the options that they set."""


WORDS = {
    "Extra inputs are not permitted": "is not a field",
    "Field required": "must be given",
    "valid dictionary": "object of JSON",
    "valid boolean": "boolean",
    "valid integer": "integer",
    "valid list": "list",
    "valid number": "number",
    "valid string": "text",
    "a integer": "an integer",
    "a object": "an object",
}
"""Our words for those of pydantic."""


class RefusedError(Exception):
    """A request that gets an answer other than a text.

    Args:
        message: the message.
        param: the field that it is about, if it is about one.
        status: the status of HTTP.
        kind: type of the error, of those of OpenAI.
        code: its code.
        headers: headers of the answer.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        status: int = 400,
        kind: str = "invalid_request_error",
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = {"error": {"message": message, "type": kind, "param": param, "code": code}}

    @classmethod
    def of(cls, error: Exception) -> "RefusedError":
        """Return the refusal of an error of a pipeline, whose message begins with an option."""
        message = str(error)
        name = message.split(":")[0].split("=")[0]
        if not name.isidentifier():
            return cls(message)
        field = NAMES.get(name, name)
        return cls(field + message.removeprefix(name), field)


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)


class TextPart(_Part):
    """Part of the content of a message."""

    type: Literal["text"]
    text: str


class Message(_Part):
    """Message of a chat."""

    role: Literal["system", "user", "assistant"]
    content: str | list[TextPart]

    @model_validator(mode="before")
    @classmethod
    def _without_empty(cls, values: object) -> object:
        """Leave out fields of an answer that have no value, such as refusal and annotations."""
        if not isinstance(values, dict):
            return values
        return {
            name: value
            for name, value in values.items()
            if name in cls.model_fields or value not in (None, [])
        }

    @property
    def plain(self) -> dict[str, str]:
        """The message as a pipeline takes it."""
        content = self.content
        text = content if isinstance(content, str) else "".join(part.text for part in content)
        return {"role": self.role, "content": text}


class Schema(_Part):
    """JSON schema with its name."""

    name: str
    schema_: dict[str, Any] = Field(alias="schema")
    description: str | None = None
    strict: bool | None = None


class ResponseFormat(_Part):
    """Format of the text."""

    type: Literal["text", "json_schema"]
    json_schema: Schema | None = None


class StreamOptions(_Part):
    """Options of a stream."""

    include_usage: bool = False
    include_obfuscation: Literal[False] | None = None


class Body(_Part, ABC):
    """Fields that both routes have."""

    object_name: ClassVar[str]

    model: str
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    n: Annotated[int, Field(ge=1)] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    stop: (
        Annotated[str, Field(min_length=1)]
        | Annotated[list[Annotated[str, Field(min_length=1)]], Field(max_length=4)]
        | None
    ) = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    response_format: ResponseFormat | None = None
    steps: Annotated[int, Field(ge=1, le=STEPS)] | None = None
    top_k: Annotated[int, Field(ge=1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Field(ge=1)] | None = None
    drafts: bool | None = None

    @property
    @abstractmethod
    def prompts(self) -> list[Prompt]:
        """The prompts."""

    @property
    @abstractmethod
    def likely(self) -> int | None:
        """Number of tokens beside each log-probability; None for no log-probabilities."""

    @property
    def limit(self) -> int | None:
        """Largest number of tokens of a text."""
        return self.max_tokens

    @property
    def whole(self) -> bool:
        """Whether a text begins with its prompt."""
        return False

    @property
    def schema_(self) -> Mapping[str, Any] | None:
        """The schema of the texts."""
        wanted = self.response_format
        return None if wanted is None or wanted.json_schema is None else wanted.json_schema.schema_


class Completion(Body):
    """Body of /v1/completions."""

    object_name = "text_completion"

    prompt: str | Annotated[list[str], Field(min_length=1)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Field(ge=0, le=TOP)] | None = None

    @property
    def prompts(self) -> list[Prompt]:
        several = self.prompt if isinstance(self.prompt, list) else [self.prompt]
        return [one or None for one in several]

    @property
    def likely(self) -> int | None:
        return self.logprobs

    @property
    def whole(self) -> bool:
        return bool(self.echo) or any(map(has_gaps, self.prompts))


class Chat(Body):
    """Body of /v1/chat/completions."""

    object_name = "chat.completion"

    messages: Annotated[list[Message], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(ge=1)] | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=TOP)] | None = None

    @property
    def prompts(self) -> list[Prompt]:
        return [[one.plain for one in self.messages]]

    @property
    def limit(self) -> int | None:
        return self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens

    @property
    def likely(self) -> int | None:
        return (self.top_logprobs or 0) if self.logprobs else None


FIELDS = {"schema"}.union(
    *(
        part.model_fields
        for part in (Completion, Chat, Message, TextPart, Schema, ResponseFormat, StreamOptions)
    )
)
"""Names of all fields, as they are in a body."""


@dataclass(frozen=True)
class TextRequest:
    """A request for texts."""

    body: Body
    seed: int
    """That of the body, or one that was drawn for it."""

    @property
    def count(self) -> int:
        """Number of texts."""
        return len(self.body.prompts) * (self.body.n or 1)

    def drawing(self, pipeline: Pipeline, defaults: Sampling) -> Drawing:
        """Return the samples to draw, after all checks.

        Args:
            pipeline: the model.
            defaults: options of the server, for fields that are not in the body.

        Raises:
            RefusedError, TypeError, ValueError: what the model does not support.
        """
        body = self.body
        steering = {
            name: value
            for name in ("steps", "temperature", "top_p", "top_k", "min_p", "repetition_penalty")
            if (value := getattr(body, name)) is not None
        }
        options = TextOptions(
            max_new_tokens=body.limit,
            num_return_sequences=body.n or 1,
            seed=self.seed,
            return_full_text=body.whole,
            stop_strings=() if body.stop is None else body.stop,
            json_schema=body.schema_,
            sampling=replace(defaults, **steering),
        )
        return pipeline.drawing(body.prompts, options)


def read(cls: type[Body], values: object, model: str, rows: int) -> TextRequest:
    """Return the request of a body.

    Args:
        cls: kind of body.
        values: the body.
        model: name of the model that is served.
        rows: largest number of texts.

    Raises:
        RefusedError: naming the field, its value, and what it must be.
    """
    if not isinstance(values, dict):
        raise RefusedError("the body must be an object of JSON")
    try:
        body = cls.model_validate(_supported(cls, values))
    except ValidationError as error:
        raise _refusal(error) from error
    if body.model != model:
        raise RefusedError(
            f"model={body.model!r}: must be {model!r}, the model of this server",
            "model",
            404,
            code="model_not_found",
        )
    _check_together(body)
    seed = secrets.randbits(31) if body.seed is None else body.seed
    request = TextRequest(body, seed)
    if request.count > rows:
        raise RefusedError(
            f"n={body.n or 1}: makes {request.count} texts of {len(body.prompts)} prompt(s), must "
            f"make at most {rows}, the rows of this server",
            "n",
        )
    return request


def _supported(cls: type[Body], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields without those that have no effect.

    Raises:
        RefusedError: a field that would have one, or that there is not.
    """
    known = cls.model_fields
    for name, value in values.items():
        if name in known or name in IGNORED:
            continue
        if name not in NEUTRAL:
            near = get_close_matches(name, [*known, *NEUTRAL], 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise RefusedError(f"{name}={_short(value)}: is not a field of this route{hint}", name)
        if not any(_is_same(value, one) for one in NEUTRAL[name]):
            allowed = " or ".join(map(json.dumps, NEUTRAL[name]))
            raise RefusedError(
                f"{name}={_short(value)}: is not supported, must be {allowed}, or left out", name
            )
    return {name: value for name, value in values.items() if name in known}


def _is_same(value: object, other: object) -> bool:
    """Return whether two values are the same in JSON, where 0 is not false."""
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _check_together(body: Body) -> None:
    """Raise RefusedError for fields that exclude each other or have no effect."""
    if body.stream_options is not None and not body.stream:
        raise RefusedError("stream_options: must be left out without stream", "stream_options")
    if body.drafts and not body.stream:
        raise RefusedError("drafts=true: must be left out without stream", "drafts")
    if isinstance(body, Chat):
        if body.top_logprobs is not None and not body.logprobs:
            raise RefusedError(
                f"top_logprobs={body.top_logprobs}: must be left out without logprobs",
                "top_logprobs",
            )
        if body.max_tokens is not None and body.max_completion_tokens is not None:
            raise RefusedError(
                f"max_tokens={body.max_tokens}: not with max_completion_tokens="
                f"{body.max_completion_tokens}, give one of them",
                "max_tokens",
            )
    wanted = body.response_format
    if wanted is not None and (wanted.type == "json_schema") != (wanted.json_schema is not None):
        raise RefusedError(
            f"response_format.type={_short(wanted.type)}: must be json_schema if and only if there "
            "is a json_schema beside it",
            "response_format",
        )
    gaps = [prompt for prompt in body.prompts if has_gaps(prompt)]
    for name, value in (("max_tokens", body.limit), ("stop", body.stop)):
        if gaps and value is not None:
            raise RefusedError(
                f"{name}={_short(value)}: not with gaps in a prompt, which is the whole text", name
            )
    if gaps and len(gaps) < len(body.prompts):
        raise RefusedError(
            "prompt: must have gaps in all of its texts, or in none of them", "prompt"
        )


def _refusal(error: ValidationError) -> RefusedError:
    """Return the refusal of values of wrong types or out of range: argument, value and rule."""
    problems = error.errors(include_url=False, include_context=False)
    field = str(problems[0]["loc"][0])
    mine = [one for one in problems if one["loc"][0] == field]
    # of a union the branches that the value belongs to: those that read deepest
    deepest = max(len(_place(one["loc"])) for one in mine)
    mine = [one for one in mine if len(_place(one["loc"])) == deepest]
    mine = [one for one in mine if not one["type"].endswith("_type")] or mine
    place = _place(mine[0]["loc"])
    rules = dict.fromkeys(_rule(one["msg"]) for one in mine if _place(one["loc"]) == place)
    if mine[0]["type"] == "extra_forbidden":
        place = [*_place(mine[0]["loc"][:-1]), str(mine[0]["loc"][-1])]
    value = "" if mine[0]["type"] == "missing" else f"={_short(mine[0]['input'])}"
    return RefusedError(f"{'.'.join(place)}{value}: {', or '.join(rules)}", field)


def _rule(message: str) -> str:
    """Return the rule of a message of pydantic."""
    rule = re.sub(r"^\w+ should", "must", message).replace("after validation, not", "and has")
    rule = re.sub(r" or instance of \w+", "", rule)
    for theirs, ours in WORDS.items():
        rule = rule.replace(theirs, ours)
    return rule


def _place(location: Sequence[str | int]) -> list[str]:
    """Return the fields and numbers of a place, without the branches of unions."""
    return [str(one) for one in location if isinstance(one, int) or one in FIELDS]


def _short(value: object) -> str:
    """Return a value as JSON, for a message, cut to eighty characters."""
    text = json.dumps(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

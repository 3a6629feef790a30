"""Conversations as JSON lines, formatted by the chat template of a tokenizer: prompts are given,
answers are learned.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int
from tokenizers import Tokenizer

from recipes.data.layout import Layout
from recipes.data.names import PAD
from recipes.data.sequences import Sequences
from recipes.data.sources.files import identity, matching, text_lines
from recipes.data.tokens import load_tokenizer, special_pattern

SUFFIXES = (".jsonl",)
MESSAGES = "messages"
"""Key of a line."""
KEYS = {"role", "content"}
"""Keys of a message."""
SYSTEM, USER, ASSISTANT = ROLES = ("system", "user", "assistant")
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")
"""Tag of a template in front of what the assistant writes."""
BATCH = 256
"""Conversations that are formatted at a time."""

Message = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Conversations(Sequences):
    """Conversations in the tokens of a text tokenizer.

    Each ends with an answer. Its last token, the end, is not among the ids: a folder adds it, and
    it is learned.
    """

    text_tokenizer: Tokenizer
    end: str
    """Token at the end of every answer."""
    pad: str
    """Token of rows behind the end."""
    template: str
    """Chat template that needs nothing but messages."""

    def make_tokenizer(self, ends: bool) -> Tokenizer:
        return self.text_tokenizer

    def make_layout(self, kind: str, ends: bool, lengths: Mapping[int, int]) -> Layout:
        layout = super().make_layout(kind, True, lengths)
        return replace(layout, end=self.end, pad=self.pad, template=self.template)

    def match(self, other: Sequences, name: str) -> Sequences:
        # tokens that train lacks are no remark: a text never has all
        return replace(super().match(other, name), notes=self.notes)


@dataclass(frozen=True, kw_only=True)
class Chat:
    """Conversations as JSON lines, {"messages": [{"role": "user", "content": "..."}, ...]}.

    Args:
        files: .jsonl, which may be compressed (.gz): a file, a folder or a quoted pattern.
        tokenizer: a model of the hub, or a folder with its tokenizer; for a run its folder weights.
        template: file with the chat template, in place of the tokenizer's. What the assistant
            writes stands between {% generation %} and {% endgeneration %}, its end token too.
        answers: "each": a sequence for each answer, which ends with it. "last": the last answer of
            each conversation alone. "all": one sequence, all of whose answers are learned; an
            answer then also sees the questions behind it.
        longest: sequences of more tokens are left out; by default none is.
        revision: branch, tag or commit of a model on the hub.

    Raises:
        FileNotFoundError, ValueError: on loading, with file and line: no such file; a line that is
            no conversation; another role, key or order of messages; an empty answer; a special
            token in a message; a template without spans, whose spans do not end with one special
            token, that leaves out a message, or that formats prompts otherwise than answers.
    """

    files: str
    tokenizer: str
    template: str | None = None
    answers: Literal["each", "last", "all"] = "each"
    longest: int | None = None
    revision: str | None = None

    def load(self) -> Conversations:
        tokenizer = self._tokenizer()
        template = tokenizer.chat_template
        chats = [(place, one) for place, chat in self._read(tokenizer) for one in self._parts(chat)]
        if not chats:
            raise ValueError(f"files={self.files!r}: there is no conversation")
        spans = list(_encode(tokenizer, chats))
        ends = {end for span in spans for end in span.ends}
        if len(ends) > 1:
            names = ", ".join(map(repr, tokenizer.convert_ids_to_tokens(sorted(ends))))
            raise ValueError(f"template: answers end with {names}, must end with one token")
        fitting = [one for one in spans if self.longest is None or one.stop <= self.longest]
        if not fitting:
            shortest = min(one.stop for one in spans)
            raise ValueError(
                f"longest={self.longest}: must be at least {shortest}, the shortest sequence"
            )
        ids = [one.ids[: one.stop - 1] for one in fitting]
        given = [~self._learned(one)[: one.stop - 1] for one in fitting]
        backend = tokenizer.backend_tokenizer
        names = _names(backend, self.tokenizer)
        end = names[ends.pop()]
        filling = [token for token in (tokenizer.pad_token, PAD) if token in names]
        conversations = Conversations(
            ids=ids,
            symbols=names,
            given=given,
            text_tokenizer=backend,
            end=end,
            pad=next(iter(filling), end),
            template=_complete(template, tokenizer.special_tokens_map),
        )
        return replace(
            conversations,
            notes=tuple(self._notes(conversations, len(spans))),
            left_out=len(spans) - len(fitting),
        )

    def identity(self) -> dict[str, str]:
        tokenizer = self._tokenizer()
        texts = {
            "template": _complete(tokenizer.chat_template, tokenizer.special_tokens_map),
            "tokens": tokenizer.backend_tokenizer.to_str(),
        }
        hashes = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in texts.items()}
        return identity(matching(self.files, SUFFIXES), None) | hashes

    def _tokenizer(self) -> Any:
        return template_tokenizer(self.tokenizer, self.template, self.revision)

    def _read(self, tokenizer: Any) -> Iterator[tuple[str, list[Message]]]:
        """Yield the conversations with their places."""
        pattern = special_pattern(tokenizer.added_tokens_decoder)
        for file in matching(self.files, SUFFIXES):
            for number, line in enumerate(text_lines(file), 1):
                if not line.strip():
                    continue
                place = f"{file}, line {number}"
                try:
                    value = json.loads(line)
                except ValueError as error:
                    raise ValueError(f"{place}: is not JSON: {error}") from error
                messages = check_conversation(value, place)
                for index, message in enumerate(messages):
                    match = pattern.search(message["content"])
                    if match is not None:
                        raise ValueError(
                            f"{place}: messages[{index}] contains {match[0]!r}, a special token of "
                            "the tokenizer, which only the template may write"
                        )
                yield place, messages

    def _parts(self, messages: list[Message]) -> Iterator[list[Message]]:
        """Yield the messages of each sequence of a conversation."""
        if self.answers != "each":
            yield messages
            return
        for index, message in enumerate(messages):
            if message["role"] == ASSISTANT:
                yield messages[: index + 1]

    def _learned(self, one: "Spans") -> Bool[np.ndarray, " n"]:
        if self.answers == "all":
            return one.written
        return one.written & (np.arange(len(one.ids)) >= one.last)

    def _notes(self, conversations: Conversations, count: int) -> Iterator[str]:
        """Yield remarks for the summary.

        Args:
            conversations: the sequences.
            count: number of sequences, with those that are left out.
        """
        ids = conversations.ragged
        learned = len(ids) + sum(int((~row).sum()) for row in conversations.given or ())
        yield (
            f"answers={self.answers}: {learned:,} of {len(ids.values) + len(ids):,} tokens are "
            f"learned; an answer ends with {conversations.end!r}, rows are filled with "
            f"{conversations.pad!r}"
        )
        if count > len(ids):
            yield (
                f"longest={self.longest}: {count - len(ids):,} of {count:,} sequences are longer "
                "and left out"
            )


def check_conversation(value: Any, place: str) -> list[Message]:
    """Return the messages of a line: a system message or none, then user and assistant in turn.

    Raises:
        ValueError: another form, with the place.
    """
    if not isinstance(value, dict) or set(value) != {MESSAGES}:
        keys = ", ".join(map(repr, value)) if isinstance(value, dict) else type(value).__name__
        raise ValueError(
            f"{place}: has {keys or 'no key'}, must be an object with the key {MESSAGES!r} alone"
        )
    messages = value[MESSAGES]
    if not isinstance(messages, list) or not messages:
        raise ValueError(f"{place}: {MESSAGES} is {messages!r}, must be a list of messages")
    for index, message in enumerate(messages):
        where = f"{place}: {MESSAGES}[{index}]"
        if not isinstance(message, dict) or set(message) != KEYS:
            keys = ", ".join(map(repr, message)) if isinstance(message, dict) else repr(message)
            raise ValueError(f"{where} has {keys}, must have 'role' and 'content' alone")
        role = message["role"]
        if role not in ROLES:
            raise ValueError(f"{where} has role {role!r}, must be one of {', '.join(ROLES)}")
        if not isinstance(message["content"], str):
            raise ValueError(f"{where} has content {message['content']!r}, must be a string")
        if role == ASSISTANT and not message["content"].strip():
            raise ValueError(f"{where} is an empty answer, must have text")
    roles = [message["role"] for message in messages]
    turns = roles[1:] if roles[0] == SYSTEM else roles
    if len(turns) % 2 or not turns or turns != [USER, ASSISTANT] * (len(turns) // 2):
        raise ValueError(
            f"{place}: the roles are {', '.join(roles)}; must be user and assistant in turn, from "
            "user to assistant, behind at most one system message"
        )
    return messages


def template_tokenizer(name: str, template: str | None = None, revision: str | None = None) -> Any:
    """Return a tokenizer of transformers whose chat template has spans of what it generates.

    Args:
        name: a model of the hub, or a folder with its tokenizer.
        template: file with a chat template; None: that of the tokenizer, or of the data of a run.
        revision: branch, tag or commit of a model on the hub.

    Raises:
        FileNotFoundError: no such file.
        ValueError: no tokenizer; no template, or one without spans, with the remedy, or one that is
            not valid, with the line.
    """
    from jinja2 import TemplateSyntaxError
    from transformers import AutoTokenizer, PreTrainedTokenizerFast  # local import: seconds
    from transformers.utils.chat_template_utils import render_jinja_template

    backend = load_tokenizer(name, revision)
    folder = Path(name)
    layout = folder / "symbols.json"  # of a run
    special: dict[str, Any] = {}
    text = ""
    if layout.is_file():
        text = Layout.read(json.loads(layout.read_text(encoding="utf-8"))).template
    if not folder.exists() or (folder / "tokenizer_config.json").is_file():
        theirs = AutoTokenizer.from_pretrained(
            name, trust_remote_code=False, revision=revision or "main"
        )
        special = theirs.special_tokens_map
        text = theirs.chat_template or ""
    if template is not None:
        file = Path(template)
        if not file.is_file():
            raise FileNotFoundError(f"template={template!r}: there is no such file")
        text = file.read_text(encoding="utf-8")
    origin = f"tokenizer={name!r}: its chat template" if template is None else f"{template}: it"
    if not text:
        raise ValueError(
            f"tokenizer={name!r}: has no chat template, name a file with one: --template FILE"
        )
    if not GENERATION.search(text):
        raise ValueError(
            f"{origin} has no {{% generation %}}, so it does not mark the answers. Copy it "
            "to a file, write {% generation %} in front of the content of assistant messages and "
            "{% endgeneration %} behind their end token, and name the file: --template FILE"
        )
    try:
        render_jinja_template([], chat_template=text)
    except TemplateSyntaxError as error:
        raise ValueError(f"{origin} is not valid in line {error.lineno}: {error}") from error
    named = {role: token for role, token in special.items() if isinstance(token, str)}
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=text, **named)


class Spans(NamedTuple):
    """Tokens of a conversation."""

    ids: Int[np.ndarray, " n"]
    written: Bool[np.ndarray, " n"]
    """True at the tokens of all answers."""
    last: int
    """Place of the first token of the last answer."""
    stop: int
    """Place behind the last token of the last answer."""
    ends: set[int]
    """Last tokens of all answers."""


def _encode(tokenizer: Any, chats: Sequence[tuple[str, list[Message]]]) -> Iterator[Spans]:
    """Yield the tokens of conversations with their places.

    Raises:
        ValueError: naming the place, see ``Chat``.
    """
    remaining = iter(chats)
    while batch := list(islice(remaining, BATCH)):
        places, messages = zip(*batch, strict=True)
        whole = _format(tokenizer, places, messages, return_assistant_tokens_mask=True)
        prompts = _format(
            tokenizer, places, [chat[:-1] for chat in messages], add_generation_prompt=True
        )
        columns = (messages, whole["input_ids"], whole["assistant_masks"], prompts["input_ids"])
        texts = tokenizer.apply_chat_template(list(messages), tokenize=False)
        for place, text, chat, ids, mask, prompt in zip(places, texts, *columns, strict=True):
            spans = _spans(tokenizer, place, chat, np.array(ids), np.array(mask) > 0, prompt)
            _check_text(place, chat, text)
            yield spans


def _check_text(place: str, chat: Sequence[Message], text: str) -> None:
    """Raise ValueError if the template leaves out the content of a message."""
    for index, message in enumerate(chat):
        content = message["content"].strip()
        if content not in text:
            raise ValueError(
                f"{place}: the template leaves out {content!r}, the content of {MESSAGES}[{index}]"
                "; must write that of every message"
            )


def _spans(
    tokenizer: Any,
    place: str,
    chat: list[Message],
    ids: Int[np.ndarray, " n"],
    written: Bool[np.ndarray, " n"],
    prompt: list[int],
) -> Spans:
    """Return the tokens of a conversation, checked.

    Raises:
        ValueError: see ``Chat``.
    """
    edges = np.flatnonzero(np.diff(np.concatenate([[False], written, [False]])))
    spans = edges.reshape(-1, 2).tolist()
    answers = sum(message["role"] == ASSISTANT for message in chat)
    if len(spans) != answers:
        raise ValueError(
            f"{place}: the template marks {len(spans)} spans as generated, must mark the "
            f"{answers} answers"
        )
    special = set(tokenizer.backend_tokenizer.get_added_tokens_decoder())
    ends = {int(ids[stop - 1]) for _, stop in spans}
    for begin, stop in spans:
        name = tokenizer.convert_ids_to_tokens(int(ids[stop - 1]))
        if int(ids[stop - 1]) not in special:
            raise ValueError(
                f"{place}: the template ends an answer with {name!r}, must end it with a special "
                "token: write {% endgeneration %} right behind the end token, so that ends are "
                "learned"
            )
        if stop - begin < 2:
            raise ValueError(f"{place}: the template leaves nothing of an answer but {name!r}")
    begin, stop = spans[-1]
    if ids[:begin].tolist() != list(prompt):
        shown = [tokenizer.decode(part) for part in (ids[:begin], prompt)]
        raise ValueError(
            f"{place}: the template writes {shown[0]!r} before the answer, but with "
            f"add_generation_prompt {shown[1]!r}: these must have the same tokens, as the second "
            "is the prompt of recipes.generate"
        )
    return Spans(ids, written, begin, stop, ends)


def _format(
    tokenizer: Any, places: Sequence[str], chats: Sequence[list[Message]], **options: Any
) -> Mapping[str, list[list[int]]]:
    """Return the tokens of conversations.

    Raises:
        ValueError: the template refuses one, with its place.
    """
    from jinja2 import TemplateError

    try:
        return tokenizer.apply_chat_template(
            list(chats), tokenize=True, return_dict=True, **options
        )
    except (TemplateError, TypeError) as error:
        if len(chats) == 1:
            raise ValueError(f"{places[0]}: the template refuses it: {error}") from error
    for place, chat in zip(places, chats, strict=True):
        _format(tokenizer, [place], [chat], **options)
    raise RuntimeError("the template refuses conversations together that it takes alone")


def _names(tokenizer: Tokenizer, name: str) -> tuple[str, ...]:
    """Return the tokens in the order of their ids.

    Raises:
        ValueError: ids that are not 0..V-1.
    """
    by_id = sorted(tokenizer.get_vocab().items(), key=lambda one: one[1])
    if [number for _, number in by_id] != list(range(len(by_id))):
        raise ValueError(
            f"tokenizer={name!r}: {len(by_id)} tokens have ids up to {by_id[-1][1]}, must be "
            f"0..{len(by_id) - 1}"
        )
    return tuple(token for token, _ in by_id)


def _complete(template: str, special: Mapping[str, Any]) -> str:
    """Return a template with the special tokens that it uses, as transformers would pass them."""
    settings = [
        f"{{% set {role} = {json.dumps(token)} %}}"
        for role, token in special.items()
        if isinstance(token, str) and re.search(rf"\b{role}\b", template)
    ]
    # a template's environment drops the line break behind a tag
    return "".join(settings) + "\n" * bool(settings) + template

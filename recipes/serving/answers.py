"""Answers in the format of OpenAI, whole and as chunks of a stream."""

import math
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from recipes.model_io import LoadedModel
from recipes.serving.chances import Chance
from recipes.serving.engine import Text
from recipes.serving.requests import Chat, TextRequest

DRAFT = "draft"
"""Name of the events with drafts."""


class Answers:
    """Answers to one request.

    Args:
        request: the request.
        name: name of the model.
        saved: the model.
        pieces: the bytes of its tokens.
    """

    def __init__(
        self, request: TextRequest, name: str, saved: LoadedModel, pieces: Mapping[int, bytes]
    ) -> None:
        self._request = request
        self._name = name
        self._saved = saved
        self._pieces = pieces
        self._chat = isinstance(request.body, Chat)
        self._id = f"{'chatcmpl' if self._chat else 'cmpl'}-{uuid.uuid4().hex}"
        self._created = int(time.time())
        self._sent = [""] * request.count
        self._drafts = [""] * request.count
        self._finished = [False] * request.count
        self._usage: dict[str, Any] = {}

    def whole(self, texts: Sequence[Text]) -> dict[str, Any]:
        """Return the answer to a request without a stream."""
        choices = [self._choice(index, text) for index, text in enumerate(texts)]
        return self._object(self._request.body.object_name, choices) | {"usage": self._count(texts)}

    def chunks(self, texts: Sequence[Text]) -> Iterator[tuple[str | None, dict[str, Any]]]:
        """Yield the name of the event, and the chunk, of what is new in the texts."""
        for index, text in enumerate(texts):
            if self._finished[index]:
                continue
            first = not self._sent[index] and not self._drafts[index]
            if self._request.body.drafts and text.draft != self._drafts[index]:
                yield DRAFT, self._chunk(index, "", first, draft=text.draft, time=text.time)
                self._drafts[index] = text.draft
                first = False
            result = text.result
            settled = text.settled if result is None else result.text
            if not settled.startswith(self._sent[index]):
                raise AssertionError(f"{settled!r} does not begin with {self._sent[index]!r}")
            new = settled[len(self._sent[index]) :]
            if new:
                yield None, self._chunk(index, new, first)
                self._sent[index] = settled
            if result is not None:
                self._finished[index] = True
                reason = _reason(text)
                yield None, self._chunk(index, "", False, reason, self._chances(text))
        if all(self._finished):
            self._usage = self._count(texts)

    def last_chunks(self) -> Iterator[dict[str, Any]]:
        """Yield the chunk of the usage, if it is wanted."""
        options = self._request.body.stream_options
        if options is not None and options.include_usage:
            yield self._object(self._kind, []) | {"usage": self._usage}

    def _count(self, texts: Sequence[Text]) -> dict[str, Any]:
        """Return the numbers of tokens; a prompt counts once."""
        prompt = sum(text.prompt_tokens for text in texts[:: self._request.body.n or 1])
        drawn = sum(text.tokens for text in texts)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": drawn,
            "total_tokens": prompt + drawn,
        }

    @property
    def _kind(self) -> str:
        """Kind of a chunk."""
        return "chat.completion.chunk" if self._chat else "text_completion"

    def _choice(self, index: int, text: Text) -> dict[str, Any]:
        assert text.result is not None
        common = {
            "index": index,
            "finish_reason": _reason(text),
            "logprobs": self._chances(text),
        }
        if self._chat:
            message = {"role": "assistant", "content": text.result.text, "refusal": None}
            return common | {"message": message}
        fills = {"fills": list(text.result.fills)} if text.result.fills else {}
        return common | {"text": text.result.text} | fills

    def _chunk(
        self,
        index: int,
        new: str,
        first: bool,
        reason: str | None = None,
        likely: dict[str, Any] | None = None,
        **others: Any,
    ) -> dict[str, Any]:
        delta: dict[str, Any] = {"role": "assistant"} if first else {}
        delta |= {"content": new} if new else {}
        content = {"delta": delta} if self._chat else {"text": new}
        common = {"index": index, "finish_reason": reason, "logprobs": likely}
        return self._object(self._kind, [common | content | others])

    def _object(self, kind: str, choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "object": kind,
            "created": self._created,
            "model": self._name,
            "system_fingerprint": self._saved.sha256[:16],
            "seed": self._request.seed,
            "choices": choices,
        }

    def _chances(self, text: Text) -> dict[str, Any] | None:
        """Return the log-probabilities of the tokens of a text, if they are wanted."""
        if text.chances is None:
            return None
        if self._chat:
            count = self._request.body.likely or 0
            content = [
                self._named(one.token, one.nats)
                | {"top_logprobs": [self._named(*other) for other in one.others[:count]]}
                for one in text.chances
            ]
            return {"content": content, "refusal": None}
        assert text.result is not None
        tokens = [self._spelt(one.token) for one in text.chances]
        places = [0]
        for token in tokens:
            places.append(places[-1] + len(token))
        return {
            "tokens": tokens,
            "token_logprobs": [_finite(one.nats) for one in text.chances],
            "top_logprobs": [self._top(one) for one in text.chances],
            "text_offset": places[:-1],
        }

    def _top(self, one: Chance) -> dict[str, float]:
        count = self._request.body.likely or 0
        return {self._spelt(token): _finite(nats) for token, nats in one.others[:count]}

    def _named(self, token: int, nats: float) -> dict[str, Any]:
        piece = self._pieces.get(token, b"")
        return {"token": self._spelt(token), "logprob": _finite(nats), "bytes": list(piece)}

    def _spelt(self, token: int) -> str:
        piece = self._pieces.get(token)
        if piece is None:
            return self._saved.tokenizer.id_to_token(token) or ""
        return piece.decode(errors="replace")


def _reason(text: Text) -> str:
    """Return why a text ends where it does."""
    assert text.result is not None
    return "stop" if text.result.ended else "length"


def _finite(nats: float) -> float:
    """Return a log-probability as in the interface of OpenAI: -9999 at probability zero."""
    return nats if math.isfinite(nats) else -9999.0

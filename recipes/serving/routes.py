"""Routes of the server: those of OpenAI's interface that a diffusion model can serve."""

import hmac
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from anyio import create_task_group
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from recipes.serving.answers import Answers
from recipes.serving.engine import FAILED, Answer, Engine
from recipes.serving.metrics import TYPE
from recipes.serving.page import live_page
from recipes.serving.requests import Body, Chat, Completion, RefusedError, read

BYTES = 2**20
"""Largest size of a body."""

DIGITS = 64
"""Largest number of characters of an integer."""

log = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]
"""Function of a route."""


class Json(Response):
    """Answer as JSON of ASCII characters: also for texts that are not UTF-8."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False).encode("ascii")


class Stream(StreamingResponse):
    """Answer as server-sent events; its rows are free as soon as its client has gone."""

    def __init__(self, answer: Answer, events: AsyncIterator[str]) -> None:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, media_type="text/event-stream", headers=headers)
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._answer.cancel()


class Server:
    """The routes of one engine.

    Args:
        engine: draws the texts.
        name: name of the model.
        keys: keys of which a request must have one; without any every request is served.
        hosts: values of the header Host that are served, without ports; None for all.
    """

    def __init__(
        self,
        engine: Engine,
        name: str,
        keys: Sequence[str] = (),
        hosts: Sequence[str] | None = None,
    ) -> None:
        self.engine = engine
        self.name = name
        self._keys = keys
        self._hosts = hosts
        self._born = int(time.time())

    @property
    def app(self) -> Starlette:
        """The application, an ASGI callable."""
        routes = (
            ("/", "GET", self.page, False),
            ("/health", "GET", self.health, False),
            ("/metrics", "GET", self.metrics, True),
            ("/v1/models", "GET", self.models, True),
            ("/v1/models/{name:path}", "GET", self.model, True),
            ("/v1/completions", "POST", self.completions, True),
            ("/v1/chat/completions", "POST", self.chat, True),
            ("/film", "POST", self.film, True),
        )
        return Starlette(
            routes=[
                Route(path, self._guarded(path, endpoint, locked), methods=[method])
                for path, method, endpoint, locked in routes
            ],
            exception_handlers={HTTPException: self._missing},
        )

    async def page(self, request: Request) -> Response:
        """Show a text as it denoises."""
        about = asdict(self.engine.defaults) | asdict(self.engine.limits)
        saved = self.engine.pipeline.model
        return Response(
            live_page(saved, self.name, bool(self._keys), about), media_type="text/html"
        )

    async def health(self, request: Request) -> Response:
        """Answer that the model is loaded."""
        return Json({"status": "ok", "model": self.name, "requests": self.engine.busy})

    async def metrics(self, request: Request) -> Response:
        """Return the metrics in the text format of Prometheus."""
        return Response(self.engine.metrics.text(), headers={"Content-Type": TYPE})

    async def models(self, request: Request) -> Response:
        """List the model."""
        return Json({"object": "list", "data": [self._model]})

    async def model(self, request: Request) -> Response:
        """Describe the model."""
        if request.path_params["name"] != self.name:
            message = f"model={request.path_params['name']!r}: must be {self.name!r}"
            raise RefusedError(message, "model", 404, code="model_not_found")
        return Json(self._model)

    async def completions(self, request: Request) -> Response:
        """Draw texts behind prompts, or in their gaps."""
        return await self._texts(request, Completion)

    async def chat(self, request: Request) -> Response:
        """Draw the next message of a chat."""
        return await self._texts(request, Chat)

    async def film(self, request: Request) -> Response:
        """Draw one text, and send each step for the page."""
        values = await self._json(request)
        kind = Chat if isinstance(values, dict) and "messages" in values else Completion
        wanted = read(kind, values, self.name, 1)
        answer = self.engine.start(wanted, filmed=True)
        return Stream(answer, self._frames(answer, await self._begun(request, answer)))

    async def _texts(self, request: Request, kind: type[Body]) -> Response:
        wanted = read(kind, await self._json(request), self.name, self.engine.limits.rows)
        answer = self.engine.start(wanted)
        answers = Answers(wanted, self.name, self.engine.pipeline.model, self.engine.pieces)
        if wanted.body.stream:
            states = await self._begun(request, answer)
            return Stream(answer, self._events(answers, states))
        await self._watched(request, answer, self._last(answer))
        return Json(answers.whole(answer.texts))

    async def _begun(self, request: Request, answer: Answer) -> AsyncIterator[Any]:
        """Wait for the first state of an answer, so that a refused one has its status.

        Returns:
            the states, the first one too.
        """
        states = answer.states()
        first = await self._watched(request, answer, anext(states))

        async def all_states() -> AsyncIterator[Any]:
            yield first
            async for state in states:
                yield state

        return all_states()

    async def _last(self, answer: Answer) -> None:
        async for _ in answer.states():
            pass

    async def _watched(self, request: Request, answer: Answer, work: Awaitable[Any]) -> Any:
        """Return the result of some work; cancel the answer if the client leaves before.

        Raises:
            ClientDisconnect: it has left.
        """
        results: list[Any] = []
        errors: list[RefusedError] = []
        async with create_task_group() as group:

            async def watch() -> None:
                while (await request.receive())["type"] != "http.disconnect":
                    pass
                group.cancel_scope.cancel()

            group.start_soon(watch)
            try:
                results.append(await work)
            except RefusedError as error:
                errors.append(error)
            group.cancel_scope.cancel()
        if errors:
            raise errors[0]
        if not results:
            answer.cancel()
            raise ClientDisconnect
        return results[0]

    async def _events(self, answers: Answers, states: AsyncIterator[Any]) -> AsyncIterator[str]:
        """Yield the events of a stream of texts."""
        try:
            async for texts in states:
                for name, chunk in answers.chunks(texts):
                    yield _event(chunk, name)
            for chunk in answers.last_chunks():
                yield _event(chunk)
            yield "data: [DONE]\n\n"
        except RefusedError as error:
            yield _event(error.body)

    async def _frames(self, answer: Answer, states: AsyncIterator[Any]) -> AsyncIterator[str]:
        """Yield the messages of the film of the first text."""
        read = 0
        try:
            async for texts in states:
                messages = texts[0].film[read:]
                read += len(messages)
                for message in messages:
                    yield _event(message)
        except RefusedError as error:
            yield _event(error.body)

    @property
    def _model(self) -> dict[str, Any]:
        return {"id": self.name, "object": "model", "created": self._born, "owned_by": "ddlib"}

    def _guarded(self, path: str, endpoint: Endpoint, locked: bool) -> Endpoint:
        """Return a route that checks host and key, answers refusals, and counts its answers."""

        async def guarded(request: Request) -> Response:
            try:
                self._check_host(request)
                if locked:
                    self._check_key(request)
                response = await endpoint(request)
            except RefusedError as error:
                response = _answer(error)
            except ClientDisconnect:
                response = Response(status_code=499)  # counted, but not sent: the client has left
            except Exception as error:
                log.error("%s failed", path, exc_info=error)
                response = _answer(RefusedError(FAILED, None, 500, "server_error"))
            self.engine.metrics.answers.labels(path, str(response.status_code)).inc()
            return response

        return guarded

    def _check_host(self, request: Request) -> None:
        """Raise RefusedError for a name by which pages of other sites could reach this machine."""
        host = request.headers.get("host", "")
        name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
        if self._hosts is not None and name not in self._hosts:
            raise RefusedError(f"Host={host!r}: must be one of {', '.join(self._hosts)}", None, 421)

    def _check_key(self, request: Request) -> None:
        """Raise RefusedError without one of the keys."""
        scheme, _, key = request.headers.get("authorization", "").partition(" ")
        mine = key.strip().encode() if scheme.lower() == "bearer" else b""
        matches = [hmac.compare_digest(mine, one.encode()) for one in self._keys]
        if self._keys and not any(matches):
            raise RefusedError(
                "the header Authorization must be Bearer with a key of this server",
                None,
                401,
                "authentication_error",
                "invalid_api_key",
                {"WWW-Authenticate": "Bearer"},
            )

    async def _json(self, request: Request) -> Any:
        """Return the body.

        Raises:
            RefusedError: not JSON, or too large.
        """
        kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind != "application/json":  # browsers send no other site's form with this type
            raise RefusedError(f"Content-Type={kind!r}: must be application/json", None, 415)
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > BYTES:
                raise RefusedError(f"the body has more than {BYTES} bytes", None, 413)
        try:
            return json.loads(
                bytes(body),
                parse_int=_read_int,
                parse_constant=_refuse_constant,
                object_pairs_hook=_unlike,
            )
        except (ValueError, RecursionError) as error:
            raise RefusedError(f"the body must be JSON: {error}") from error

    async def _missing(self, request: Request, error: Exception) -> Response:
        """Answer for a path or a method that there is not."""
        assert isinstance(error, HTTPException)
        message = f"{request.method} {request.url.path}: {error.detail}"
        return _answer(
            RefusedError(
                message, None, error.status_code, code="unknown_url", headers=error.headers
            )
        )


def _answer(error: RefusedError) -> Json:
    """Return the answer to a request that is refused."""
    return Json(error.body, error.status, error.headers)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a value of JSON")


def _read_int(digits: str) -> int:
    """Return an integer of JSON; raise ValueError above the largest number of a field."""
    if len(digits) > DIGITS:
        raise ValueError(f"an integer has {len(digits)} characters, must have at most {DIGITS}")
    return int(digits)


def _unlike(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object of JSON; raise ValueError for a name that it has twice."""
    values = dict(pairs)
    if len(values) < len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"an object has {json.dumps(name)} twice")
    return values


def _event(data: Mapping[str, Any], name: str | None = None) -> str:
    """Return a server-sent event."""
    kind = "" if name is None else f"event: {name}\n"
    return f"{kind}data: {json.dumps(data, allow_nan=False)}\n\n"

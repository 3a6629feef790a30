"""Drawings of many requests, each in a thread of its own, whose network calls are joined."""

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import CancelledError
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ddlib.contrib import Batcher, Filmed, Session
from recipes.console import render_states
from recipes.console.screen import is_refusal
from recipes.embeddings.naming import cluster_names
from recipes.generation.pipeline import Drawing, Generated, Pipeline
from recipes.generation.sampling import Sampling
from recipes.model_io import make_sampler
from recipes.serving.chances import Chance, chances, check_exact
from recipes.serving.metrics import Metrics
from recipes.serving.page import LiveFilm
from recipes.serving.requests import RefusedError, TextRequest
from recipes.serving.rows import Limits, Rows
from recipes.serving.settled import SettledText, count_tokens, keeps_tokens, pieces_of

log = logging.getLogger(__name__)

FAILED = "the server failed; its log has the reason"

OUT_OF_MEMORY = ("out of memory", "can't allocate memory", "cannot allocate memory")
"""Parts of messages of torch when memory is at its end."""


@dataclass
class Text:
    """One text of a request."""

    settled: str = ""
    """Its part that no longer changes."""
    draft: str = ""
    """All of it, with _ at each position that is not a token, if drafts are wanted."""
    time: float = 1.0
    """Mean time of the positions of the draft, from 1 at noise to 0."""
    result: Generated | None = None
    """The whole text, at the end."""
    prompt_tokens: int = 0
    """Number of tokens of its prompt, at the end."""
    tokens: int = 0
    """Number of tokens of the text, at the end."""
    chances: Sequence[Chance] | None = None
    """Probabilities of its tokens, if they are wanted, at the end."""
    film: list[dict[str, Any]] = field(default_factory=list)
    """Messages for the page."""


class _LeftError(Exception):
    """The request was cancelled, so its texts are not needed."""


class _EndedError(Exception):
    """All texts of a batch have ended before the last step."""


class Answer:
    """Texts of a request while they are drawn, read in the loop in which it was made.

    What is read is the newest state: a slow reader misses drafts, and delays no drawing.

    Args:
        request: the request.
        seconds: time until it is given up.
        filmed: whether its steps are recorded for the page.
    """

    def __init__(self, request: TextRequest, seconds: float, filmed: bool = False) -> None:
        self.request = request
        self.filmed = filmed
        self.texts = [Text() for _ in range(request.count)]
        self.arrival = time.monotonic()
        self.drawn = False
        """Whether it has rows, or had."""
        self.begun = False
        """Whether there is a text that no longer changes."""
        self.session: Session | None = None
        """Its place among the drawings whose calls of the network are joined."""
        self.done = False
        self.error: RefusedError | None = None
        self._seconds = seconds
        self._cancelled = False
        self._loop = asyncio.get_running_loop()
        self._news = asyncio.Event()

    @property
    def age(self) -> float:
        """Seconds since its arrival."""
        return time.monotonic() - self.arrival

    @property
    def late(self) -> bool:
        """Whether its time is over."""
        return self.age >= self._seconds

    def cancel(self) -> None:
        """Leave the queue, or stop drawing."""
        self._cancelled = True
        if self.session is not None:
            self.session.cancel()

    def refuse(self, error: RefusedError) -> None:
        """Cancel it, and give the reader an error."""
        self.error = error
        self.cancel()
        self.notify()

    def check(self) -> None:
        """Raise, in the thread that draws, if the request is cancelled or late."""
        if self._cancelled:
            raise _LeftError
        if self.late:
            raise TimeoutError

    def notify(self) -> None:
        """Wake the reader, from any thread."""
        try:
            self._loop.call_soon_threadsafe(self._news.set)
        except RuntimeError:  # the loop is closed
            self._cancelled = True

    async def states(self) -> AsyncIterator[list[Text]]:
        """Yield the texts whenever they have changed, the last time when all are drawn.

        Raises:
            RefusedError: the request is refused, took too long, or failed.
        """
        done = False
        while not done:
            try:
                await asyncio.wait_for(self._news.wait(), max(self._seconds - self.age, 0))
            except TimeoutError:
                self.cancel()
                raise too_late() from None
            self._news.clear()
            if self.error is not None:
                raise self.error
            done = self.done
            yield self.texts


def too_late() -> RefusedError:
    """Return the refusal of a request whose time is over."""
    return RefusedError(
        "the request took longer than this server allows: must have fewer tokens, steps or texts",
        None,
        504,
        "timeout",
        headers={"x-should-retry": "false"},  # the openai client would make it twice again
    )


class Engine:
    """Draws the texts of requests.

    A request's checks run before it waits for rows, so that a wrong one is refused at once.

    Args:
        pipeline: the model.
        batcher: joins the calls of its network.
        defaults: options of all texts, in place of which a request may state others.
        limits: limits of the server.
    """

    def __init__(
        self, pipeline: Pipeline, batcher: Batcher, defaults: Sampling, limits: Limits
    ) -> None:
        self.pipeline = pipeline
        self.defaults = defaults
        self.limits = limits
        self.metrics = Metrics(limits.rows)
        self.metrics.waiting.set_function(lambda: self.waiting)
        self.metrics.rows.set_function(lambda: limits.rows - self._rows.free)
        self._batcher = batcher
        self._rows = Rows(limits.rows)
        self._compiling = threading.Lock()
        self._threads: dict[Answer, threading.Thread] = {}
        self._lately = deque([1.0], 32)
        self._torch_threads = torch.get_num_threads()
        saved = pipeline.model
        self._sampler = make_sampler(saved, defaults.sampler)
        self._keeps = keeps_tokens(saved, self._sampler)
        self.pieces = pieces_of(saved)
        self._names = cluster_names(saved.process, saved.model, saved.clusters, saved.tokenizer)

    @property
    def waiting(self) -> int:
        """Number of requests without rows."""
        return sum(not answer.drawn for answer in tuple(self._threads))

    @property
    def busy(self) -> int:
        """Number of requests that are not answered."""
        return len(self._threads)

    def start(self, request: TextRequest, filmed: bool = False) -> Answer:
        """Take a request of the running loop, and return its answer.

        Args:
            request: the request.
            filmed: whether its steps are recorded for the page.

        Raises:
            RefusedError: the queue is full.
        """
        if self.waiting >= self.limits.waiting + self._rows.free:
            mean = sum(self._lately) / len(self._lately)
            seconds = mean * (self.waiting + self.limits.rows) / self.limits.rows
            raise RefusedError(
                f"{self.waiting} requests wait already, the limit of this server",
                None,
                429,
                "rate_limit_error",
                headers={"Retry-After": str(min(max(math.ceil(seconds), 1), 60))},
            )
        answer = Answer(request, self.limits.seconds, filmed)
        thread = threading.Thread(target=self._work, args=(answer,), daemon=True)
        self._threads[answer] = thread
        thread.start()
        return answer

    def stop(self) -> None:
        """Refuse the requests that are not answered, as the server ends."""
        for answer in tuple(self._threads):
            answer.refuse(
                RefusedError(
                    "the server is stopping: repeat the request when it runs",
                    None,
                    503,
                    "server_error",
                    headers={"Retry-After": "5"},
                )
            )

    def close(self, seconds: float = 10.0) -> None:
        """Cancel all requests, and wait for each until its thread ends, at most ``seconds``."""
        threads = dict(self._threads)
        for answer in threads:
            answer.cancel()
        for thread in threads.values():
            thread.join(seconds)
        self._batcher.close()

    def _work(self, answer: Answer) -> None:
        """Draw the texts of an answer, in a thread of its own."""
        torch.set_num_threads(self._torch_threads)  # of this thread
        how = "done"
        try:
            self._draw(answer)
            answer.done = True
        except (_LeftError, CancelledError, TimeoutError):
            how = "timeout" if answer.late else "cancelled"
            # read only if the client still waits
            answer.error = answer.error or too_late()
        except RefusedError as error:
            how = "refused"
            answer.error = error
        except Exception as error:
            how, answer.error = self._explain(error)
        finally:
            self.metrics.ended.labels(how).inc()
            del self._threads[answer]
            answer.notify()

    def _explain(self, error: Exception) -> tuple[str, RefusedError]:
        """Return what an error of a drawing is for the metrics, and for the client."""
        if isinstance(error, TypeError | ValueError) and is_refusal(error):
            return "refused", RefusedError.of(error)
        lacking = isinstance(error, MemoryError | torch.OutOfMemoryError) or (
            isinstance(error, RuntimeError)
            and any(part in str(error).lower() for part in OUT_OF_MEMORY)
        )
        if not lacking:
            log.error("a request failed", exc_info=error)
            return "failed", RefusedError(FAILED, None, 500, "server_error")
        log.error("a request ran out of memory: %s", error)
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        message = "the memory of this server does not suffice for the request at present"
        headers = {"Retry-After": "5"}
        return "memory", RefusedError(message, None, 503, "server_error", headers=headers)

    def _draw(self, answer: Answer) -> None:
        request = answer.request
        schema = request.body.response_format is not None
        with self._compiling if schema else nullcontext():
            answer.check()
            drawing = request.drawing(self.pipeline, self.defaults)
        if request.body.likely is not None:
            check_exact(drawing, self._sampler, self._keeps)
        with self._rows.lent(request.count, answer.check):
            answer.drawn = True
            answer.session = self._batcher.join()
            answer.check()
            with answer.session as denoiser:
                joined = drawing.through(denoiser)
                for places in joined.batches():
                    self._draw_batch(answer, joined, places)
        self._lately.append(answer.age)
        self.metrics.seconds.observe(answer.age)
        self.metrics.texts.inc(request.count)
        for text in answer.texts:
            self.metrics.tokens.labels("prompt").inc(text.prompt_tokens)
            self.metrics.tokens.labels("text").inc(text.tokens)

    def _note_first(self, answer: Answer) -> None:
        """Measure the time until the first text, once."""
        if not answer.begun:
            answer.begun = True
            self.metrics.first.observe(answer.age)

    def _draw_batch(self, answer: Answer, drawing: Drawing, places: Sequence[int]) -> None:
        saved = self.pipeline.model
        samples = [drawing.samples[place] for place in places]
        texts = [answer.texts[place] for place in places]
        settled = [SettledText(drawing, place, self._keeps, bool(self.pieces)) for place in places]
        likely = answer.request.body.likely
        filmed = None
        if answer.filmed or likely is not None:
            filmed = Filmed(self._sampler, len(places))
        films = [LiveFilm(saved, self._names) for _ in places] if answer.filmed else []

        def on_step(k: int, t: Tensor, z: Tensor) -> None:
            answer.check()
            self.metrics.steps.inc()
            if filmed is not None:
                filmed.on_step(k, t, z)
            times = t.cpu()
            for row, (sample, text, part, states) in enumerate(
                zip(samples, texts, settled, z.cpu(), strict=True)
            ):
                part.take(times[row], states)
                text.settled = part.text
                if answer.request.body.drafts:
                    text.time = float(times[row].double().mean())
                    drafted = sample.row.drafted(states)
                    shown = render_states(saved.process, saved.tokenizer, drafted, self._names)
                    text.draft = shown.plain
                if films and filmed is not None:
                    text.film += films[row].messages(filmed.texts[row], sample)
            if any(part.text for part in settled):
                self._note_first(answer)
            if answer.request.body.stream or answer.filmed:
                answer.notify()
            if filmed is None and all(part.ended for part in settled):
                raise _EndedError

        try:
            drawn = drawing.draw(places, on_step, filmed)
        except _EndedError:
            for sample, part in zip(samples, settled, strict=True):
                sample.tokens = part.tokens
        self._note_first(answer)
        recorded = [] if filmed is None else filmed.end(drawn[:, samples[0].row.lead :])
        for number, (place, sample, text) in enumerate(zip(places, samples, texts, strict=True)):
            text.tokens = count_tokens(drawing, place)
            text.prompt_tokens = sample.row.prompted
            if films:
                text.film += films[number].messages(recorded[number], sample, last=True)
            if likely is not None:
                text.chances = chances(drawing, place, recorded[number], text.tokens)
            text.result = drawing.result(place)  # the last, as the reader may look at any time

"""Counters and gauges of a server, in the format of Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """The metrics of one server.

    Args:
        rows: rows of a network call.
    """

    def __init__(self, rows: int) -> None:
        self._registry = registry = CollectorRegistry()
        self.answers = Counter(
            "ddlib_answers", "Answers by route and status.", ["route", "status"], registry=registry
        )
        self.texts = Counter("ddlib_texts", "Texts that were drawn whole.", registry=registry)
        self.tokens = Counter(
            "ddlib_tokens", "Tokens of prompts and of texts.", ["kind"], registry=registry
        )
        self.ended = Counter(
            "ddlib_requests_ended",
            "Requests by their end: done, refused, cancelled, timeout, memory, failed.",
            ["how"],
            registry=registry,
        )
        self.steps = Counter("ddlib_steps", "Steps of all samplers.", registry=registry)
        self.rows = Gauge(
            "ddlib_rows_in_use", "Rows of requests that are drawn.", registry=registry
        )
        self.waiting = Gauge("ddlib_requests_waiting", "Requests in the queue.", registry=registry)
        self.seconds = Histogram(
            "ddlib_request_seconds",
            "Seconds from the arrival of a request to its last token.",
            registry=registry,
            buckets=SECONDS,
        )
        self.first = Histogram(
            "ddlib_first_text_seconds",
            "Seconds from the arrival of a request to the first text that no longer changes.",
            registry=registry,
            buckets=SECONDS,
        )
        Gauge("ddlib_rows", "Rows of a network call.", registry=registry).set(rows)

    def text(self) -> bytes:
        """Return all of them in the text format."""
        return generate_latest(self._registry)

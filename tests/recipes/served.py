"""A server of a tiny model in a thread of this process, on a free port of this machine."""

import json
import threading
import time
from contextlib import contextmanager

import httpx2
import openai
import uvicorn

from recipes.generation.sampling import Sampling
from recipes.serve import Options, listen, make_server

SECONDS = 60.0


class Served:
    """A running server, and clients of it.

    Args:
        server: the server.
        address: where it listens.
        key: that of its clients.
    """

    def __init__(self, server, address, key):
        self.server = server
        self.engine = server.engine
        self.address = address
        options = dict(base_url=f"{address}/v1", api_key=key, max_retries=0, timeout=SECONDS)
        self.client = openai.OpenAI(**options)
        self.http = httpx2.Client(
            base_url=address, headers={"Authorization": f"Bearer {key}"}, timeout=SECONDS
        )
        self.asynchronous = lambda: openai.AsyncOpenAI(**options)

    def post(self, route, body, **headers):
        """The answer to a body: values, or bytes as they are."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        kind = {"Content-Type": "application/json"}
        return self.http.post(route, content=content, headers=kind | headers)

    def text(self, prompt=None, **fields):
        """The choices of a completion."""
        return self.client.completions.create(model="run", prompt=prompt or "", **fields).choices

    def until(self, holds):
        """Wait until something is so."""
        end = time.monotonic() + SECONDS
        while not holds():
            assert time.monotonic() < end
            time.sleep(0.01)

    def idle(self):
        """Wait until there is no request, and all rows are free."""
        self.until(lambda: not self.engine.busy)
        assert self.engine._rows.free == self.engine.limits.rows
        assert not self.engine._rows.waiting


@contextmanager
def serving(run, key="", **options):
    """Serve a run with the name "run"; its options are those of the command."""
    sampling = options.pop("sampling", Sampling(steps=8))
    given = Options(run=str(run), name="run", port=0, sampling=sampling, device="cpu", **options)
    keys = [key] if key else []
    listening = listen(given.host, given.port, keys)
    server = make_server(given, keys)
    config = uvicorn.Config(server.app, log_level="warning", ws="none", lifespan="off")
    runner = uvicorn.Server(config)
    thread = threading.Thread(target=runner.run, kwargs={"sockets": [listening]})
    thread.start()
    served = Served(server, f"http://127.0.0.1:{listening.getsockname()[1]}", key or "none")
    try:
        yield served
    finally:
        served.client.close()
        served.http.close()
        runner.should_exit = True
        thread.join(SECONDS)
        server.engine.close()
        listening.close()

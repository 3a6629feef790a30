r"""A server with the routes of OpenAI's interface for a trained model, until it is interrupted.

    python -m recipes.serve runs/owt/mdlm
    python -m recipes.serve runs/owt/mdlm --steps 64 --sampler confidence:threshold=0.9 --port 8080
    DDLIB_KEYS=secret python -m recipes.serve me/my-model --host 0.0.0.0 --rows 32

    curl localhost:8000/v1/completions -H "Content-Type: application/json" \
        -d '{"model": "mdlm", "prompt": "The weather", "max_tokens": 32, "seed": 1}'

http://localhost:8000 shows a text as it denoises. Requests that arrive while others are drawn join
their network calls, and have the texts that they would have alone. It needs
pip install "ddlib[serve]".
"""

import asyncio
import ipaddress
import logging
import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

import ddlib as dd
from recipes.console import command, make_console, plain_errors
from recipes.generation.pipeline import Pipeline, TextOptions, call_lengths, usable_device
from recipes.generation.sampling import Sampling
from recipes.model_io import LoadOptions, Precision, one_of
from recipes.serving.rows import Limits

if TYPE_CHECKING:
    from recipes.serving.routes import Server

INSTALL = 'pip install "ddlib[serve]"'
GRACE = 5
"""Seconds that requests have to end when the server is stopped; one before, others are refused."""
KEYS = "DDLIB_KEYS"
"""Environment variable with the keys, with commas between them."""
LOCAL = ("localhost", "127.0.0.1", "[::1]")
"""Names of this machine in the header Host."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of ``python -m recipes.serve``."""

    run: tyro.conf.Positional[str | None] = None
    """Folder of a run or of weights, or owner/name on the Hugging Face hub, also of a third-party
    denoiser.
    """
    model: str | None = None
    """The same as a named option, in place of the positional one."""
    name: str | None = None
    """Name of the model in requests; by default the last part of RUN."""
    host: str = "127.0.0.1"
    """Address to listen at. Another one than that of this machine alone requires keys, in the
    environment variable DDLIB_KEYS, with commas between them.
    """
    port: int = 8000
    """Port; 0 for any that is free."""
    limits: Annotated[Limits, tyro.conf.arg(name="")] = field(default_factory=Limits)
    fewer: tuple[int, ...] = ()
    """Smaller numbers of rows, such as 1 4, for calls in which they suffice: less work, but the
    rounding of a text then depends on the other requests.
    """
    sampling: Annotated[Sampling, tyro.conf.arg(name="")] = field(default_factory=Sampling)
    precision: Precision = "float32"
    """Precision of the network; draws are always made in float64."""
    device: str | None = None
    """Device of the network; by default CUDA if there is any."""
    reading: Annotated[LoadOptions, tyro.conf.arg(name="")] = field(default_factory=LoadOptions)

    def __post_init__(self) -> None:
        object.__setattr__(self, "run", one_of(self.run, self.model))
        object.__setattr__(self, "model", None)
        if not 0 <= self.port < 2**16:
            raise ValueError(f"port={self.port}: must be 0 to 65535")
        rows = self.limits.rows
        if any(not 1 <= size < rows for size in self.fewer):
            raise ValueError(f"fewer={self.fewer}: must be 1 to {rows - 1}, below rows")
        for name in ("label", "memory"):
            if value := getattr(self.sampling, name):
                raise ValueError(f"{name}={value!r}: is not supported by the server")


def make_server(options: Options, keys: Sequence[str] = ()) -> "Server":
    """Load the model, and return its server, after a check that it can draw texts.

    Args:
        options: options of the command.
        keys: keys of which a request must have one.

    Raises:
        ModuleNotFoundError: a package of the extra is not installed.
        OSError, ValueError: the model cannot be loaded, or does not support the options.
    """
    try:
        from recipes.serving.engine import Engine
        from recipes.serving.routes import Server
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}; run: {INSTALL}") from error
    device = usable_device(options.device)
    found = options.reading.find(str(options.run), device, options.precision)
    layout = found.files.layout
    if layout is not None and (layout.fields or layout.is_picture):
        kind = "values of several alphabets" if layout.fields else "pictures"
        raise ValueError(f"run={options.run}: draws {kind}, must be a model of texts or of symbols")
    pipeline = Pipeline(found)
    pipeline.drawing(None, TextOptions(sampling=options.sampling))  # its checks
    name = options.name or Path(str(options.run)).name
    saved = replace(pipeline.model, name=name)  # messages show no path
    rows = [*options.fewer, options.limits.rows]
    batcher = dd.contrib.Batcher(saved.denoiser, rows, call_lengths(saved.length))
    engine = Engine(Pipeline(saved, options.limits.rows), batcher, options.sampling, options.limits)
    return Server(engine, name, keys, LOCAL if is_local(options.host) else None)


def is_local(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def listen(host: str, port: int, keys: Sequence[str]) -> socket.socket:
    """Return a socket that listens, before the work of loading a model is done.

    Raises:
        OSError: the address cannot be had.
        ValueError: other machines could use the model without a key.
    """
    if not is_local(host) and not keys:
        raise ValueError(
            f"host={host!r}: other machines can reach it, so {KEYS} must hold a key, or several "
            "with commas between them"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
    except OSError as error:
        listening.close()
        raise OSError(f"host={host!r}, port={port}: {error.strerror}") from error
    return listening


def serve(options: Options) -> None:
    """Serve the model until the process is interrupted."""
    try:
        import uvicorn
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{error}; run: {INSTALL}") from error
    console = make_console()
    keys = [key for one in os.environ.get(KEYS, "").split(",") if (key := one.strip())]
    with listen(options.host, options.port, keys) as listening:
        logging.basicConfig(format="%(levelname)s: %(message)s")
        server = make_server(options, keys)
        host = f"[{options.host}]" if ":" in options.host else options.host
        address = f"http://{host}:{listening.getsockname()[1]}"
        chat = getattr(server.engine.pipeline.model.tokenizer, "template", "")
        for name, value in (
            ("model", server.name if chat else f"{server.name}, without a chat template"),
            ("routes", f"{address}/v1"),
            ("page", address),
        ):
            console.print(f"{name + ':':8} {value}", markup=False, soft_wrap=True)
        config = uvicorn.Config(
            server.app,
            log_level="warning",
            timeout_graceful_shutdown=GRACE,
            ws="none",
            lifespan="off",
        )

        class Stopping(uvicorn.Server):
            """Server that answers every request before it ends."""

            async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
                asyncio.get_running_loop().call_later(GRACE - 1, server.engine.stop)
                await super().shutdown(sockets)

        try:
            Stopping(config).run(sockets=[listening])
        finally:
            server.engine.close()


def main(arguments: Sequence[str] | None = None) -> None:
    with plain_errors():
        serve(
            tyro.cli(Options, args=arguments, prog="python -m recipes.serve", description=__doc__)
        )


if __name__ == "__main__":
    command(main)

"""Number of evaluations of a network while sequences are drawn."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from typing import Any

from torch import nn

METHODS = ("forward", "features", "features_at", "prefill", "prefill_around", "extend")
"""Methods by which samplers evaluate a network, see ``ddlib.typing``."""


@dataclass
class NetworkCalls:
    """Number of evaluations of a network."""

    sequences: int = 0
    """Sum of the sequences in each call: a step that evaluates 3 of 8 sequences adds 3."""


@contextmanager
def network_calls(model: nn.Module) -> Iterator[NetworkCalls]:
    """Count the evaluations of a network inside the block.

    The network computes the same as without.

    A call inside another one, such as that of ``features`` by ``forward``, is not counted. The
    encoding of finished blocks for a cache (``prefill``) is.

    Args:
        model: the network, or an adapter of one.
    """
    calls = NetworkCalls()
    depth = [0]

    def counting(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def count_call(z: Any, *others: Any, **options: Any) -> Any:
            calls.sequences += (
                len(z) if depth[0] == 0 and z.numel() else 0
            )  # no tokens: the first block's cache
            depth[0] += 1
            try:
                return method(z, *others, **options)
            finally:
                depth[0] -= 1

        return count_call

    def watch(network: nn.Module) -> list[str]:
        networks = [
            name
            for name in METHODS
            if callable(getattr(network, name, None)) and name not in vars(network)
        ]
        for name in networks:
            setattr(network, name, counting(getattr(network, name)))
        if callable(
            after := getattr(network, "after", None)
        ):  # its result is another network, with the same weights

            def watch_after(*arguments: Any) -> nn.Module:
                other: nn.Module = after(*arguments)
                watch(other)
                return other

            setattr(network, "after", watch_after)  # noqa: B010
            networks.append("after")
        return networks

    names = watch(model)
    try:
        yield calls
    finally:
        for name in names:
            delattr(model, name)

"""Cost of every sampler besides the network.

    python -m benchmarks.sampler_costs                # all registered ones
    python -m benchmarks.sampler_costs gibbs remask

One sequence of 512 tokens in 32 steps by a 12 x 768 DiT with random weights over 50,257 tokens, on
one thread of a CPU in float32. The network is the blocks and the products of the output layer, with
the selection of its rows; the sampler's cost is everything else: draws, distributions, orders,
softmax. ``outside`` is that over the blocks' time. As in ``sampling`` the blocks run at every
fourth call, which is timed, and the other calls reuse the last features; their median counts for
all calls.

A sampler runs on the hierarchy of ``sampling`` if it supports that process, else on GIDD; with
logits of tokens, and with those of the children of each state.
"""

import argparse
import json
import statistics
from collections.abc import Callable
from inspect import signature
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch.nn.functional import linear

import ddlib as dd
from benchmarks.head import parents
from benchmarks.measuring import now
from benchmarks.sampling import TEXT, TINY_TEXT, Sometimes, Text, network
from ddlib.processes import ForwardProcess
from ddlib.samplers import Sampler
from ddlib.samplers.runtime.output_layer import Head
from ddlib_models import DiT

KINDS = ("words", "children")
COSTS = TEXT._replace(steps=32, every=4)
TINY_COSTS = TINY_TEXT


class Watched(Sometimes):
    """``Sometimes`` for samplers that evaluate every position too.

    Times the products of the output layer.
    """

    def __init__(self, model: DiT, text: Text) -> None:
        super().__init__(model, text, lambda z, t: None)
        self.products = 0.0
        self._product = Head.product
        self._layer = model.output_weights()

    def __call__(self, z: Tensor, t: Tensor) -> Tensor:
        return self._time(linear, self.features(z, t), *self._layer)

    def product(self, layer: Head, *arguments: Tensor | slice) -> Tensor:
        """Compute a product of the output layer."""
        return self._time(self._product, layer, *arguments)

    def _time(self, run: Callable[..., Tensor], *arguments: object) -> Tensor:
        begin = now(self.device)
        result = run(*arguments)
        self.products += now(self.device) - begin
        return result


def processes(text: Text) -> list[ForwardProcess]:
    """Return the processes for samplers: the first that is supported is used."""
    return [
        dd.presets.hdlm(parents(text.vocabulary)),
        dd.presets.gidd(text.vocabulary.words, 0.2),
    ]


@torch.no_grad()
def measure(sampler: Sampler, children: bool = False, text: Text = COSTS) -> dict[str, Any]:
    """Return seconds of blocks, of products and of the rest, for one sequence."""
    for process in processes(text):
        model = network(process, text, tree=[parents(text.vocabulary)] if children else None)
        meaning = dd.Children.of(model) if children else "cavity"
        watched = Watched(model, text)
        generator = torch.Generator().manual_seed(0)
        begin = now(text.device)
        try:
            with patch.object(Head, "product", lambda *of, run=watched.product: run(*of)):
                shape = (text.sequences, text.length)
                dd.sample(
                    process,
                    watched,
                    shape,
                    sampler,
                    text.steps,
                    generator=generator,
                    parameterization=meaning,
                    controls=[dd.controls.WholeBatch()],
                )
        except TypeError:
            continue
        whole = now(text.device) - begin
        blocks = statistics.median(watched.blocks) * watched.calls
        outside = whole - sum(watched.blocks) - sum(watched.others) - watched.products
        return {
            "ratios": {"outside": outside / blocks},
            "seconds": {"blocks": blocks, "products": watched.products, "outside": outside},
            "calls": watched.calls,
            "steps": text.steps,
            "process": type(process).__name__,
            "sampler": repr(sampler),
        }
    raise TypeError(f"{sampler!r} supports neither a hierarchy nor GIDD")


def of(name: str, children: bool = False, text: Text = COSTS) -> dict[str, Any]:
    """Measure a registered sampler with its defaults.

    With its first example where arguments are required.
    """
    kind = dd.registry.get("samplers", name)
    required = any(one.default is one.empty for one in signature(kind).parameters.values())
    return measure(kind.examples()[0] if required else kind(), children, text)


def every(text: Text = COSTS) -> dict[str, Any]:
    """Measure all samplers, with both kinds of logits."""
    results = {
        f"{name}, {kind}": of(name, kind == "children", text)
        for name in dd.registry.built_in("samplers")
        for kind in KINDS
    }
    return {"ratios": {name: one["ratios"]["outside"] for name, one in results.items()}, **results}


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("samplers", nargs="*", help="registered names; default all")
    parser.add_argument("--tiny", action="store_true", help="8 tokens, 2 x 16: a test run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.samplers or dd.registry.built_in("samplers"):
        for kind in KINDS:
            result = of(name, kind == "children", TINY_COSTS if options.tiny else COSTS)
            print(name, kind, json.dumps(result), flush=True)


if __name__ == "__main__":
    main()

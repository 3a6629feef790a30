"""Plain values of a process and a network from one's own loop, checked by building both from
them.
"""

from collections.abc import Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from jaxtyping import Float, Int
from tokenizers import Tokenizer
from torch import Tensor, nn

import ddlib as dd
from ddlib import parts
from ddlib_models import Pretrained
from recipes.config import ModelContext, Recipe, RunContext
from recipes.data import Layout
from recipes.metrics.conditioned import takes_labels

LISTED = 5
"""Number of differences that an error message lists."""


class Given(RunContext):
    """Run context in which all values of the parts are given, so that nothing is computed from
    data.

    Args:
        tokenizer: the tokenizer.
        layout: layout of the sequences of symbols; None for text.
    """

    def __init__(self, tokenizer: Tokenizer, layout: Layout | None) -> None:
        self._vocabulary = tokenizer.get_vocab()
        self._layout = layout

    def vocabulary(self) -> dict[str, int]:
        return self._vocabulary

    def counts(self) -> Int[Tensor, " V"]:
        raise ValueError("is unknown outside of a run, must be a value of the part")

    def parents(self, clusters: int | list[int] | str = 64) -> list[Int[Tensor, " n"]]:
        raise ValueError("is unknown outside of a run, must be a value of the part")


def model_values(network: Any, model: Mapping[str, Any] | str | None) -> dict[str, Any] | str:
    """Return the values that the network is built from."""
    if not isinstance(network, nn.Module):
        raise TypeError(f"network is {network!r}, must be a torch.nn.Module")
    if model is None and not isinstance(network, Pretrained):
        raise TypeError(
            f"network: {type(network).__name__} does not record the arguments that it was built "
            "from, as a "
            "ddlib_models.Pretrained does. Give them: model={'kind': 'package.module:"
            f"{type(network).__name__}', "
            "...}; of a wrapper, such as a compiled network, give the network inside"
        )
    values: dict[str, Any] | str = (
        {"kind": parts.kind_of(type(network)), **network.saved_arguments()}
        if model is None
        else model
        if isinstance(model, str)
        else dict(model)
    )
    kind = values if isinstance(values, str) else str(values.get("kind"))
    if kind.startswith("__main__:") or "<locals>" in kind:
        raise TypeError(
            f"model.kind is {kind}: other programs cannot import it, move it to a module"
        )
    return values


def with_full_attention(recipe: Recipe, network: nn.Module) -> Recipe:
    """Return the recipe with the block size of a network whose positions all attend to each other,
    if the pace has one.

    A recipe gives the size of the pace's blocks to a network that sets none, see
    ``Recipe.network``; one block as long as the sequence is full attention.
    """
    sized = "block_size" in parts.keys("backbones", recipe.model["kind"])
    if recipe.order().block is None or not sized or getattr(network, "block_size", None) != 0:
        return recipe
    return replace(recipe, model=recipe.model | {"block_size": recipe.data.length})


@torch.no_grad()
def rebuilt(
    recipe: Recipe, process: dd.processes.ForwardProcess, network: nn.Module, known: Given
) -> nn.Module:
    """Return the network as it will be loaded: built from the values of the recipe, with the
    weights of ``network``.

    Raises:
        ValueError: the values give another process or another network.
    """
    built = dd.build("processes", recipe.process, known, "process")
    if repr(built) != repr(process):
        raise ValueError(f"process: its plain values give {built!r}, must give {process!r}")
    for name in ("vocab_size", "num_states"):
        if getattr(network, name, getattr(process, name)) != getattr(process, name):
            raise ValueError(
                f"network has {name}={getattr(network, name)}, the process "
                f"{getattr(process, name)}: they must be equal"
            )
    model = dd.build("backbones", recipe.network, ModelContext(known, built), "model")
    if type(model) is not type(network):
        raise ValueError(
            f"model: its values give {type(model).__name__}, network is {type(network).__name__}: "
            "of a wrapper, such "
            "as a compiled network, give the network inside"
        )
    weights = network.state_dict()
    for name, tensor in weights.items():
        if isinstance(tensor, Tensor) and not bool(tensor.isfinite().all()):
            raise ValueError(f"network: {name} holds NaN or infinity, must be finite")
    expected = model.state_dict()
    there, wanted = (
        {name: tuple(getattr(one, "shape", ())) for name, one in each.items()}
        for each in (expected, weights)
    )
    faults = [
        f"{name} is {wanted.get(name, 'missing')}, in the built network "
        f"{there.get(name, 'missing')}"
        for name in sorted(there.keys() | wanted.keys())
        if there.get(name) != wanted.get(name)
    ]
    if faults:
        raise ValueError(
            f"model: its values give another network: {'; '.join(islice(faults, LISTED))}"
        )
    floating = {
        one.dtype for one in weights.values() if isinstance(one, Tensor) and one.is_floating_point()
    }
    if len(floating) == 1:
        model.to(floating.pop())
    model.load_state_dict(weights)
    _check_output(model, network, process, recipe.data.length)
    return model


def _check_output(
    model: nn.Module, network: nn.Module, process: dd.processes.ForwardProcess, length: int
) -> None:
    """Raise ValueError if the built network computes other logits: an argument that has no weights
    may differ.
    """
    device = next((one.device for one in network.parameters()), torch.device("cpu"))
    z = torch.arange(length)[None] * 7919 % process.num_states
    training = network.training
    t = torch.full((1,), 0.5)
    # a class, as a network without a null class requires one
    label = {"label": torch.zeros(1, dtype=torch.int64)} if takes_labels(network) else {}
    try:
        theirs = _evaluate(network.eval(), z, t, label, device)
    finally:
        network.train(training)
    ours = _evaluate(model.eval(), z, t, label, torch.device("cpu"))
    exact = max(torch.finfo(one.dtype).eps for one in (ours, theirs)) < 1e-6
    # devices round differently
    tolerance = 1e-3 if exact else 5e-2
    scale = float(theirs.abs().max().nan_to_num()) + 1
    if not torch.allclose(
        ours.double(), theirs.double(), rtol=0, atol=tolerance * scale, equal_nan=True
    ):
        raise ValueError(
            "model: its values give a network with other logits: an argument differs that has no "
            "weights"
        )


def _evaluate(
    network: nn.Module, z: Tensor, t: Tensor, options: Mapping[str, Tensor], device: torch.device
) -> Float[Tensor, "B L K"]:
    """Return the logits of a network on its device."""
    inputs = z.to(device), t.to(device)
    there = {name: value.to(device) for name, value in options.items()}
    try:
        logits: Tensor = network(*inputs, **there)
    except TypeError:
        if device.type == "cpu":
            raise
        with torch.autocast(
            device.type, torch.bfloat16
        ):  # attention kernels that take half precision only
            logits = network(*inputs, **there)
    return logits.cpu()

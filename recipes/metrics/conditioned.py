"""Conditioning of a network on clean tokens at some positions, or on labels."""

from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Int64
from torch import Tensor

from ddlib.typing import Denoiser, TakesMemory, Tokens, implements

TOLD = (
    "own_times",
    "block_size",
    "num_classes",
    "takes_padding",
    "shifts_rows",
    "parameterization",
)
"""Attributes of a network that determine its arguments and output, see ``ddlib.typing``."""


def telling(denoiser: Denoiser, network: object) -> Denoiser:
    """Copy the network's attributes to the function, and return it."""
    denoiser.__qualname__ = type(network).__qualname__  # for messages
    for name in TOLD:
        if hasattr(network, name):
            setattr(denoiser, name, getattr(network, name))
    return denoiser


@runtime_checkable
class TakesLabels(Protocol):
    """Network whose call and ``features`` take ``label``: a class per sequence, int64 (B,); -1 for
    none.
    """

    num_classes: int
    """Number of classes; 0 for a network that was built without."""


def takes_labels(network: object) -> bool:
    """Return whether the network is conditioned on a label."""
    return implements(network, TakesLabels) and network.num_classes > 0


def takes_memory(network: object) -> bool:
    """Return whether the network takes the features of its previous call."""
    return implements(network, TakesMemory) and network.takes_memory


def with_label(denoiser: Denoiser, label: Int64[Tensor, " B"] | int) -> Denoiser:
    """Return a denoiser at fixed labels, one per row of its batch, or one for all rows."""
    if hasattr(denoiser, "with_label"):  # a network, which keeps its two parts
        fixed: Denoiser = denoiser.with_label(label)
        return fixed

    def see(z: Tensor, t: Tensor, **options: Any) -> Tensor:
        # a tensor, as in training: a user's network may not accept an int
        rows = label if isinstance(label, Tensor) else torch.full((len(z),), label, device=z.device)
        return denoiser(z, t, label=rows, **options)

    return telling(see, denoiser)


def with_labels(
    denoiser: Denoiser, labels: Int64[Tensor, " B"] | None, copies: int = 1
) -> Denoiser:
    """Return a denoiser at the labels of a batch.

    Without labels, or if the network takes none, as it is.

    Args:
        denoiser: ``(z, t) -> logits``.
        labels: class of each sequence of the batch.
        copies: number of adjoining rows of each sequence.
    """
    if labels is None or not takes_labels(denoiser):
        return denoiser
    return with_label(denoiser, labels.repeat_interleave(copies))


def with_tokens(denoiser: Denoiser, x: Tokens, fixed: Bool[Tensor, "B L"]) -> Denoiser:
    """Return a denoiser whose input is x (B, L) where it is fixed, whatever the noise there.

    The bound is a sum over positions, so those can be left out of it: the rest is the bound of a
    model that samples the others as ``dd.sample`` does around a prompt.
    """

    def see(z: Tensor, t: Tensor, **options: Any) -> Tensor:
        return denoiser(torch.where(fixed, x, z), t, **options)

    return telling(see, denoiser)

"""First pass of a training step, whose features the second takes as those of its previous call
(``loss.memory``).
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor, nn

import ddlib as dd
from ddlib.paces import Pace
from ddlib.parameterization.capabilities import Capabilities
from recipes.data import Batch
from recipes.engine.noisy import Noisy

_STREAM = 2**59
"""Added to the index of an example, so that its chance is independent of its noise."""


def check_memory(share: float, pace: Pace, model: nn.Module) -> None:
    """Raise ValueError unless the network takes the features of its previous call exactly where
    training gives them.

    Args:
        share: ``loss.memory``.
        pace: the order of positions.
        model: the network.
    """
    option = f"loss.memory={share}"
    takes = Capabilities.of(model).takes_memory
    name = type(model).__name__
    if share and not takes:
        raise ValueError(
            f"{option}: not with {name}, which does not set takes_memory = True; a DiT does with "
            "model.memory=True"
        )
    if takes and not share:
        raise ValueError(
            f"{option}: must be above 0 with this {name}, whose takes_memory is True and is not "
            "trained otherwise"
        )
    if share and pace.block is not None:
        raise ValueError(
            f"{option}: not with pace={pace!r}, whose finished blocks are not called again"
        )


def recalling(noisy: Noisy, batch: Batch, seed: int, step: int, share: float) -> Noisy:
    """Draw the sequences that get the features of a first pass, by (seed, step, example) alone.

    None for a share of 0.

    Args:
        noisy: the batch at its times.
        batch: its examples; in packed rows each document is one.
        seed: seed of the run.
        step: number of the optimizer step.
        share: probability of each example.
    """
    if not share:
        return noisy
    chance = dd.KeyedGenerator(seed, step, batch.index + _STREAM, scattered=True).rand(
        (len(batch.index),)
    )
    recalls = chance < share
    if batch.cu_seqlens is not None:
        recalls = recalls.repeat_interleave(batch.cu_seqlens.diff(), output_size=batch.x.numel())
    return replace(noisy, recalls=recalls)


def recalled(
    noisy: Noisy, features: Callable[[], Tensor], half: bool
) -> Float[Tensor, "B L D"] | None:
    """Compute the features of a first pass without gradient, 0 at sequences that get none.

    None for a batch without.

    All sequences make the pass: which of them need it is not known on the host. The random numbers
    are those of the second pass, so that both drop the same units and labels.

    Args:
        noisy: the batch.
        features: the network's pass.
        half: whether matrix products are in bfloat16.
    """
    if noisy.recalls is None:
        return None
    device = noisy.z.device
    same = torch.random.fork_rng([device] if device.type != "cpu" else [], device_type=device.type)
    # a separate autocast: in one region some versions of torch reuse weights that were cast without
    # gradient
    with torch.no_grad(), same, torch.autocast(device.type, torch.bfloat16, enabled=half):
        found = features()
    return torch.where(noisy.recalls[:, None, None], found, 0.0)

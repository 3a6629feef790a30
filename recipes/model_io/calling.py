"""Denoisers around a network: reduced precision, and rows with padding."""

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor, nn

from ddlib.typing import Denoiser, SplitDenoiser, implements
from recipes.metrics.conditioned import takes_memory, telling


def as_function(model: nn.Module, half: bool, by: Denoiser | None = None) -> Denoiser:
    """Wrap the network in a function with the network's attributes.

    Args:
        model: the network.
        half: whether to compute matrix products in bfloat16.
        by: function to call in place of the network.
    """

    def wrap(call: Callable[..., Tensor]) -> Denoiser:
        def denoiser(z: Tensor, t: Tensor, **options: Any) -> Tensor:
            with torch.autocast(z.device.type, torch.bfloat16, enabled=half):
                return call(z, t, **options)

        return telling(denoiser, model)

    function = wrap(model if by is None else by)
    if by is None and takes_memory(model):  # samplers call only its features with memory
        # found at each call: a method may be replaced, as by a counter of calls
        function.features = wrap(lambda z, t, **options: model.features(z, t, **options))
        function.output_weights = model.output_weights
        function.takes_memory = True
    return function


def with_padding(denoiser: Denoiser, lengths: Int[Tensor, " B"]) -> Denoiser:
    """Return a denoiser of rows with padding behind them, with the outputs of each sequence alone.

    ``lengths`` is indexed by row: use ``dd.sample(..., controls=[dd.controls.WholeBatch()])``.
    Tokens in the padding are arbitrary.

    Args:
        denoiser: denoiser of a network that supports padding, by ``present`` (B, L) bool.
        lengths: (B,) tokens of each row before its padding.
    """

    def here(z: Tensor) -> Tensor:
        return torch.arange(z.shape[1], device=z.device) < lengths.to(z.device)[:, None]

    def see(z: Tensor, t: Tensor, **options: Any) -> Tensor:
        return denoiser(z, t, present=here(z), **options)

    if implements(denoiser, SplitDenoiser):  # so that only the required logits are computed
        see.features = lambda z, t: denoiser.features(z, t, present=here(z))
        see.output_weights = denoiser.output_weights
    return telling(see, denoiser)

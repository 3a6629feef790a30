"""Low-rank adapters (Hu et al. 2022, LoRA, arXiv:2106.09685) for a network of transformers, by
peft.
"""

import warnings

from torch import nn


def add_adapters(network: nn.Module, rank: int) -> nn.Module:
    """Add adapters to all linear layers but the output; the network's weights are frozen.

    Args:
        network: a network of transformers.
        rank: rank of the adapters, which are scaled by 2: ``lora_alpha`` is twice the rank.

    Raises:
        ModuleNotFoundError: peft is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            f"lora={rank} needs peft: pip install 'ddlib[adapt]'", name=error.name
        ) from error
    with warnings.catch_warnings():
        # peft 0.21 imports a name that transformers 5.23 has removed
        warnings.filterwarnings(
            "ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning
        )
        return get_peft_model(
            network, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear")
        )


def remove_adapters(network: nn.Module) -> nn.Module:
    """Return the network passed to ``add_adapters``, without the adapters."""
    return network.unload()


def merge_adapters(network: nn.Module) -> nn.Module:
    """Return the network passed to ``add_adapters``, with the adapters added to its matrices."""
    return network.merge_and_unload()

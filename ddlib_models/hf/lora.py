"""Adapters of low rank (Hu et al. 2022, LoRA, arXiv:2106.09685) for a network of transformers', by peft."""

import warnings

from torch import nn


def adapted(network: nn.Module, rank: int) -> nn.Module:
    """The network with adapters on all linear layers but the output; its own weights are frozen.

    Args:
        network: of transformers'.
        rank: of the adapters, which are scaled by 2: ``lora_alpha`` is twice the rank.

    Raises:
        ModuleNotFoundError: peft is not installed.
    """
    try:
        from peft import LoraConfig, get_peft_model
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"lora={rank} needs peft: pip install 'ddlib[adapt]'", name=error.name) from error
    with warnings.catch_warnings():
        # peft 0.21 asks transformers 5.23 by a name that this has given up
        warnings.filterwarnings("ignore", "`is_gradient_checkpointing` is deprecated", FutureWarning)
        return get_peft_model(network, LoraConfig(r=rank, lora_alpha=2 * rank, target_modules="all-linear"))


def merged(network: nn.Module) -> nn.Module:
    """The network that ``adapted`` took, with what the adapters learned added to its matrices."""
    return network.merge_and_unload()

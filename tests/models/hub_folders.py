"""Tiny pretrained models as their makers write them: what the tests of ``ddlib_models.hub``
share.
"""

import json
from pathlib import Path

import torch
from hf_checkpoints import write_tokenizer
from torch import nn
from transformers import PreTrainedTokenizerFast

MASK = 4
TOKENS = 13


def scatter(network: nn.Module, seed: int = 0) -> nn.Module:
    """Weights in which no bias and no row is zero."""
    torch.manual_seed(seed)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.2)
    return network.eval()


def save(
    folder: Path, network: nn.Module, mask: int | None = MASK, tokens: int = TOKENS, **special: str
) -> Path:
    """A folder as transformers writes it, with a tokenizer and its special tokens."""
    scatter(network).save_pretrained(folder)
    write_tokenizer(folder, mask, tokens)
    if special:
        tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
        tokenizer.add_special_tokens(special)
        tokenizer.save_pretrained(folder)
    return folder


def change(folder: Path, **values) -> Path:
    """The folder with other values in config.json; None takes a key away."""
    path = folder / "config.json"
    config = json.loads(path.read_text()) | values
    path.write_text(json.dumps({key: value for key, value in config.items() if value is not None}))
    return folder


def states(vocab_size: int, mask: int = MASK, batch: int = 3, length: int = 6) -> torch.Tensor:
    """Words that are none of the first few, and masks."""
    generator = torch.Generator().manual_seed(1)
    z = torch.randint(mask + 1, vocab_size, (batch, length), generator=generator)
    return torch.where(torch.rand(z.shape, generator=generator) < 0.4, vocab_size, z)


def ids(z: torch.Tensor, vocab_size: int, mask: int = MASK) -> torch.Tensor:
    """Ids as the model's own code reads them."""
    return torch.where(z == vocab_size, mask, z)

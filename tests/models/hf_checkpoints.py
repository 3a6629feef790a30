"""Tiny language models as Hugging Face writes them: what the tests of ``MaskedLM`` and ``CausalLM``
share.
"""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    DistilBertConfig,
    LlamaConfig,
    ModernBertConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
    RobertaConfig,
)

import ddlib as dd

WORDS = 11
ROWS = 20
MASK = 4
SIZE = dict(
    vocab_size=ROWS,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
)
SIZE |= dict(max_position_embeddings=12)
CONFIGS = {
    "bert": lambda: BertConfig(**SIZE, pad_token_id=0),
    "roberta": lambda: RobertaConfig(**SIZE, pad_token_id=1),
    "modernbert": lambda: ModernBertConfig(
        **SIZE,
        global_attn_every_n_layers=2,
        local_attention=4,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        cls_token_id=1,
        sep_token_id=2,
    ),
    "distilbert": lambda: DistilBertConfig(
        vocab_size=ROWS, dim=16, n_layers=2, n_heads=2, hidden_dim=32, max_position_embeddings=12
    ),
}

CAUSAL = {
    "llama": lambda: LlamaConfig(**SIZE, num_key_value_heads=1, tie_word_embeddings=True),
    "qwen2": lambda: Qwen2Config(**SIZE, num_key_value_heads=2),
    "qwen3": lambda: Qwen3Config(
        **SIZE, num_key_value_heads=1, head_dim=8, tie_word_embeddings=True
    ),
}


def write_tokenizer(folder: Path, mask: int | None, size: int = 13) -> None:
    names = {f"w{i}" if i != mask else "[MASK]": i for i in range(size)}
    tokenizer = Tokenizer(models.WordLevel(names, unk_token="w0"))
    special = {} if mask is None else {"mask_token": "[MASK]"}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **special).save_pretrained(folder)


def write(folder: Path, config, mask: int | None = MASK, auto=AutoModelForMaskedLM) -> Path:
    """A folder as transformers writes it, with weights in which no bias and no row is zero."""
    torch.manual_seed(0)
    network = auto.from_config(config)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.2)
    network.save_pretrained(folder)
    write_tokenizer(folder, mask)
    return folder


def write_all(root: Path) -> dict[str, Path]:
    return {kind: write(root / kind, config()) for kind, config in CONFIGS.items()}


def write_causal(root: Path, kinds=CAUSAL) -> dict[str, Path]:
    return {kind: write(root / kind, CAUSAL[kind](), None, AutoModelForCausalLM) for kind in kinds}


def check_use(process, model, length: int) -> None:
    """A step of training lowers the loss; the model has a bound, and samples words."""
    generator = torch.Generator().manual_seed(0)
    x = torch.arange(length).repeat(16, 1)
    t = dd.sample_times(len(x), generator=generator)
    z = process.sample(x, t, generator)

    def loss():
        weight, bias = model.output_weights()
        features = model.features(z, t)
        return dd.training_loss(
            process, dd.Hidden(features, weight, bias), x, z, t, weighting=dd.weightings.Clip(2.0)
        )

    before = loss()
    before.backward()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter -= 1e-2 * parameter.grad / (1 + parameter.grad.norm())
    assert loss() < before
    with torch.no_grad():
        assert dd.bound(process, model, x).total.isfinite().all()
    words = dd.sample(process, model, (2, length), steps=4)
    assert words.shape == (2, length) and words.max() < WORDS

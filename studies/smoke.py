"""Inputs of studies at tiny sizes: speeches in place of the corpus, and a random language model."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from recipes.data.text import load_speeches
from studies.corpus import public_domain

END = "<|endoftext|>"


def sources(size: int = 60_000) -> dict[str, str]:
    """Return so many characters of the State of the Union addresses in place of each source of the
    corpus.
    """
    whole = "\n".join(speech.text for speech in load_speeches())
    return {name: whole[size * place :][:size] for place, name in enumerate(public_domain.SOURCES)}


def letters() -> Tokenizer:
    """Return a tokenizer whose tokens are bytes, and an end of text."""
    symbols = [*sorted(pre_tokenizers.ByteLevel.alphabet()), END]
    tokenizer = Tokenizer(models.BPE({symbol: index for index, symbol in enumerate(symbols)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    return tokenizer


def judge(folder: Path) -> Path:
    """Write a random causal language model of bytes in the format of transformers, unless it is
    there.
    """
    if not folder.exists():
        from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

        size = dict(
            hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2
        )
        ends = dict(bos_token_id=256, eos_token_id=256)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            LlamaForCausalLM(LlamaConfig(vocab_size=257, **size, **ends)).save_pretrained(folder)
        PreTrainedTokenizerFast(
            tokenizer_object=letters(), eos_token=END, bos_token=END
        ).save_pretrained(folder)
    return folder

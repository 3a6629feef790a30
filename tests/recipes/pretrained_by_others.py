"""Tiny models as others publish them, with a tokenizer that has words, ends of texts and a chat
template.
"""

from pathlib import Path

import torch
from canvases import gemma
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    BertConfig,
    DiffusionGemmaForBlockDiffusion,
    LlamaConfig,
    ModernBertConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)
from zoo.runs import SENTENCES

from recipes.data.text import train_tokenizer

SPECIAL = dict(
    pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", mask_token="[MASK]", unk_token="[UNK]"
)
CHAT = (
    "{% for one in messages %}[{{ one['role'] }}] {{ one['content'] }}[SEP]{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
SIZE = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
SIZE |= dict(max_position_embeddings=96)


SHORT = ("The state of our union is strong.", "We will build roads, schools and bridges.", "No.")
"""Sentences of the texts for the models of ``write_small``."""
MARKS = ("[CLS]", "[SEP]", "[PAD]", "[MASK]")

CAUSAL = AutoModelForCausalLM.from_config
CLASSES = {"a2d": CAUSAL, "causal": CAUSAL, "gemma": DiffusionGemmaForBlockDiffusion}


def tokenizer() -> Tokenizer:
    """Words and pieces of them, from the sentences that every test's text is of."""
    made = Tokenizer(models.BPE(unk_token="[UNK]"))
    made.pre_tokenizer, made.decoder = (
        pre_tokenizers.ByteLevel(add_prefix_space=False),
        decoders.ByteLevel(),
    )
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=list(SPECIAL.values()),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    made.train_from_iterator(SENTENCES, trainer)
    return made


def write(folder: Path, kind: str = "modernbert", chat: bool = True) -> Path:
    """A folder as transformers writes it, of random weights in which no bias and no row is zero."""
    named = {
        "a2d": dict(eos_token="[SEP]", pad_token="[PAD]"),
        "gemma": dict(bos_token="[CLS]", eos_token="[SEP]"),
    }
    named = named.get("a2d" if kind == "causal" else kind, SPECIAL)
    own = PreTrainedTokenizerFast(tokenizer_object=tokenizer(), **named)
    own.chat_template = CHAT if chat else None
    sizes = SIZE | dict(vocab_size=len(own) + 3, pad_token_id=own.pad_token_id)
    ends = dict(bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2)
    config = {
        "bert": lambda: BertConfig(**sizes),
        "modernbert": lambda: ModernBertConfig(
            **sizes,
            **ends,
            local_attention=8,
            global_attn_every_n_layers=2,
        ),
        "a2d": lambda: Qwen3Config(
            **sizes,
            num_key_value_heads=1,
            head_dim=8,
            tie_word_embeddings=True,
            bos_token_id=None,
            eos_token_id=2,
        ),
        "gemma": lambda: gemma(len(own)),
    }["a2d" if kind == "causal" else kind]()
    torch.manual_seed(0)
    network = CLASSES.get(kind, AutoModelForMaskedLM.from_config)(config)
    for parameter in network.parameters():
        nn.init.normal_(parameter, std=0.3)
    network.save_pretrained(folder)
    own.save_pretrained(folder)
    if kind == "a2d":  # the same files as "causal" but for the name of a format of diffusion
        path = folder / "config.json"
        path.write_text(
            path.read_text(encoding="utf-8").replace('"qwen3"', '"a2d-qwen3"'), encoding="utf-8"
        )
    return folder


def small_tokenizer(
    sentences: tuple[str, ...] = SHORT, marks: tuple[str, ...] = MARKS
) -> Tokenizer:
    """At most 270 pieces of some sentences, and tokens that are not text."""
    made = train_tokenizer("\n".join(sentences) * 3, 270)
    made.add_special_tokens([AddedToken(name, normalized=False) for name in marks])
    return made


def write_small(folder, tokens: Tokenizer, kind: str = "bert", layers: int = 2, **named):
    """A folder as transformers writes it: a BERT or a Llama whose table has six rows to spare, and
    its tokenizer with these named tokens.
    """
    PreTrainedTokenizerFast(tokenizer_object=tokens, **named).save_pretrained(folder)
    torch.manual_seed(0)
    sizes = SIZE | dict(vocab_size=tokens.get_vocab_size() + 6, num_hidden_layers=layers)
    sizes |= dict(max_position_embeddings=24)
    if kind == "bert":
        network = AutoModelForMaskedLM.from_config(BertConfig(**sizes))
    else:
        network = CAUSAL(LlamaConfig(**sizes, tie_word_embeddings=True))
    network.save_pretrained(folder)
    return folder

"""Third-party configurations mapped to those of transformers' classes: llada as Llama, dream as
Qwen2, and others.
"""

from collections.abc import Collection, Mapping
from typing import Any

from ddlib_models.hub.family import Config
from ddlib_models.hub.files import transformers

_LLADA_OPTIONS: Mapping[str, tuple[Any, Collection[Any]]] = {
    "block_type": ("sequential", ("llama",)),
    "layer_norm_type": ("default", ("rms",)),
    "layer_norm_with_affine": (True, (True,)),
    "activation_type": ("swiglu", ("silu",)),
    "rope": (False, (True,)),
    "alibi": (False, (False,)),
    "attention_layer_norm": (False, (False,)),
    "include_bias": (False, (False,)),
    "include_qkv_bias": (False, (False, None)),
    "bias_for_layer_norm": (None, (False, None)),
    "input_emb_norm": (False, (False,)),
    "scale_logits": (False, (False,)),
    "block_group_size": (1, (1,)),
}
"""Options of LLaDA: the defaults where config.json omits them, and the values that Llama
supports.
"""

LLADA_NAMES = {
    r"^model\.transformer\.wte\.": "model.embed_tokens.",
    r"^model\.transformer\.ln_f\.": "model.norm.",
    r"^model\.transformer\.ff_out\.": "lm_head.",
} | {
    rf"^model\.transformer\.blocks\.(\d+)\.{theirs}\.": rf"model.layers.\1.{own}."
    for theirs, own in {
        "q_proj": "self_attn.q_proj",
        "k_proj": "self_attn.k_proj",
        "v_proj": "self_attn.v_proj",
        "attn_out": "self_attn.o_proj",
        "ff_proj": "mlp.gate_proj",
        "up_proj": "mlp.up_proj",
        "ff_out": "mlp.down_proj",
        "attn_norm": "input_layernorm",
        "ff_norm": "post_attention_layernorm",
    }.items()
}
"""Names of LLaDA's weights, and of Llama's."""

_SAME = {"sdar": "qwen3", "sdar_moe": "qwen3_moe", "Fast_dLLM_Qwen": "qwen2"}
"""Types of networks that are those of transformers apart from the mask, and the name of its
class.
"""


def llama_of_llada(config: Config) -> dict[str, Any]:
    """Map LLaDA's configuration to Llama's.

    Raises:
        ValueError: an option that Llama lacks.
    """
    for key, (default, allowed) in _LLADA_OPTIONS.items():
        value = config.get(key, default)
        if value not in allowed:
            raise ValueError(
                f"{key}={value!r}: must be {' or '.join(map(repr, allowed))} for Llama to be the "
                "same network"
            )
    heads = config["n_heads"]
    kv_heads = 1 if config.get("multi_query_attention") else heads
    return {
        "model_type": "llama",
        "hidden_size": config["d_model"],
        "num_hidden_layers": config["n_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": config.get("n_kv_heads") or kv_heads,
        "intermediate_size": config.get("mlp_hidden_size")
        or config.get("mlp_ratio", 4) * config["d_model"],
        "hidden_act": "silu",
        "vocab_size": config.get("embedding_size") or config["vocab_size"],
        "max_position_embeddings": config.get("max_sequence_length", 1024),
        "rms_norm_eps": config.get("rms_norm_eps", 1e-5),
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": config.get("rope_theta", 10000.0),
        },
        "tie_word_embeddings": config.get("weight_tying", True),
        "attention_bias": False,
        "mlp_bias": False,
    }


def qwen_of_dream(config: Config) -> dict[str, Any]:
    """Map Dream's configuration to Qwen2's.

    Raises:
        ValueError: an option that Qwen2 lacks.
    """
    for key in ("use_mrope", "block_size"):
        if config.get(key):
            raise ValueError(
                f"{key}={config[key]!r}: must be absent for Qwen2 to be the same network"
            )
    return {**config, "model_type": "qwen2", "use_sliding_window": False, "sliding_window": None}


def under_another_name(config: Config) -> dict[str, Any]:
    """Return the configuration of the class of transformers that a network is under another
    ``model_type``.

    Layers with a sliding window are configured without one, as the block-causal mask replaces it.
    """
    return {
        **config,
        "model_type": _SAME[config["model_type"]],
        "use_sliding_window": False,
        "sliding_window": None,
    }


def qwen_of_rnd1(config: Config) -> dict[str, Any]:
    """Map RND1's configuration to Qwen3Moe's, with the defaults of their class where config.json
    omits a key.
    """
    defaults: dict[str, Any] = {"norm_topk_prob": True, "head_dim": 128}
    if "rope_parameters" not in config:
        defaults["rope_theta"] = 1e6
    # they write False for none
    values = {key: value for key, value in config.items() if key != "rope_scaling" or value}
    return (
        defaults
        | values
        | {"model_type": "qwen3_moe", "use_sliding_window": False, "sliding_window": None}
    )


NEMOTRON_NAMES = {r"^encoder\.": "model.", r"^diffusion_head\.": "lm_head."}
"""Names of Nemotron-Labs-Diffusion's weights, and of Ministral3's."""


def ministral_of_nemotron(config: Config) -> dict[str, Any]:
    """Map Nemotron-Labs-Diffusion's configuration to Ministral3's.

    Raises:
        ValueError: an option that Ministral3 lacks, or a network that was trained without
            diffusion.
    """
    rules = {
        "dlm_paradigm": ("bidirectional", "block_diff"),
        "attention_bias": (False,),
        "mlp_bias": (False,),
    }
    for key, allowed in (rules | {"sliding_window": (None,)}).items():
        if config.get(key, allowed[0]) not in allowed:
            rule = " or ".join(map(repr, allowed))
            raise ValueError(
                f"{key}={config[key]!r}: must be {rule} for Ministral3 to be the same network"
            )
    return {**config, "model_type": "ministral3"}


def plain_class(config: Config) -> dict[str, Any]:
    """Return the configuration of a class of transformers, also under the name that A2D gives it,
    ``a2d-qwen3``.

    Raises:
        ValueError: transformers has no such class.
    """
    kind = str(config.get("model_type")).removeprefix("a2d-")
    if kind not in transformers().CONFIG_MAPPING:
        raise ValueError(
            f"model_type={config.get('model_type')!r}: transformers has no class for it"
        )
    return {**config, "model_type": kind}

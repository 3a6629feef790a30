"""Records of the known families."""

from ddlib.processes import Uniform
from ddlib.schedules import Linear
from ddlib_models.hub import config_mapping as native
from ddlib_models.hub import networks
from ddlib_models.hub.canvas import canvas
from ddlib_models.hub.family import Family

__all__ = ["a2d", "ddlib", "diffusion_gemma", "dream", "llada", "masked_lm"]


def a2d() -> Family:
    """A causal class of transformers, Llama, Qwen2, Qwen3, trained bidirectionally or by blocks: masks."""
    return Family(
        networks.causal_lm,
        model_types=("a2d-llama", "a2d-qwen2", "a2d-qwen3"),
        architectures="(ForCausalLM|LMHeadModel)$",
        native=native.plain_class,
        mask=("<|mask|>", "[MASK]", "<mask>"),
        block_size=None,
    )


def ddlib() -> Family:
    """Networks of ddlib, ``DiT`` and similar: masks, with a time condition."""
    return Family(
        networks.own,
        model_types=("ddlib",),
        native=networks.own_states,
        mask=None,
        timed=True,
        tokenizer="PreTrainedTokenizerFast",
    )


def dream() -> Family:
    """Dream and DiffuCoder: bidirectional Qwen2; each logit is one position to the left.

    Ye et al. 2025, arXiv:2508.15487.
    """
    return Family(
        networks.causal_lm,
        model_types=("Dream",),
        only={"architectures": ["DreamModel"]},
        native=native.qwen_of_dream,
        mask=("<|mask|>", 151666),
        shift=1,
        tokenizer="Qwen2Tokenizer",
    )


def llada() -> Family:
    """LLaDA: bidirectional Llama under other names of weights; each logit at its own position.

    Nie et al. 2025, arXiv:2502.09992.
    """
    return Family(
        networks.causal_lm,
        model_types=("llada",),
        native=native.llama_of_llada,
        rename=native.LLADA_NAMES,
        mask=("<|mdm_mask|>", 126336),
        ends=("<|eot_id|>", 126348),
    )


def diffusion_gemma() -> Family:
    """DiffusionGemma: uniform noise on canvases behind tokens cached by an encoder; the logits are the posterior."""
    return Family(
        canvas,
        model_types=("diffusion_gemma",),
        mask=None,
        block_size="canvas_length",
        noise=lambda vocab_size: Uniform(vocab_size, Linear()),
        parameterization="posterior",
        ends=("<turn|>", "<end_of_turn>"),
    )


def masked_lm() -> Family:
    """BERT, RoBERTa, ModernBERT and similar, also as chat models: masks, each logit at its own position."""
    return Family(networks.masked_lm, architectures="ForMaskedLM$", ends=("[/Answer]",))

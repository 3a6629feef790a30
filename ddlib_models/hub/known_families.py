"""Records of the known families."""

from ddlib.processes import Uniform
from ddlib.schedules import Linear
from ddlib_models.hub import config_mapping as native
from ddlib_models.hub import networks
from ddlib_models.hub.canvas import canvas
from ddlib_models.hub.causal_context import causal_context
from ddlib_models.hub.family import Family

__all__ = [
    "a2d",
    "ddlib",
    "diffusion_gemma",
    "dream",
    "fast_dllm",
    "llada",
    "llada2",
    "masked_lm",
    "nemotron_diffusion",
    "rnd1",
    "sdar",
]


def a2d() -> Family:
    """A causal class of transformers, Llama, Qwen2, Qwen3, trained bidirectionally or by blocks:
    masks.
    """
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
        networks.ddlib_network,
        model_types=("ddlib",),
        native=networks.token_states,
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
        decoding="confidence:score=probability",
        ends=("<|eot_id|>", 126348),
    )


def diffusion_gemma() -> Family:
    """DiffusionGemma: uniform noise on canvases behind tokens cached by an encoder.

    The logits are the posterior.
    """
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
    """BERT, RoBERTa, ModernBERT and similar, also as chat models: masks, each logit at its own
    position.
    """
    return Family(networks.masked_lm, architectures="ForMaskedLM$", ends=("[/Answer]",))


def sdar() -> Family:
    """SDAR, dense and with experts: Qwen3 by blocks of the size in config.json; each logit at its
    own position.

    Cheng et al. 2025, arXiv:2510.06303; github.com/JetAstra/SDAR, ``generate.py`` and
    ``modeling_sdar.py``. Blocks count from the beginning of the sequence, of which the prompt is a
    part. Published strategy: ``low_confidence_dynamic``, threshold 0.85, a step per position.
    """
    return Family(
        networks.causal_lm,
        model_types=("sdar", "sdar_moe"),
        native=native.under_another_name,
        mask=("<|MASK|>", 151669),
        block_size="block_size",
        decoding="confidence:score=probability,threshold=0.85",
    )


def fast_dllm() -> Family:
    """Fast-dLLM v2: Qwen2 by blocks of ``bd_size`` positions.

    Each logit is one position to the left.

    Wu et al. 2025, arXiv:2509.26328; github.com/NVlabs/Fast-dLLM, ``v2``, with ``modeling.py`` of
    the weights. The logits of the first position of a block are those at the last position of the
    finished block before it. Published loop: that position first, then the others in small blocks
    of 8 by threshold 0.9. ``decoding`` has the threshold; docs/coming_from.md the order.
    """
    return Family(
        networks.causal_lm,
        model_types=("Fast_dLLM_Qwen",),
        native=native.under_another_name,
        mask=("|<MASK>|", 151665),
        shift=1,
        block_size="bd_size",
        decoding="confidence:score=probability,threshold=0.9",
    )


def rnd1() -> Family:
    """RND1: bidirectional Qwen3 with experts; each logit is one position to the left.

    github.com/RadicalNumerics/RND1, ``rnd/modeling_rnd.py`` and ``rnd/sampling.py``. Published
    loop: the positions of lowest entropy, in 256 steps.
    """
    return Family(
        networks.causal_lm,
        model_types=("rnd1",),
        native=native.qwen_of_rnd1,
        mask=(151669,),
        shift=1,
        decoding="confidence:score=entropy",
    )


def llada2() -> Family:
    """LLaDA2.0 and 2.1, by code of their repositories: experts, blocks of 32; each logit at its own
    position.

    Bie et al. 2025, arXiv:2512.15745; ``modeling_llada2_moe.py`` of the weights. config.json names
    neither the blocks nor the mask. Published loop of LLaDA2.0: threshold 0.95, a step per
    position. LLaDA2.1 has the same configuration, threshold 0.7, and replaces tokens too.
    """
    return Family(
        networks.remote,
        model_types=("llada2_moe",),
        mask=("<|mask|>", 156895),
        block_size=32,
        decoding="confidence:score=probability,threshold=0.95",
        ends=(156892,),
    )


def nemotron_diffusion() -> Family:
    """Nemotron-Labs-Diffusion: Ministral3, whose blocks are bidirectional behind a causal context.

    NVIDIA 2026; huggingface.co/nvidia/Nemotron-Labs-Diffusion-8B,
    ``modeling_nemotron_labs_diffusion.py``, ``generate`` with ``causal_context``. Each logit is at
    its own position, but the first position of a block is predicted by the causal model from the
    position before. Published loop: that position first, then the others by threshold 0.9. Their
    blocks begin after the prompt; here they count from the beginning of the sequence.
    """
    return Family(
        causal_context,
        model_types=("nemotron_labs_diffusion",),
        native=native.ministral_of_nemotron,
        rename=native.NEMOTRON_NAMES,
        mask=(100,),
        block_size="block_size",
        decoding="confidence:score=probability,threshold=0.9",
    )

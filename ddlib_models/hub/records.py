"""The families that are known, each a record."""

from ddlib.processes import Uniform
from ddlib.schedules import Linear
from ddlib_models.hub import networks
from ddlib_models.hub.canvas import canvas
from ddlib_models.hub.family import Family

__all__ = ["diffusion_gemma", "masked_lm"]


def diffusion_gemma() -> Family:
    """DiffusionGemma: uniform noise on canvases behind words that an encoder keeps; what it says is the posterior."""
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
    """BERT, RoBERTa, ModernBERT and their kin, also as chat models: masks, each logit at its own position."""
    return Family(networks.masked_lm, architectures="ForMaskedLM$", ends=("[/Answer]",))

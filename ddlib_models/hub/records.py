"""The families that are known, each a record."""

from ddlib_models.hub import networks
from ddlib_models.hub.family import Family

__all__ = ["masked_lm"]


def masked_lm() -> Family:
    """BERT, RoBERTa, ModernBERT and their kin, also as chat models: masks, each logit at its own position."""
    return Family(
        networks.masked_lm,
        architectures="ForMaskedLM$",
        ends=("[/Answer]",),
    )

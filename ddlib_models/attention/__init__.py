"""Attention back ends behind one interface, and masks as predicates."""

from ddlib_models.attention.backends import (
    BACKENDS,
    SDPA,
    Attention,
    Flex,
    Varlen,
    XFormers,
    backend,
    cached_mask,
    owners,
)

__all__ = [
    "BACKENDS",
    "SDPA",
    "Attention",
    "Flex",
    "Varlen",
    "XFormers",
    "backend",
    "cached_mask",
    "owners",
]

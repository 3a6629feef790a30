"""Backbones for discrete diffusion: networks that map noisy states and a time to logits over words."""

from ddlib_models.dit import DiT

__all__ = ["DiT"]

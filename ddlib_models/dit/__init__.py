"""DiT, the diffusion transformer, with its heads and embeddings."""

from ddlib_models.dit.fields import FieldDiT
from ddlib_models.dit.network import DiT

__all__ = ["DiT", "FieldDiT"]

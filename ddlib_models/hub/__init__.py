"""Pretrained denoisers: ``load(name_or_path) -> (process, denoiser, tokenizer, special)``.

The only package in which networks and processes meet: a pretrained network is trained for one noise
process. Requires transformers: ``pip install 'ddlib[hf]'``.
"""

from ddlib_models.hub.choice import families
from ddlib_models.hub.denoiser import Adapted, Padded
from ddlib_models.hub.family import Family, WeightSource
from ddlib_models.hub.loading import Found, Loaded, find, load
from ddlib_models.hub.networks import remote
from ddlib_models.hub.special_tokens import Special

__all__ = [
    "Adapted",
    "Family",
    "Found",
    "Loaded",
    "Padded",
    "Special",
    "WeightSource",
    "families",
    "find",
    "load",
    "remote",
]

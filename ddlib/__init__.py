"""ddlib: discrete diffusion processes for language, composed from small objects.

A ``Schedule`` says when tokens jump, a ``Hierarchy`` says where, their product is a ``ForwardProcess``; the bound, the
training loss and every sampler follow.
"""

import os
from typing import TYPE_CHECKING, Any

if os.environ.get("DDLIB_SHAPECHECK", "0") not in ("", "0"):  # before any other module is imported
    from ddlib import shapecheck

    shapecheck.install("ddlib", "ddlib_models")

from ddlib import (
    guidance,
    hierarchies,
    paces,
    parts,
    plot,
    presets,
    processes,
    registry,
    samplers,
    schedules,
    times,
    weightings,
)
from ddlib.arguments import values
from ddlib.bound import Bound, bound, reconstruction
from ddlib.checks import debug
from ddlib.children import Children, word_logits
from ddlib.denoiser import cavity_logits, posterior_logits
from ddlib.kernels import linear_nelbo, linear_training_loss
from ddlib.likelihood import Likelihood, likelihood
from ddlib.nelbo import nelbo
from ddlib.noise import KeyedGenerator, mirrored
from ddlib.parts import build
from ddlib.reduce import Measure, Tally, mean_per_token
from ddlib.samplers import sample
from ddlib.speeds import speed_loss
from ddlib.times import sample_times
from ddlib.training import training_loss
from ddlib.vocabulary import check_vocabulary

if TYPE_CHECKING:
    from ddlib.verification.verify import verify

__version__ = "0.1.0"

__all__ = [
    "Bound",
    "Children",
    "KeyedGenerator",
    "Likelihood",
    "Measure",
    "Tally",
    "bound",
    "build",
    "cavity_logits",
    "check_vocabulary",
    "debug",
    "guidance",
    "hierarchies",
    "likelihood",
    "linear_nelbo",
    "linear_training_loss",
    "mean_per_token",
    "mirrored",
    "nelbo",
    "paces",
    "parts",
    "plot",
    "posterior_logits",
    "presets",
    "processes",
    "reconstruction",
    "registry",
    "sample",
    "sample_times",
    "samplers",
    "schedules",
    "speed_loss",
    "times",
    "training_loss",
    "values",
    "verify",
    "weightings",
    "word_logits",
]

if not TYPE_CHECKING:  # for a type checker, every name would be there

    def __dir__() -> list[str]:
        """The surface, without what Python adds to a package of modules."""
        return [*__all__, "__version__"]

    def __getattr__(name: str) -> Any:
        """``verify`` when it is asked for; refuses a name that is not there, and says which was meant."""
        if name == "verify":  # with sympy, for which whoever trains need not wait
            from ddlib.verification.verify import verify

            return verify
        if name.startswith("_"):  # tools that ask what kind of module this is
            raise AttributeError(f"module 'ddlib' has no attribute {name!r}")
        from ddlib.names import missing

        raise AttributeError(missing(name))

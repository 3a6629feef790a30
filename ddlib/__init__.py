"""ddlib: discrete diffusion processes for language, composed from small objects.

A ``Schedule`` (when tokens jump) and a ``Hierarchy`` (where they jump) define a ``ForwardProcess``.
The bound, the training loss and the samplers work for any ``ForwardProcess``.
"""

from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from ddlib import config as parts
from ddlib import (
    guidance,
    hierarchies,
    paces,
    plot,
    presets,
    processes,
    samplers,
    schedules,
    times,
    weightings,
)
from ddlib.config import registry
from ddlib.config.building import build
from ddlib.config.plain import values
from ddlib.kernels import Hidden, PlannedLoss
from ddlib.objective.bound import Bound, bound, reconstruction, variance_caveat
from ddlib.objective.given import hold_given
from ddlib.objective.metrics import Measure
from ddlib.objective.nelbo import nelbo
from ddlib.objective.tally import Tally
from ddlib.objective.training import summed_loss, training_loss
from ddlib.parameterization.logits import cavity_logits, posterior_logits
from ddlib.parameterization.tree_softmax import Children, token_logits
from ddlib.rewards import (
    bound_log_ratio,
    load_trajectory,
    log_prob,
    path_kl,
    preference_loss,
    reward_loss,
    save_trajectory,
)
from ddlib.samplers import controls
from ddlib.samplers.likelihood import Likelihood, likelihood
from ddlib.samplers.sampling import Given, plan, sample
from ddlib.times.draws import sample_times
from ddlib.utils.random import KeyedGenerator
from ddlib.utils.validation import debug
from ddlib.vocabulary import check_vocabulary, fingerprint

if TYPE_CHECKING:
    from ddlib import contrib
    from ddlib.verification.verifier import verify

__version__ = "0.2.0"

__all__ = [
    "Bound",
    "Children",
    "Given",
    "Hidden",
    "KeyedGenerator",
    "Likelihood",
    "Measure",
    "PlannedLoss",
    "Tally",
    "bound",
    "bound_log_ratio",
    "build",
    "cavity_logits",
    "check_vocabulary",
    "contrib",
    "controls",
    "debug",
    "fingerprint",
    "guidance",
    "hierarchies",
    "hold_given",
    "likelihood",
    "load_trajectory",
    "log_prob",
    "nelbo",
    "paces",
    "parts",
    "path_kl",
    "plan",
    "plot",
    "posterior_logits",
    "preference_loss",
    "presets",
    "processes",
    "reconstruction",
    "registry",
    "reward_loss",
    "sample",
    "sample_times",
    "samplers",
    "save_trajectory",
    "schedules",
    "summed_loss",
    "times",
    "token_logits",
    "training_loss",
    "values",
    "variance_caveat",
    "verify",
    "weightings",
]

if not TYPE_CHECKING:  # with __getattr__ a type checker would accept every name

    def __dir__() -> list[str]:
        """Return the public names, without submodules and helpers."""
        return [*__all__, "__version__"]

    def __getattr__(name: str) -> Any:
        """Import ``verify`` and ``contrib`` on first access.

        For an unknown name, raise AttributeError with suggestions.
        """
        if name == "contrib":  # on demand: the core does not need it
            return import_module("ddlib.contrib")
        if name == "verify":  # on demand, since its claims import sympy and scipy
            from ddlib.verification.verifier import verify

            return verify
        _raise_unknown("ddlib", name)

    def _raise_unknown(module: str, name: str) -> NoReturn:
        """Raise AttributeError with suggestions, without them for a private name."""
        if name.startswith("_"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        from ddlib.config.suggestions import missing

        raise AttributeError(missing(name, module))

    # set here, since the search for suggestions imports packages that are above these
    for _package in (
        controls,
        guidance,
        hierarchies,
        paces,
        plot,
        presets,
        processes,
        samplers,
        times,
        weightings,
    ):
        _package.__getattr__ = partial(_raise_unknown, _package.__name__)

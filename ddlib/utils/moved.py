"""Redirections of former module paths to the present modules, for one release."""

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

MOVED = {
    "ddlib.categorical": "ddlib.utils.categorical",
    "ddlib.checks": "ddlib.utils.validation",
    "ddlib.children": "ddlib.parameterization.tree_softmax",
    "ddlib.denoiser": "ddlib.parameterization.logits",
    "ddlib.diffusers": "ddlib.integrations.diffusers",
    "ddlib.exact": "ddlib.utils.precision",
    "ddlib.guidance.places": "ddlib.guidance.targets",
    "ddlib.kernels.autograd_fallback": "ddlib.kernels.tile",
    "ddlib.learned": "ddlib.utils.positive",
    "ddlib.names": "ddlib.plugins.suggestions",
    "ddlib.noise": "ddlib.utils.random",
    "ddlib.paces.in_turn": "ddlib.paces.sequential",
    "ddlib.paces.together": "ddlib.paces.base",
    "ddlib.parts": "ddlib.plugins.config",
    "ddlib.parts.building": "ddlib.plugins.config.building",
    "ddlib.plot.canvas": "ddlib.plot.axes",
    "ddlib.plot.paths": "ddlib.plot.trajectories",
    "ddlib.plot.tree": "ddlib.plot.tree_diagram",
    "ddlib.printing": "ddlib.utils.repr",
    "ddlib.processes.divergence": "ddlib.processes.hierarchical_kl",
    "ddlib.processes.levelled": "ddlib.processes.level_process",
    "ddlib.processes.levels": "ddlib.processes.level_chain",
    "ddlib.processes.mixing": "ddlib.processes.interpolating",
    "ddlib.processes.redrawing": "ddlib.processes.resampling_process",
    "ddlib.processes.redraws": "ddlib.processes.resampling_chain",
    "ddlib.processes.timed": "ddlib.processes.optimal_times",
    "ddlib.processes.times": "ddlib.processes.broadcasting",
    "ddlib.processes.tree_kernels": "ddlib.hierarchies.base",
    "ddlib.processes.ways": "ddlib.hierarchies.base",
    "ddlib.reduce": "ddlib.objective.metrics",
    "ddlib.registry": "ddlib.plugins.registry",
    "ddlib.samplers.corrected": "ddlib.samplers.correctors.corrected",
    "ddlib.samplers.corrector": "ddlib.samplers.correctors.base",
    "ddlib.samplers.edge_balance": "ddlib.samplers.correctors.edge_balance",
    "ddlib.samplers.ending": "ddlib.samplers.stopping",
    "ddlib.samplers.euler": "ddlib.samplers.rate_based",
    "ddlib.samplers.forward_backward": "ddlib.samplers.correctors.forward_backward",
    "ddlib.samplers.gibbs": "ddlib.samplers.correctors.gibbs",
    "ddlib.samplers.guided": "ddlib.samplers.runtime.reverse_step",
    "ddlib.samplers.head": "ddlib.samplers.runtime.output_layer",
    "ddlib.samplers.landing": "ddlib.samplers.runtime.reverse_step",
    "ddlib.samplers.leap": "ddlib.samplers.rate_based",
    "ddlib.samplers.network": "ddlib.samplers.runtime.model",
    "ddlib.samplers.orders": "ddlib.samplers.ordered",
    "ddlib.samplers.runtime.guided": "ddlib.samplers.runtime.reverse_step",
    "ddlib.samplers.runtime.pace_sampling": "ddlib.samplers.runtime.loop",
    "ddlib.samplers.self_correction": "ddlib.samplers.correctors.self_correction",
    "ddlib.samplers.sharpening": "ddlib.samplers.runtime.logit_processors",
    "ddlib.samplers.sight": "ddlib.samplers.runtime.context",
    "ddlib.samplers.tau_leaping": "ddlib.samplers.rate_based",
    "ddlib.samplers.windows": "ddlib.samplers.runtime.loop",
    "ddlib.samplers.wording": "ddlib.samplers.runtime.logit_processors",
    "ddlib.shapecheck": "ddlib.utils.shapecheck",
    "ddlib.show": "ddlib.plot.inspection",
    "ddlib.speeds": "ddlib.objective.learned_speeds",
    "ddlib.times.bell": "ddlib.times.logit_normal",
    "ddlib.times.draw": "ddlib.times.draws",
    "ddlib.times.uniform": "ddlib.times.base",
    "ddlib.training": "ddlib.objective.training",
    "ddlib.verification.framework.oracle": "ddlib.verification.framework.reference",
    "ddlib.verification.oracle": "ddlib.verification.framework.reference",
    "recipes.engine.abilities": "recipes.engine.model_protocols",
}
"""Former path: present path."""


class Redirection(MetaPathFinder, Loader):
    """Import finder for the modules in ``MOVED``: it imports the present module and warns."""

    def find_spec(
        self, fullname: str, path: object, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return ModuleSpec(fullname, self) if fullname in MOVED else None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        warnings.warn(
            f"{name} is {MOVED[name]} now; the next release removes the former path",
            DeprecationWarning,
            stacklevel=2,
        )
        sys.modules[name] = import_module(MOVED[name])


def install() -> None:
    """Install the import finder."""
    sys.meta_path.insert(0, Redirection())
    # functions of ddlib have these names, which the import of a module would replace
    for name in ("objective.bound", "objective.nelbo", "samplers.likelihood"):
        sys.modules[f"ddlib.{name.partition('.')[2]}"] = import_module(f"ddlib.{name}")

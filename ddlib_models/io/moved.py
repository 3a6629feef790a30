"""Former module paths and names of attributes in ddlib_models, which warn for one release."""

import sys
import warnings
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from typing_extensions import deprecated

MOVED = {
    "ddlib_models.adopted": "ddlib_models.hf.base",
    "ddlib_models.auto": "ddlib_models.hf.auto",
    "ddlib_models.body": "ddlib_models.dit.trunk",
    "ddlib_models.cache": "ddlib_models.kv_cache",
    "ddlib_models.causal_lm": "ddlib_models.hf.causal_lm",
    "ddlib_models.constants": "ddlib_models.io.constants",
    "ddlib_models.descriptions": "ddlib_models.io.json_files",
    "ddlib_models.embedding": "ddlib_models.dit.embedding",
    "ddlib_models.heads": "ddlib_models.dit.heads",
    "ddlib_models.hub.native": "ddlib_models.hub.config_mapping",
    "ddlib_models.hub.probe": "ddlib_models.diagnostics.leave_one_out",
    "ddlib_models.hub.reading": "ddlib_models.hub.files",
    "ddlib_models.hub.records": "ddlib_models.hub.known_families",
    "ddlib_models.hub.special": "ddlib_models.hub.special_tokens",
    "ddlib_models.layers": "ddlib_models.dit.layers",
    "ddlib_models.low_rank": "ddlib_models.hf.lora",
    "ddlib_models.manifest": "ddlib_models.io.manifest",
    "ddlib_models.masked_lm": "ddlib_models.hf.masked_lm",
    "ddlib_models.passes": "ddlib_models.dit.inputs",
    "ddlib_models.pretrained": "ddlib_models.io.pretrained",
    "ddlib_models.recall": "ddlib_models.hf.kv_cache",
    "ddlib_models.rules": "ddlib_models.attention.masks",
    "ddlib_models.sight": "ddlib_models.attention.sight",
    "ddlib_models.sizes": "ddlib_models.dit.presets",
    "ddlib_models.tree": "ddlib_models.dit.tree_head",
    "ddlib_models.weights": "ddlib_models.io.safetensors",
}
"""Former path: present path."""


def former_name(name: str, present: str) -> property:
    """Return a property for an attribute ``Class.former`` that warns and returns the attribute
    ``present``.
    """
    owner = name.split(".")[0]

    @deprecated(f"{name} is {owner}.{present} now; the next release removes the former name")
    def value(self: Any) -> Any:
        return getattr(self, present)

    return property(value)


class Redirection(MetaPathFinder, Loader):
    """Finder of the modules in ``MOVED``: it imports the present one and warns."""

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
    """Make the former paths importable."""
    sys.meta_path.insert(0, Redirection())

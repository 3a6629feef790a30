"""What is known of a kind of pretrained denoisers, as one record; and which record fits a configuration."""

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn

import ddlib as dd
from ddlib import registry
from ddlib.processes import ForwardProcess

Config = Mapping[str, Any]
"""What config.json says."""


@dataclass(frozen=True)
class Source:
    """Where a network is to be read from, and for which states."""

    name: str
    """A folder, or the id of a repository."""
    config: Config
    vocab_size: int
    num_states: int
    mask_id: int | None
    """The model's own id of the mask; None of noise without one."""
    bos: int | None
    """The id that begins a text."""
    block_size: int = 0
    shift: int = 0
    rename: Mapping[str, str] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    revision: str | None = None
    trust: bool = False

    @property
    def hub(self) -> dict[str, Any]:
        """What transformers' readers are told."""
        told = {"trust_remote_code": self.trust}
        return told if self.revision is None else told | {"revision": self.revision}


@dataclass(frozen=True)
class Family:
    """Pretrained denoisers that are read alike.

    A family of one's own is a function without arguments that gives one, registered as an entry point of the group
    ``ddlib.families``. ``dataclasses.replace(families.dream(), shift=0)`` says what differs from another.

    Args:
        network: makes the network: ``Source`` to a module ``(z, t) -> logits`` over ids 0..V-1, of states 0..V.
        model_types: the ``model_type`` of config.json that it is for.
        architectures: where no family names the ``model_type``: what the first of the ``architectures`` must match.
        only: keys of config.json and the values that they must have; another value, and the family does not fit.
        native: config.json as a class of transformers' own reads it, with its ``model_type``; raises ValueError for an
            option that this class has not.
        rename: patterns of names of weights, and what that class calls them.
        mask: the mask where neither config.json nor the tokenizer names it: tokens or ids, the first that is there.
            None if the tokenizer has no part in it: noise without a mask, or a network with a state of its own for it.
        shift: the logits of position i stand at i - ``shift``; those before stay.
        block_size: positions of a block, the key of config.json that says so, or 0: all positions see each other. None
            if networks of either kind are of this family and their files do not say which: 0 unless told.
        timed: whether the network looks at the time.
        noise: gives the process over V words.
        parameterization: what the logits mean, see ``ddlib.parameterization.logits``.
        ends: tokens or ids that end a text or a turn, besides the tokenizer's own.
        undrawn: tokens that are never drawn, besides the mask and ids without a token.
        tokenizer: the class of transformers that reads the tokenizer.
    """

    network: Callable[[Source], nn.Module]
    model_types: tuple[str, ...] = ()
    architectures: str = ""
    only: Mapping[str, Any] = field(default_factory=dict)
    native: Callable[[Config], dict[str, Any]] = dict
    rename: Mapping[str, str] = field(default_factory=dict)
    mask: tuple[str | int, ...] | None = ()
    shift: int = 0
    block_size: int | str | None = 0
    timed: bool = False
    noise: Callable[[int], ForwardProcess] = dd.presets.mdlm
    parameterization: str = "cavity"
    ends: tuple[str | int, ...] = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")
    undrawn: tuple[str, ...] = ()
    tokenizer: str = "AutoTokenizer"

    def fits(self, config: Config) -> bool:
        """Whether it is for the ``model_type`` of this configuration."""
        return config.get("model_type") in self.model_types and self._allowed(config)

    def resembles(self, config: Config) -> bool:
        """Whether the architecture is of its kind."""
        first = next(iter(config.get("architectures") or ()), "")
        return bool(self.architectures) and re.search(self.architectures, first) is not None and self._allowed(config)

    def blocks(self, config: Config) -> int:
        """Positions of a block, 0 for none."""
        found = config.get(self.block_size, 0) if isinstance(self.block_size, str) else self.block_size
        return int(found or 0)

    def _allowed(self, config: Config) -> bool:
        return all(config.get(key, value) == value for key, value in self.only.items())


def families() -> dict[str, Callable[[], Family]]:
    """What gives each family, by name: those of this package, and those of installed ones."""
    from ddlib_models.hub import known_families as records

    found = {name: getattr(records, name) for name in records.__all__}
    # a checkout may be newer than what is installed: its own families are found without an entry point
    others = [name for name in registry.available("families") if name not in found]
    return found | {name: partial(_plugged_in, name) for name in others}


def _plugged_in(name: str) -> Family:
    made = registry.get("families", name)()
    if not isinstance(made, Family):
        raise ImportError(f"families {name!r} gives {made!r}, must give a ddlib_models.hub.Family")
    return made


def chosen(name: str, config: Config, family: str | Family | None) -> tuple[str, Family]:
    """The family of a model, and what it is called.

    Raises:
        ValueError: none is known by that name, or none, or several, fit the configuration.
        ImportError: a plug-in of that name does not load.
    """
    if isinstance(family, Family):
        return "a family of one's own", family
    known = families()
    if family is not None:
        if family not in known:
            raise ValueError(f"family={family!r}: must be one of {', '.join(known)}, or a Family")
        return family, known[family]()
    every = {}
    for each, make in known.items():
        with suppress(ImportError):  # a plug-in that does not load harms nobody who does not ask for it
            every[each] = make()
    fitting = [each for each, one in every.items() if one.fits(config)]
    fitting = fitting or [each for each, one in every.items() if one.resembles(config)]
    kind, first = config.get("model_type"), next(iter(config.get("architectures") or ()), None)
    said = f"{name}: model_type {kind!r}, architecture {first!r}"
    if not fitting:
        raise ValueError(
            f"{said}: no family of {', '.join(every)} is for it. Say family=NAME (on the command line --family "
            "NAME) if it is read like one of them, or give a Family of your own"
        )
    if len(fitting) > 1:
        raise ValueError(
            f"{said}: may be of {' or '.join(fitting)}, say which: family={fitting[0]!r} (on the command line --family "
            f"{fitting[0]})"
        )
    return fitting[0], every[fitting[0]]

"""Families of pretrained denoisers as records, and the choice of the record that fits a
configuration.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

import ddlib as dd
from ddlib.processes import ForwardProcess

Config = Mapping[str, Any]
"""Content of config.json."""


@dataclass(frozen=True)
class WeightSource:
    """Location of a network and the states that it is read for."""

    name: str
    """A folder, or the id of a repository."""
    config: Config
    vocab_size: int
    num_states: int
    mask_id: int | None
    """The model's id of the mask; None for noise without one."""
    bos: int | None
    """The id that begins a sequence."""
    block_size: int = 0
    shift: int = 0
    rename: Mapping[str, str] = field(default_factory=dict)
    dtype: torch.dtype = torch.float32
    revision: str | None = None
    trust: bool = False

    @property
    def hub(self) -> dict[str, Any]:
        """Keywords for transformers' readers."""
        options = {"trust_remote_code": self.trust}
        return options if self.revision is None else options | {"revision": self.revision}


@dataclass(frozen=True)
class Family:
    """Record of a family of pretrained denoisers that are read in the same way.

    A new family is a function without arguments that returns a record, registered as an entry point
    of the group ``ddlib.families``. ``dataclasses.replace(families.dream(), shift=0)`` changes a
    field of another.

    Args:
        network: makes the network: ``WeightSource`` to a module ``(z, t) -> logits`` over ids
            0..V-1, of states 0..V.
        model_types: the values of ``model_type`` in config.json that it fits.
        architectures: where no family names the ``model_type``: pattern of the first of the
            ``architectures``.
        only: keys of config.json and their required values; with another value the family does not
            fit.
        native: converts config.json to that of a class of transformers, with its ``model_type``;
            raises ValueError for an option that this class lacks.
        rename: patterns of names of weights, and their names in that class.
        mask: the mask where neither config.json nor the tokenizer names it: tokens or ids, the
            first that exists. None if the tokenizer does not have it: noise without a mask, or a
            network with a separate mask state.
        shift: the logits of position i are at i - ``shift``; those before stay.
        block_size: positions of a block, the key of config.json with their number, or 0: all
            positions attend to each other. None if the family has networks of either kind and their
            files do not specify which: 0 by default.
        decoding: sampler that unmasks the positions of the published loop, as
            ``dd.build("samplers", decoding)`` takes it, with ``temperature=0`` and as many steps as
            masked positions; by blocks, if the family has them. Empty if ddlib has none.
        timed: whether the network uses the time.
        noise: makes the process over V tokens.
        parameterization: meaning of the logits, see ``ddlib.parameterization.logits``.
        ends: tokens or ids that end a sequence or a turn, besides the tokenizer's end token.
        undrawn: tokens that are never drawn, besides the mask and ids without a token.
        tokenizer: the class of transformers that reads the tokenizer.
    """

    network: Callable[[WeightSource], nn.Module]
    model_types: tuple[str, ...] = ()
    architectures: str = ""
    only: Mapping[str, Any] = field(default_factory=dict)
    native: Callable[[Config], dict[str, Any]] = dict
    rename: Mapping[str, str] = field(default_factory=dict)
    mask: tuple[str | int, ...] | None = ()
    shift: int = 0
    block_size: int | str | None = 0
    decoding: str = ""
    timed: bool = False
    noise: Callable[[int], ForwardProcess] = dd.presets.mdlm
    parameterization: str = "cavity"
    ends: tuple[str | int, ...] = ("<|im_end|>", "<|eot_id|>", "<end_of_turn>")
    undrawn: tuple[str, ...] = ()
    tokenizer: str = "AutoTokenizer"

    def fits(self, config: Config) -> bool:
        """Return whether it fits the ``model_type`` of this configuration."""
        return config.get("model_type") in self.model_types and self._allows(config)

    def resembles(self, config: Config) -> bool:
        """Return whether the architecture matches."""
        first = next(iter(config.get("architectures") or ()), "")
        return (
            bool(self.architectures)
            and re.search(self.architectures, first) is not None
            and self._allows(config)
        )

    def blocks(self, config: Config) -> int:
        """Return the number of positions of a block, 0 for none."""
        size = (
            config.get(self.block_size, 0) if isinstance(self.block_size, str) else self.block_size
        )
        return int(size or 0)

    def check_blocks(self, name: str, config: Config, requested: int | None) -> int:
        """Return the positions of a block, if the requested number is that of the checkpoint.

        Args:
            name: name of the model, for messages.
            config: content of config.json.
            requested: the number asked for; None for the family's.

        Raises:
            ValueError: another number than the checkpoint's, or a config.json without it and none
                given.
        """
        size = self.blocks(config)
        key = self.block_size
        if isinstance(key, str) and not size and not requested:
            raise ValueError(
                f"{name}: config.json has no {key}, the number of positions of a block: pass "
                "block_size=N"
            )
        if size and requested not in (None, size):
            source = (
                f"{key} of config.json"
                if isinstance(key, str)
                else "as in all models of its family"
            )
            raise ValueError(
                f"block_size={requested}: must be {size}, {source}, which {name} was trained with; "
                "leave block_size out. "
                "If the files are wrong, pass family=dataclasses.replace(record, "
                f"block_size={requested})"
            )
        return size if requested is None else requested

    def _allows(self, config: Config) -> bool:
        return all(config.get(key, value) == value for key, value in self.only.items())

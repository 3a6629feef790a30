"""Loader of pretrained denoisers, with their process, tokenizer and special ids."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from ddlib.processes import ForwardProcess
from ddlib.utils.validation import warn_once
from ddlib_models.hub.choice import choose_family
from ddlib_models.hub.denoiser import adapt
from ddlib_models.hub.family import Config, Family, WeightSource
from ddlib_models.hub.files import TRUST, read_config, read_generation, read_tokenizer
from ddlib_models.hub.networks import causal_lm, check_sight, remote
from ddlib_models.hub.special_tokens import Special, describe, find_mask


class Loaded(NamedTuple):
    """A pretrained model, ready for ``dd.sample(loaded.process, loaded.denoiser, ...)``."""

    process: ForwardProcess
    """The noise, over the tokens of the tokenizer."""
    denoiser: nn.Module
    """``(z, t) -> logits``; its ``parameterization`` is their meaning."""
    tokenizer: Any
    """Tokenizer of transformers."""
    special: Special
    """Special ids: tokens, ends of a sequence, the mask."""


@dataclass(frozen=True)
class Found:
    """A pretrained denoiser whose weights are not loaded yet."""

    process: ForwardProcess
    """The noise, over the tokens of the tokenizer."""
    tokenizer: Any
    """Tokenizer of transformers."""
    special: Special
    """Special ids: tokens, ends of a sequence, the mask."""
    load: Callable[[], Loaded]
    """Load the weights, with the errors of ``load`` that concern the network."""


def load(
    name_or_path: str | Path,
    *,
    family: str | Family | None = None,
    trust: bool = False,
    revision: str | None = None,
    mask: str | int | None = None,
    block_size: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> Loaded:
    """Load a pretrained denoiser for ddlib's samplers and bounds.

    Weights are read from safetensors only. Code that comes with them is not run without ``trust``.
    A warning is issued if the files describe a causal model that may never have been trained with
    masks, and ``family`` is not given.

    Args:
        name_or_path: a folder, or the id of a repository on the hub.
        family: the format, by name or as a record; by default detected from config.json, see
            ``Family``.
        trust: whether code of the repository may be run, where no class of transformers or ddlib
            reads it.
        revision: branch, tag or commit of the repository.
        mask: the mask's token, or its id, in digits too where no token is spelled so; by default
            that of config.json, the tokenizer or the family.
        block_size: positions of a block, which attends to itself and to those before; by default
            the family's.
        dtype: dtype of the weights; logits are float32.
        device: device of the network and the process.

    Raises:
        ModuleNotFoundError: transformers is not installed.
        OSError: no safetensors among the files.
        PermissionError: it requires code of the repository, and ``trust`` is False.
        ValueError: there is no model, or a file of it is broken; none or several families fit;
            quantised weights; no mask token; another block size than the checkpoint's; fewer rows
            than tokens; weights or options that the network lacks; a causal network that stays
            causal.
    """
    return find(
        name_or_path,
        family=family,
        trust=trust,
        revision=revision,
        mask=mask,
        block_size=block_size,
        dtype=dtype,
        device=device,
    ).load()


def find(
    name_or_path: str | Path,
    *,
    family: str | Family | None = None,
    trust: bool = False,
    revision: str | None = None,
    mask: str | int | None = None,
    block_size: int | None = None,
    dtype: torch.dtype = torch.float32,
    device: str | torch.device = "cpu",
) -> Found:
    """Read the files of a pretrained denoiser besides its weights.

    Arguments and errors are those of ``load``; a repository needs no weights until they are loaded.
    """
    name = str(name_or_path)
    config = read_config(name, revision)
    family_name, record = choose_family(name, config, family)
    native, network = _readable(name, family_name, record, config, trust)
    tokenizer = read_tokenizer(name, record.tokenizer, config, trust, revision)
    text = native.get("text_config") or native
    if record.mask is None and mask is not None:
        raise ValueError(
            f"mask={mask!r}: must be None, as {name} is of family {family_name}, whose "
            "tokenizer has no mask"
        )
    mask_id = None if record.mask is None else find_mask(name, record, config, tokenizer, mask)
    special = describe(
        name, record, read_generation(name, revision), tokenizer, mask_id, text.get("vocab_size")
    )
    process = record.noise(special.vocab_size).to(device)
    size = record.check_blocks(name, native, block_size)
    source = WeightSource(
        name,
        native,
        process.vocab_size,
        process.num_states,
        mask_id,
        special.bos,
        size,
        record.shift,
        record.rename,
        dtype,
        revision,
        trust,
    )

    def load_weights() -> Loaded:
        model = network(source).to(device)
        if block_size is not None and getattr(model, "block_size", 0) != block_size:
            has = getattr(model, "block_size", 0)
            advice = (
                ": all its positions attend to each other, so leave block_size out; to sample in "
                "blocks pass "
                f"pace=dd.paces.Blocks({block_size}) (on the command line --pace "
                f"blocks:size={block_size})"
            ) * (not has)
            raise ValueError(
                f"block_size={block_size}: {name} is a {type(model).__name__}, which has blocks of "
                f"{has}{advice}"
            )
        if not record.timed:
            barred = set(special.undrawn)
            check_sight(
                name,
                model,
                [token for token in range(min(special.vocab_size, 99)) if token not in barred],
                size,
            )
        if family is None and record.network is causal_lm and not record.fits(config):
            warn_once(
                f"causal {name}",
                f"{name}: config.json describes a causal model, {config.get('model_type')}, and no "
                "file states that it was "
                "trained with masks, without which its samples are noise. If it was, pass "
                f"family={family_name!r} (on the command line --family {family_name}); else "
                f"python -m recipes.adapt mdlm --from {name} trains it",
            )
        denoiser = adapt(model, special, record).to(device)
        return Loaded(process, denoiser, tokenizer, special)

    return Found(process, tokenizer, special, load_weights)


def _readable(
    name: str, family_name: str, family: Family, config: Config, trust: bool
) -> tuple[Config, Any]:
    """Return the class of transformers or ddlib for the network.

    Else code of the repository, if that is trusted.
    """
    try:
        return family.native(config), family.network
    except ValueError as error:
        # that code has an unknown rule for blocks
        if "auto_map" not in config or family.block_size:
            raise
        if not trust:
            raise PermissionError(
                f"{name}: {error}. It requires code of its repository, and loading it runs this "
                "code: read "
                f"{', '.join(sorted(set(config['auto_map'].values())))}, then pass {TRUST}"
            ) from error
        return config, remote

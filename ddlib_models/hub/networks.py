"""Loaders of a family's network: classes of transformers, of ddlib, or code that comes with the
weights.
"""

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, get_type_hints

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ddlib import registry
from ddlib_models.attention.sight import additive_mask, sight_mask
from ddlib_models.dit.inputs import check_blocks
from ddlib_models.hf.base import plain
from ddlib_models.hf.causal_lm import CausalLM
from ddlib_models.hf.masked_lm import MaskedLM
from ddlib_models.hf.masked_lm import masked_lm as pretrained_masked_lm
from ddlib_models.hub.family import Config, WeightSource
from ddlib_models.hub.files import TRUST, load_pretrained, transformers
from ddlib_models.io.pretrained import Pretrained

SEEN = 1e-3
"""Relative change of an output above which it depends on a token, and not on rounding."""
_SHORT = 64
"""Maximum block size for the check of the attention mask, which is a pass over a whole block."""

RECIPE = "recipe.yaml"
"""File of a recipe run beside its weights."""


def masked_lm(source: WeightSource) -> MaskedLM:
    """Load a masked language model of transformers, see ``ddlib_models.hf.masked_lm``."""
    model = pretrained_masked_lm(
        source.num_states,
        source.vocab_size,
        source.name,
        revision=source.revision,
        mask_token=source.mask_id,
    )
    return model.to(source.dtype)


def causal_lm(source: WeightSource, kind: type[CausalLM] = CausalLM) -> CausalLM:
    """Load a causal language model of transformers with bidirectional or block-causal attention.

    Args:
        source: source of the weights.
        kind: class of the network, with its attention mask.

    Raises:
        ValueError: weights that do not fit, or a class that stays causal under another attention
            mask.
    """
    architecture = plain(kind.configuration(dict(source.config)))
    sizes = source.num_states, source.vocab_size, architecture, source.mask_id
    with torch.device("meta"):  # the weights will be those of the files
        model = kind(*sizes, block_size=source.block_size, shift=source.shift)
    config = model.configuration(architecture)
    untrusted = replace(source, trust=False)
    network = load_pretrained(
        transformers().AutoModelForCausalLM,
        untrusted,
        config=config,
        key_mapping=dict(source.rename),
    )
    try:
        model._adopt(network)
    except ValueError as error:
        raise ValueError(
            f"{source.name}: {type(network).__name__} is causal and its mask cannot be turned off: "
            f"{error}"
        ) from error
    return model.eval()


def token_states(config: Config) -> dict[str, Any]:
    """Return the configuration of a ddlib network, if its states are tokens and the mask.

    Raises:
        ValueError: it has other states.
    """
    size = config.get("vocab_size")
    states = config.get("num_states")
    if states != (size or 0) + 1:
        raise ValueError(
            f"num_states={states}, vocab_size={size}: its noise is defined by these numbers only "
            "if the states are "
            f"tokens and a mask; load it with {config.get('class')}.from_pretrained and build the "
            "process that it was "
            "trained on"
        )
    return dict(config)


def ddlib_network(source: WeightSource) -> nn.Module:
    """Load a ddlib network of the class that its manifest names.

    Raises:
        ValueError: no registered backbone is of that class, or the run's recipe has other noise.
    """
    if (Path(source.name) / RECIPE).is_file():
        raise ValueError(
            f"{source.name}: {RECIPE} defines the noise that it was trained on; load it with "
            f"recipes.model_io.open_saved or python -m recipes.generate {source.name}"
        )
    classes = {}
    for name in registry.available("backbones"):
        with suppress(ImportError):  # a broken plug-in does not concern other classes
            part = registry.find("backbones", name)
            kind = part if isinstance(part, type) else get_type_hints(part).get("return")
            if isinstance(kind, type) and issubclass(kind, Pretrained):
                classes[kind.__name__] = kind
    if source.config["class"] not in classes:
        raise ValueError(
            f"{source.name}: holds {source.config['class']}, must hold one of "
            f"{', '.join(sorted(classes))}"
        )
    options = {} if source.revision is None else {"revision": source.revision}
    return classes[source.config["class"]].from_pretrained(source.name, **options).to(source.dtype)


@torch.no_grad()
def influence(logits: Callable[[Tensor], Tensor], tokens: Sequence[int], distance: int) -> float:
    """Return the relative change of the first position's output under another token at this
    distance.

    Args:
        logits: output (B, L, n) of a network at tokens (B, L).
        tokens: three different tokens.
        distance: number of positions behind the first.
    """
    first, *others = tokens[:3]
    output = logits(torch.tensor([[first] * distance + [other] for other in others]))[:, 0].float()
    return float((output[0] - output[1]).abs().max()) / max(float(output.abs().max()), 1e-30)


def check_sight(name: str, network: nn.Module, tokens: Sequence[int], size: int) -> None:
    """Check that positions depend on all later ones, or on those of their block, and on no others.

    Args:
        name: name of the model, for messages.
        network: ``(z, t) -> logits``.
        tokens: at least three tokens; with fewer nothing is checked.
        size: positions of a block, 0 without blocks.

    Raises:
        ValueError: a dependence that is missing, or one too many.
    """
    if len(tokens) < 3 or size == 1:
        return
    device = next((parameter.device for parameter in network.parameters()), torch.device("cpu"))
    network.eval()

    def at(z: Tensor) -> Tensor:
        return network(z.to(device), torch.zeros(len(z), device=device))

    if influence(at, tokens, 1) == 0:
        raise ValueError(
            f"{name}: {type(network).__name__} is causal and its mask cannot be turned off: its "
            "output at the first "
            "position does not depend on the second"
        )
    if 0 < size <= _SHORT and influence(at, tokens, size) > SEEN:
        raise ValueError(
            f"{name}: {type(network).__name__} attends beyond its blocks of {size}: its output at "
            "the first position "
            f"depends on position {size}"
        )


class Remote(nn.Module):
    """Network from code of its repository, without further adaptation: ids in, logits out."""

    takes_padding = True  # ddlib.typing.TakesPadding

    def __init__(self, network: nn.Module, vocab_size: int, mask_id: int | None) -> None:
        super().__init__()
        self.network = network
        self.vocab_size = vocab_size
        self.mask_id = mask_id

    def forward(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, " B"],
        *,
        present: Bool[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L V"]:
        """Compute logits over ids, (B, L, V).

        Positions with ``present`` False are not attended to.
        """
        options = {} if present is None else {"attention_mask": present.long()}
        return self.network(input_ids=self._ids(z), **options).logits[..., : self.vocab_size]

    def _ids(self, z: Int[Tensor, "B L"]) -> Int[Tensor, "B L"]:
        return z if self.mask_id is None else torch.where(z == self.vocab_size, self.mask_id, z)


class RemoteBlocks(Remote):
    """Network from code of its repository under a block-causal mask, a
    ``ddlib.typing.BlockDenoiser``.

    The code must take an additive ``attention_mask`` (B, 1, n, n), 0 or very negative, and
    ``position_ids``. Keys and values are not cached: a cache holds the tokens alone, and ``extend``
    evaluates the network on all of them.

    Args:
        network: the network, whose output has ``logits``.
        vocab_size: number of tokens.
        mask_id: id of the mask.
        block_size: positions of a block.
    """

    own_times = True
    takes_padding = False

    def __init__(
        self, network: nn.Module, vocab_size: int, mask_id: int | None, block_size: int
    ) -> None:
        super().__init__(network, vocab_size, mask_id)
        self.block_size = block_size

    def forward(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        *,
        clean: Int[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L V"]:
        """Compute logits over ids; with ``clean`` each block of z attends to the clean tokens of
        those before it.
        """
        length = z.shape[1]
        row = z if clean is None else torch.cat([z, clean], 1)
        allowed = sight_mask(row.shape[1], length, self.block_size, 1.0, z.device)
        mask = additive_mask(allowed, next(self.network.parameters()).dtype).expand(
            len(z), 1, -1, -1
        )
        places = torch.arange(length, device=z.device).repeat(row.shape[1] // length)[None]
        output = self.network(
            input_ids=self._ids(row), attention_mask=mask, position_ids=places, use_cache=False
        )
        return output.logits[:, :length, : self.vocab_size]

    def prefill(self, x: Int[Tensor, "B n"], cache: "Prefix | None" = None) -> "Prefix":
        """Return the tokens of whole blocks, after those of ``cache``."""
        check_blocks(x, self.block_size, self.vocab_size)
        return Prefix(x if cache is None else torch.cat([cache.tokens, x], 1))

    def extend(
        self, z: Int[Tensor, "B n"], t: Float[Tensor, "*batch"], cache: "Prefix"
    ) -> Float[Tensor, "B n V"]:
        """Compute logits of states that follow the tokens of the cache."""
        if len(cache.tokens) != len(z):
            raise ValueError(
                f"cache: contains {len(cache.tokens)} sequences, but {len(z)} are given"
            )
        return self(torch.cat([cache.tokens, z], 1), t)[:, cache.tokens.shape[1] :]


class Prefix(NamedTuple):
    """Cache of a network that stores no keys and values: the tokens, (B, L)."""

    tokens: Int[Tensor, "B L"]

    def rows(self, index: Tensor) -> "Prefix":
        """Select sequences."""
        return Prefix(self.tokens[index])


def remote(source: WeightSource) -> Remote:
    """Load a network by code that comes with the weights, if it is trusted.

    By blocks, if the family has them.

    Raises:
        PermissionError: it is not trusted.
        ValueError: there is no such code.
    """
    auto = source.config.get("auto_map") or {}
    kind = next(
        (
            name
            for name in ("AutoModelForMaskedLM", "AutoModelForCausalLM", "AutoModel")
            if name in auto
        ),
        None,
    )
    if kind is None:
        raise ValueError(f"{source.name}: auto_map of config.json names no class of a model")
    if not source.trust:
        raise PermissionError(
            f"{source.name}: {auto[kind]} is code of its repository, and loading it runs this "
            "code: read it, then "
            f"pass {TRUST}"
        )
    network = load_pretrained(getattr(transformers(), kind), source)
    _refill(network)
    if source.block_size:
        return RemoteBlocks(network, source.vocab_size, source.mask_id, source.block_size)
    return Remote(network, source.vocab_size, source.mask_id)


def _refill(network: nn.Module) -> None:
    """Compute the frequencies of rotary embeddings again, which no file has.

    transformers builds a network without memory and fills it from the files. Buffers that are not
    saved stay uninitialised, if the code that defines them was written for versions before 5.
    """
    for part in network.modules():
        compute = getattr(part, "rope_init_fn", None)
        if compute is not None and isinstance(getattr(part, "inv_freq", None), Tensor):
            part.inv_freq.copy_(compute(part.config, device=part.inv_freq.device)[0])
            part.original_inv_freq = part.inv_freq

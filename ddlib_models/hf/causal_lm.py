"""Causal language models of Hugging Face (Llama, Qwen and similar) as bidirectional backbones.

Requires transformers: ``pip install 'ddlib[hf]'``. Only its own classes are used and no remote code
is run.
"""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ddlib_models.attention.sight import additive_mask, shift_features, sight_mask
from ddlib_models.dit.embedding import cluster_means
from ddlib_models.hf import lora as low_rank
from ddlib_models.hf.base import (
    config_of,
    hub_options,
    load_weights,
    plain,
    token_id,
    transformers_config,
    transformers_of,
)
from ddlib_models.hf.kv_cache import AnyCache, CachedHFBackbone, JoinedCaches, Recall
from ddlib_models.kv_cache import check_cache
from ddlib_models.window_cache import WindowCache, places

Attention = Literal["bidirectional", "causal"]


class CausalLM(CachedHFBackbone):
    """A causal language model of transformers over states of a process: (z, t) -> logits over
    tokens.

        logits_i(z, t) = features_(i - shift)(z, t) @ weight.T + bias

    Architecture and weights are those of the causal model; the attention mask is not. It is passed
    through the public argument ``attention_mask``, (1, 1, L, L) numbers added to the products of
    queries and keys. A class whose earlier positions still do not depend on later ones is rejected.

    Tokens are the ids 0..V-1 of the model's tokenizer. The mask, the last state, is embedded as the
    row ``mask_id`` of the model's table, or has a separate embedding, initialised at the mean of
    the tokens'. Clusters have separate embeddings. The time is ignored, as the noise level is
    visible in the input. Positions count from 0, or from the first that is ``present``. Layers with
    a sliding window attend to all positions as well, except with ``attention="causal"``, the
    original model. Shift and annealing are those of Gong et al. 2025 (DiffuLLaMA,
    arXiv:2410.17891).

    This constructor gives random weights, see ``causal_lm`` for pretrained ones. The object is a
    ``SplitDenoiser``, ``WindowDenoiser`` and ``OwnTimes``, with blocks a ``BlockDenoiser`` of
    ddlib. ``save_pretrained`` writes all that ``from_pretrained`` needs; the source folder is no
    longer needed.

    Args:
        num_states: number of input states, at least ``vocab_size``.
        vocab_size: number of predicted tokens, at most the rows of the model's table.
        architecture: transformers' configuration of the model in JSON, with its ``model_type``.
        mask_id: row of the model's table that embeds the mask; None gives the mask a separate
            embedding.
        attention: to all positions, or causal as in the original model: to a position and those
            before it.
        block_size: positions of a block: each attends to its block and all blocks before it. 0: all
            positions.
        shift: 1 takes the logits of position i from i - 1, where a causal model has them; 0 from i.
            The first position has none before it and takes its logits from itself.
        anneal: steps over which attention to later positions is phased in during training, see
            ``at_step``, which a loop of your own must call; 0: none.
        lora: rank of the adapters that are trained in place of the layers' matrices, 0 for none:
            requires peft. Saving merges them.

    Attributes:
        blocks: the layers; there is no such attribute if the network has no list of layers of one
            class.
        max_length: maximum sequence length, or None.
        sight: probability of attending to a later position in training mode.
        has_step: True once training has a step, see ``at_step``; always without ``anneal``.

    Raises:
        ModuleNotFoundError: transformers, or for ``lora`` peft, is not installed.
        ValueError: naming the argument, its value and the rule it breaks; or the architecture is
            not a causal language model, lacks ``inputs_embeds`` or a linear output layer, or stays
            causal under another attention mask.
    """

    auto = "AutoModelForCausalLM"
    own_times = True  # ddlib.typing.OwnTimes
    takes_padding = True  # ddlib.typing.TakesPadding
    unsaved = ("anneal",)

    def __init__(
        self,
        num_states: int,
        vocab_size: int,
        architecture: dict[str, Any],
        mask_id: int | None = None,
        *,
        attention: Attention = "bidirectional",
        block_size: int = 0,
        shift: int = 0,
        anneal: int = 0,
        lora: int = 0,
    ) -> None:
        if attention not in ("bidirectional", "causal"):
            raise ValueError(f"attention={attention!r}: must be 'bidirectional' or 'causal'")
        if shift not in (0, 1):
            raise ValueError(f"shift={shift}: must be 0 or 1")
        for name, value in dict(block_size=block_size, anneal=anneal, lora=lora).items():
            if value < 0:
                raise ValueError(f"{name}={value}: must be at least 0")
            if value and name != "lora" and attention == "causal":
                raise ValueError(
                    f"{name}={value}: not with attention='causal', only with 'bidirectional'"
                )
        self.attention = attention
        self.block_size = block_size
        self.shift = shift
        self.anneal = anneal
        self.lora = lora
        self.sight = 0.0 if anneal else 1.0
        self.has_step = anneal == 0
        super().__init__(num_states, vocab_size, architecture, mask_id)

    @classmethod
    def configuration(cls, architecture: dict[str, Any]) -> Any:
        config, kind = config_of(cls, architecture)
        transformers = transformers_of(cls)
        if (
            getattr(config, "is_encoder_decoder", False)
            or type(config) in transformers.MODEL_FOR_MASKED_LM_MAPPING
        ):
            rule = "must be a causal language model; use ddlib_models.hf.masked_lm for a masked one"
            raise ValueError(f"architecture: {kind!r} has an encoder, {rule}")
        if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
            raise ValueError(
                f"architecture: transformers has no causal language model of model_type {kind!r}"
            )
        return config

    def at_step(self, step: int) -> None:
        """Set the training step, 0, 1, ....

        Later positions are attended to with probability min(1, step / ``anneal``).

        In training mode every call draws from torch's generator which later positions a position
        attends to, one draw for the whole batch. In evaluation mode it attends to all. Call it
        before every step: a call in training mode before the first one is a RuntimeError.
        """
        self.has_step = True
        self.sight = min(1.0, step / self.anneal) if self.anneal else 1.0

    def forward(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        *,
        clean: Int[Tensor, "B L"] | None = None,
        present: Bool[Tensor, "B L"] | None = None,
        cache: AnyCache | None = None,
    ) -> Float[Tensor, "B L V"]:
        """Compute logits over tokens at every position, in float32 or float64.

        Args:
            z: noisy states in 0..num_states-1.
            t: times in [0, 1], one per sequence or per position, which are ignored.
            clean: with blocks, the tokens of the same positions: each block of z attends to the
                clean ones before it.
            present: False at padding, which is never attended to; by default there is none. Padding
                counts in blocks.
            cache: with blocks, the tokens in front of z, from ``prefill``; or the rest, from
                ``prefill_around``.

        Raises:
            ValueError: if the shapes disagree, the sequences are longer than ``max_length``, or a
                CPU tensor holds a state out of range; ``clean`` or ``cache`` without blocks, or
                more than one of these three; a cache of other weights, sequences or dtype.
        """
        logits = F.linear(
            self.features(z, t, clean=clean, present=present, cache=cache), *self.output_weights()
        )
        return logits.to(torch.promote_types(logits.dtype, torch.float32))

    def features(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        *,
        clean: Int[Tensor, "B L"] | None = None,
        present: Bool[Tensor, "B L"] | None = None,
        cache: AnyCache | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Compute the output layer's input; arguments as in a call."""
        self._check(z, t, [z.shape[:1], z.shape], "(B,) or (B, L)", sum(places(cache)))
        options = dict(clean=clean, present=present, cache=cache)
        for name, value in options.items():
            if isinstance(value, Tensor) and value.shape != z.shape:
                raise ValueError(
                    f"{name} has shape {tuple(value.shape)}: must have that of z, {tuple(z.shape)}"
                )
        names = [name for name, value in options.items() if value is not None]
        if len(names) > 1 or (
            not self.block_size and (clean is not None or isinstance(cache, Recall))
        ):
            raise ValueError(
                f"{', '.join(names)}: at most one, clean and cache only with blocks; "
                f"block_size={self.block_size}"
            )
        if cache is not None:
            check_cache(cache, Recall, WindowCache, JoinedCaches)
            cache.check(self, z, self.dtype)
        features, _ = self._row(z, clean, present, cache)
        last = None if cache is None else cache.last
        length = z.shape[1]
        return (
            shift_features(features, length, self.block_size, present, last)
            if self.shift
            else features[:, :length]
        )

    def _row(
        self,
        z: Tensor,
        clean: Tensor | None = None,
        present: Tensor | None = None,
        cache: AnyCache | None = None,
    ) -> tuple[Float[Tensor, "B n D"], Any]:
        if self.training and not self.has_step:
            raise RuntimeError(
                f"anneal={self.anneal}: attention in training mode depends on the step, which is "
                "not set: call at_step(step) with 0, 1, ... before each training step, or eval()"
            )
        length = z.shape[1]
        x = self.embed(z if clean is None else torch.cat([z, clean], 1))
        position_ids = (
            torch.arange(length, device=z.device).repeat(1 if clean is None else 2)[None]
            if cache is None
            else cache.positions(length)
        )
        options: dict[str, Any] = {
            "position_ids": position_ids
            if present is None
            else (present.cumsum(1) - 1).clamp_min(0)
        }
        new_cache = None if cache is None else self.to_transformers(cache)
        if new_cache is not None:
            options["past_key_values"] = new_cache
        if self.attention == "causal":
            options |= {} if present is None else {"attention_mask": present.long()}
        else:
            share = self.sight if self.training else 1.0
            mask = (
                sight_mask(x.shape[1], length, self.block_size, share, z.device)[None, None]
                if cache is None
                else cache.mask(length, self.block_size, share)
            )
            if present is not None:
                # padding attends to itself, as a softmax over no keys is undefined
                mask = mask & present[:, None, None, :] | torch.eye(
                    length, dtype=torch.bool, device=z.device
                )
            options["attention_mask"] = additive_mask(mask, x.dtype)
        return self._read(x, **options), new_cache

    def save_pretrained(self, save_directory: Any, **options: Any) -> str | None:
        """Save as ``Pretrained.save_pretrained``.

        Adapters are merged into the matrices that they adapt.
        """
        if not self.lora:
            return super().save_pretrained(save_directory, **options)
        merged = copy.deepcopy(self)
        merged.network = low_rank.merge_adapters(merged.network)
        merged.lora = 0
        merged._hub_mixin_config = self.saved_arguments() | {"lora": 0}
        return merged.save_pretrained(save_directory, **options)

    def fill(self, path: Path, optional: tuple[str, ...] = ()) -> None:
        """Fill the network from a file as ``Pretrained.fill``.

        A file has no adapters: they are made anew, and begin without effect.
        """
        if not self.lora:
            super().fill(path, optional)
            return
        self.network = low_rank.remove_adapters(self.network)
        super().fill(path, optional)
        self.network = low_rank.add_adapters(self.network, self.lora)

    @torch.no_grad()
    def start_clusters(self, parents: Sequence[Sequence[int] | Tensor]) -> None:
        """Initialise the embedding of every cluster at the mean of its tokens'.

        Args:
            parents: one vector per level, finest first: the parent of every token, then of every
                cluster.

        Raises:
            ValueError: as in ``StateEmbedding``; more clusters than states besides tokens and mask.
        """
        table = self.network.get_input_embeddings()
        between = self.num_states - 1 - self.vocab_size
        means = cluster_means(
            table(torch.arange(self.vocab_size, device=table.weight.device)), parents
        )
        if len(means) > between:
            raise ValueError(
                f"parents: {len(means)} clusters, must be at most {between}, the states for "
                "clusters"
            )
        if len(means):
            self.clusters.weight[: len(means)] = means

    def _begin(self, table: nn.Module) -> Float[Tensor, " D"]:
        if self.mask_id is not None:
            return super()._begin(table)
        return table(torch.arange(self.vocab_size, device=table.weight.device)).mean(0)

    def _read(self, x: Float[Tensor, "B L D"], **options: Any) -> Float[Tensor, "B L D"]:
        return super()._read(x, use_cache="past_key_values" in options, **options)

    def _adopt(self, network: nn.Module) -> None:
        super()._adopt(network)
        blind = (
            self.attention == "causal"
            or self.block_size == 1
            or self.max_length == 1
            or self.vocab_size < 3
        )
        if not blind and not self.output_weights()[0].is_meta:
            self._check_sight()
        if self.lora:
            self.network = low_rank.add_adapters(self.network, self.lora)
            self.decoder.requires_grad_(False)

    @torch.no_grad()
    def _check_sight(self) -> None:
        """Raise if the first position does not depend on the second under a full attention mask."""
        training = self.training
        self.eval()
        z = torch.tensor([[0, 1], [0, 2]], device=self.output_weights()[0].device)
        x = self.embed(z)
        all_seen = torch.ones(1, 1, 2, 2, dtype=torch.bool, device=z.device)
        output = self._read(x, attention_mask=additive_mask(all_seen, x.dtype))
        self.train(training)
        if torch.equal(output[0, 0], output[1, 0]):
            raise ValueError(
                f"architecture: {self._name} cannot attend to later positions: its first position "
                "does not depend on "
                "the second under a full attention mask. Use attention='causal'"
            )


def causal_lm(
    num_states: int,
    vocab_size: int,
    name_or_path: str,
    *,
    revision: str | None = None,
    mask_token: str | int | None = None,
    attention: Attention = "bidirectional",
    block_size: int = 0,
    shift: int = 0,
    anneal: int = 0,
    lora: int = 0,
    parents: Sequence[Sequence[int] | Tensor] = (),
) -> CausalLM:
    """Load a pretrained causal language model as a backbone, in evaluation mode and float32.

    The weights are read from safetensors only, so nothing is unpickled, and by transformers'
    classes.

    Args:
        num_states: see ``CausalLM``.
        vocab_size: see ``CausalLM``; tokens are the ids of the model's tokenizer.
        name_or_path: a folder written by transformers, or the id of a repository on the hub.
        revision: branch, tag or commit of the repository.
        mask_token: the token used as the mask, or its id; None: a separate embedding, at the
            tokens' mean.
        attention: see ``CausalLM``.
        block_size: see ``CausalLM``.
        shift: see ``CausalLM``.
        anneal: see ``CausalLM``.
        lora: see ``CausalLM``.
        parents: see ``CausalLM.start_clusters``; without them clusters start at the mask's
            embedding.

    Raises:
        ModuleNotFoundError: transformers, or for ``lora`` peft, is not installed.
        OSError: no safetensors among the files.
        ValueError: there is no such model; no such token; the table has fewer rows than tokens;
            weights that do not fit, are broken or quantised; or see ``CausalLM``.
    """
    hub = hub_options(revision)
    architecture = plain(transformers_config(CausalLM, name_or_path, hub))
    CausalLM.configuration(architecture)  # raises before the tokenizer is read
    with_mask = mask_token is not None and num_states > vocab_size
    mask_id = token_id(CausalLM, name_or_path, mask_token, vocab_size, hub) if with_mask else None
    options = dict(
        attention=attention, block_size=block_size, shift=shift, anneal=anneal, lora=lora
    )
    with torch.device("meta"):  # the weights will be those of the folder
        model = CausalLM(num_states, vocab_size, architecture, mask_id, **options)
    model = load_weights(model, name_or_path, hub, architecture)
    if parents:
        model.start_clusters(parents)
    return model

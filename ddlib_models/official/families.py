"""Importers of checkpoints, one per family: location of the weights, conditioning, layout of the
rows.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Unpack

import torch
from jaxtyping import Int
from torch import Tensor

from ddlib_models.dit import DiT
from ddlib_models.dit.heads import round_up
from ddlib_models.official.files import Checkpoint, CheckpointSource, load, read
from ddlib_models.official.network import Layout, Network, Options, names_of

SCALING = ("dvruette/gidd-unif-10b", "dvruette/gidd-mask-3b", "dvruette/gidd-unif-3b")
_TOKENS = {50304: 50259}  # GPT-2's, with padding and the mask
# by the number of tokens that have a cluster: GPT-2's with padding, BERT's
_MASKS = {
    50258: 50258,
    30522: 103,
}
_ROUNDING = 128
_OTHER_ARCHITECTURE = (
    f"{{}}: GIDD's scaling models ({', '.join(SCALING)}, model_type 'gidd') have another "
    "architecture than DiT "
    "(RMSNorm, normalised queries and keys, 131072 tokens) and cannot be imported"
)


def mdlm(
    source: CheckpointSource,
    *,
    ema: bool = True,
    mask_id: int | None = None,
    heads: int | None = None,
    revision: str | None = None,
    **options: Unpack[Options],
) -> DiT:
    """Import MDLM (Sahoo et al., 2024): the hub's ``kuleshov-group/mdlm-owt`` or a Lightning
    ``mdlm.ckpt``.

    The original networks have no time condition: they always get sigma = 0. The ``DiT`` has none
    either; the condition at sigma = 0 is folded into the adaLN vectors.

    Args:
        source: tensors by name, or the content of a Lightning checkpoint; a file, a folder or a hub
            id.
        ema: whether to take the moving average from a Lightning checkpoint, as MDLM does to
            evaluate. Other files hold one set of weights, which is taken.
        mask_id: the mask's token; by default the last one.
        heads: number of heads, if neither a rotary buffer nor ``config.json`` contains it.
        revision: revision of a hub id.
        options: ``dropout``, ``attention`` and ``pad_to`` of ``DiT``.

    Raises:
        ValueError: another family, a network conditioned on sigma, or a tensor that does not
            belong.
        FileNotFoundError: no such file, folder or hub id.
    """
    checkpoint = read(source, revision)
    if checkpoint.config.get("time_conditioning"):
        raise ValueError(
            "time_conditioning is true: that network was conditioned on sigma, not on the t of DiT"
        )
    tensors = _backbone(checkpoint.content, ema)
    _refuse_other_family("MDLM", tensors)
    network = Network(tensors, checkpoint.config, heads)
    layout = Layout(network.rows, network.rows - 1 if mask_id is None else mask_id)
    return network.build(layout, False, options)


def gidd(
    source: CheckpointSource,
    *,
    tokens: int | None = None,
    mask_id: int | None = None,
    heads: int | None = None,
    revision: str | None = None,
    **options: Unpack[Options],
) -> DiT:
    """Import GIDD (von Rütte et al., 2025): the hub's ``dvruette/gidd-small-p_unif-0.0`` etc., or a
    training folder.

    The original networks are conditioned on t, as is the ``DiT``. The repository's masked models
    have the same form.

    Args:
        source: tensors by name, a file, a folder or a hub id.
        tokens: number of rows that are tokens, the mask included; the others are padding. By
            default the value in ``noise_schedule.pt`` or ``config.json`` beside the weights, else
            derived from the number of rows.
        mask_id: the mask's token; by default that in ``noise_schedule.pt``, else the last one.
        heads: number of heads, if neither a rotary buffer nor ``config.json`` contains it.
        revision: revision of a hub id.
        options: ``dropout``, ``attention`` and ``pad_to`` of ``DiT``.

    Raises:
        ValueError: another family, a tensor that does not belong, or an unknown number of tokens.
        FileNotFoundError: no such file, folder or hub id.
    """
    if isinstance(source, str) and source in SCALING:
        raise ValueError(_OTHER_ARCHITECTURE.format(source))
    checkpoint = read(source, revision)
    if checkpoint.config.get("model_type") == "gidd":
        raise ValueError(_OTHER_ARCHITECTURE.format(source))
    _refuse_other_family("GIDD", checkpoint.content)
    network = Network(checkpoint.content, checkpoint.config, heads)
    prior_tokens, prior_mask = _prior(checkpoint)
    unrounded = network.rows if network.rows % _ROUNDING else None
    size = _first(
        tokens,
        prior_tokens,
        checkpoint.config.get("vocab_size"),
        _TOKENS.get(network.rows),
        unrounded,
    )
    if size is None:
        raise ValueError(
            f"tokens=None: {network.rows} rows may be rounded up, so pass the number of tokens"
        )
    mask = _first(mask_id, prior_mask)
    layout = Layout(size, size - 1 if mask is None else mask)
    _check_rows(network, layout)
    return network.build(layout, True, options)


def hdlm(
    source: CheckpointSource,
    clusters: Int[Tensor, " V"] | str | Path | None = None,
    *,
    mask_id: int | None = None,
    heads: int | None = None,
    revision: str | None = None,
    **options: Unpack[Options],
) -> tuple[DiT, Int[Tensor, " V"]]:
    """Import HDLM (Zhou et al., 2025) with one level of clusters: a training folder, or its
    ``model.pt``.

    The original second head becomes the head over clusters, restricted to the rows of clusters, the
    only ones used.

    Args:
        source: tensors by name, a file, a folder or a hub id; the authors have published none.
        clusters: each token's cluster, counted from 0 or from the number of tokens, or the file
            that holds them (``semantic_cluster_dict_*.pt``); by default those in
            ``noise_schedule.pt`` in the folder.
        mask_id: the mask's token; by default that of GPT-2's and BERT's vocabulary, or of
            ``noise_schedule.pt``.
        heads: number of heads, if neither a rotary buffer nor ``config.json`` contains it.
        revision: revision of a hub id.
        options: ``dropout``, ``attention`` and ``pad_to`` of ``DiT``.

    Returns:
        The network, and the 0-based cluster of each token for ``ddlib.presets.hdlm``.

    Raises:
        ValueError: another family, a tensor that does not belong, or unknown clusters or mask.
        FileNotFoundError: no such file, folder or hub id.
    """
    checkpoint = read(source, revision)
    _refuse_other_family("HDLM", checkpoint.content)
    network = Network(checkpoint.content, checkpoint.config, heads)
    assigned = _clusters(checkpoint, clusters)
    prior_tokens, prior_mask = _prior(checkpoint)
    mask = _first(mask_id, prior_mask, _MASKS.get(len(assigned)))
    if mask is None:
        raise ValueError(
            "mask_id=None: must be the id of the mask, which is unknown for a vocabulary of "
            f"{len(assigned)} "
            "clustered tokens"
        )
    tokens = prior_tokens or max(len(assigned), mask + 1)
    parents = assigned - tokens if int(assigned.max()) >= tokens else assigned
    layout = Layout(tokens, mask, int(parents.max()) + 1)
    if len(parents) != layout.vocab_size or int(parents.bincount().min()) == 0:
        raise ValueError(
            f"clusters: must assign each of {layout.vocab_size} tokens to one of the clusters "
            "0..n-1, none empty"
        )
    _check_rows(network, layout)
    return network.build(layout, True, options), parents


def _backbone(content: Mapping[str, Any], ema: bool) -> dict[str, Tensor]:
    """Return MDLM's tensors under the names of its network, from any of its containers."""
    tensors = {
        name.removeprefix("backbone."): value
        for name, value in content.get("state_dict", content).items()
    }
    if "state_dict" not in content or not ema:
        return tensors
    if not content.get("ema"):
        raise ValueError(
            "ema=True: the checkpoint contains no moving average; pass ema=False for its raw "
            "weights"
        )
    depth = len([name for name in tensors if name.endswith("attn_qkv.weight")])
    names = list(names_of(depth).values())
    average = content["ema"]["shadow_params"]
    if len(average) != len(names):
        raise ValueError(
            f"ema.shadow_params contains {len(average)} tensors, must contain {len(names)} for "
            f"{depth} blocks"
        )
    return tensors | dict(zip(names, average, strict=True))


def _family(tensors: Mapping[str, Any]) -> str:
    """Return the family whose names these are."""
    marks = {"HDLM": "output_layer_clusters.", "MDLM": "backbone.", "GIDD": "rotary_emb.cos_cached"}
    for family, mark in marks.items():
        if any(name.startswith(mark) for name in tensors):
            return family
    return "MDLM" if "rotary_emb.inv_freq" in tensors or "state_dict" in tensors else ""


def _refuse_other_family(expected: str, tensors: Mapping[str, Any]) -> None:
    family = _family(tensors)
    if family and family != expected:
        raise ValueError(
            f"this checkpoint has the format of {family}, not of {expected}: import it with "
            f"{family.lower()}()"
        )


def _prior(checkpoint: Checkpoint) -> tuple[int | None, int | None]:
    """Read the number of tokens and the mask, where all noise ends, from ``noise_schedule.pt``."""
    if "log_prior" not in checkpoint.noise:
        return None, None
    return len(checkpoint.noise["log_prior"]), int(checkpoint.noise["log_prior"].argmax())


def _clusters(checkpoint: Checkpoint, clusters: Tensor | str | Path | None) -> Tensor:
    assigned = load(Path(clusters)) if isinstance(clusters, str | Path) else clusters
    assigned = checkpoint.noise.get("cluster_dict") if assigned is None else assigned
    if assigned is None:
        raise ValueError(
            "clusters=None: no noise_schedule.pt contains each token's cluster, so pass the "
            "clusters or their file"
        )
    if (
        not isinstance(assigned, Tensor)
        or assigned.dtype != torch.int64
        or assigned.ndim != 1
        or int(assigned.min()) < 0
    ):
        raise ValueError(
            "clusters: must be a vector of int64 >= 0, one for each token but the mask"
        )
    return assigned


def _check_rows(network: Network, layout: Layout) -> None:
    used = layout.tokens + layout.clusters
    if network.rows not in (used, round_up(used, _ROUNDING)):
        raise ValueError(
            f"{layout.tokens} tokens and {layout.clusters} clusters: the network has "
            f"{network.rows} rows, "
            f"must be {used} or {round_up(used, _ROUNDING)}"
        )


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)

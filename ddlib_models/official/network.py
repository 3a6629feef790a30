"""Conversion of the authors' networks: parameter names and order of the rows.

The three families share one architecture and one set of names. They differ in which rows are
tokens, clusters and mask.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypedDict

import torch
from jaxtyping import Int
from torch import Tensor

from ddlib_models.attention.backends import Attention
from ddlib_models.dit import DiT
from ddlib_models.dit.layers import TimeEmbedding, rotary_angles

_LINEAR = ("weight", "bias")
_BEFORE = {"embedding.weight": "vocab_embed.embedding"} | {
    f"time.mlp.{layer}.{part}": f"sigma_map.mlp.{layer}.{part}"
    for layer in (0, 2)
    for part in _LINEAR
}
_BLOCK = {
    "norm1.weight": "norm1.weight",
    "attention.qkv.weight": "attn_qkv.weight",
    "attention.out.weight": "attn_out.weight",
    "norm2.weight": "norm2.weight",
    **{f"mlp.{layer}.{part}": f"mlp.{layer}.{part}" for layer in (0, 2) for part in _LINEAR},
    **{f"modulation.{part}": f"adaLN_modulation.{part}" for part in _LINEAR},
}
_WORDS = "output_layer"
_CLUSTERS = "output_layer_clusters"
_PER_STATE = (
    "embedding.weight",
    "head.weight",
    "head.bias",
    "cluster_head.linear.weight",
    "cluster_head.linear.bias",
)
FORBIDDEN = -1e4
"""Logit of a token that must not be predicted: no probability in any dtype, and finite in
float16.
"""


class Options(TypedDict, total=False):
    """Arguments of ``DiT`` that a checkpoint does not set."""

    dropout: float
    attention: str | Attention
    pad_to: int


@dataclass(frozen=True)
class Layout:
    """Mapping from rows of the authors' matrices to states of ddlib.

    The tokens come first, the mask among them, then the clusters. A mask after all other tokens
    becomes the last state. A mask between them (BERT's) leaves its row in place, as a token of
    probability zero, so that tokens keep their ids, and is the last state as well.

    Args:
        tokens: number of tokens, mask included.
        mask: the mask's row.
        clusters: number of clusters.

    Raises:
        ValueError: a mask that is not a token.
    """

    tokens: int
    mask: int
    clusters: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.mask < self.tokens:
            raise ValueError(f"mask_id={self.mask}: must be one of the {self.tokens} tokens")

    @property
    def vocab_size(self) -> int:
        """Number of tokens in ddlib's order."""
        return self.mask if self.mask == self.tokens - 1 else self.tokens

    @property
    def states(self) -> int:
        """Number of states in ddlib's order."""
        return self.vocab_size + self.clusters + 1

    def cluster_rows(self) -> Int[Tensor, " n"]:
        return torch.arange(self.tokens, self.tokens + self.clusters)

    def rows(self) -> Int[Tensor, " n"]:
        """The authors' row of every state of ddlib."""
        return torch.cat(
            [torch.arange(self.vocab_size), self.cluster_rows(), torch.tensor([self.mask])]
        )


class Network:
    """Tensors of one of the authors' DiTs, checked against the architecture of their size.

    Args:
        tensors: by the authors' names.
        config: ``config.json``, used only for the number of heads.
        heads: required where neither a rotary buffer nor ``config`` contains it; otherwise it must
            agree.

    Raises:
        ValueError: a tensor that is missing, unknown, or of inconsistent shape or dtype.
    """

    def __init__(
        self, tensors: Mapping[str, Tensor], config: Mapping[str, object], heads: int | None
    ) -> None:
        table = _require(tensors, "vocab_embed.embedding", 2)
        self.rows, self.dim = table.shape
        self.cond_dim = len(_require(tensors, "sigma_map.mlp.2.bias", 1))
        self.depth = len([name for name in tensors if name.endswith("attn_qkv.weight")])
        self.heads = self._number_of_heads(tensors, config, heads)
        self.has_clusters = any(name.startswith(_CLUSTERS) for name in tensors)
        self.dtype = table.dtype
        self.device = table.device
        names = names_of(self.depth, self.has_clusters)
        expected = self._shapes(names)
        _refuse_buffers(tensors)
        _compare(
            expected,
            {name: value for name, value in tensors.items() if name not in _BUFFERS},
            self.dtype,
        )
        self.tensors = {ours: tensors[theirs] for ours, theirs in names.items()}

    def build(self, layout: Layout, time_conditioned: bool, options: Options) -> DiT:
        """Build a ``DiT`` with these weights, on their device and in their dtype, in evaluation
        mode.
        """
        state = {key: value for key, value in self.tensors.items() if key not in _PER_STATE}
        if not time_conditioned:
            state = self._at_time_zero(state)
        with torch.device("meta"):
            model = DiT(
                layout.states,
                layout.vocab_size,
                **self._size(),
                time_conditioned=time_conditioned,
                num_clusters=layout.clusters if self.has_clusters else 0,
                **options,
            )
        model.to(self.dtype).to_empty(device=self.device)
        words = torch.arange(layout.vocab_size)
        rows = {"embedding.weight": layout.rows(), "head.weight": words, "head.bias": words}
        if self.has_clusters:
            rows |= {
                key: layout.cluster_rows() for key in _PER_STATE if key.startswith("cluster_head")
            }
        for key, part in rows.items():
            state[key] = torch.zeros_like(model.get_parameter(key), requires_grad=False)
            state[key][: len(part)] = self.tensors[key][part.to(self.device)]
        if layout.mask < layout.vocab_size:
            state["head.weight"][layout.mask] = 0
            state["head.bias"][layout.mask] = FORBIDDEN
        model.load_state_dict(state)
        return model.eval()

    def _size(self) -> dict[str, int]:
        return dict(dim=self.dim, depth=self.depth, heads=self.heads, cond_dim=self.cond_dim)

    def _shapes(self, names: Mapping[str, str]) -> dict[str, torch.Size]:
        """Return the shapes of a network whose tokens, states and clusters are all rows, as the
        authors' are.
        """
        with torch.device("meta"):
            model = DiT(
                self.rows,
                self.rows,
                **self._size(),
                num_clusters=self.rows if self.has_clusters else 0,
            )
        return {names[key]: value.shape for key, value in model.state_dict().items()}

    def _at_time_zero(self, state: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Fold the condition at time 0 into the adaLN vectors: W c(0) + b, in double precision."""
        with torch.device("meta"):
            time = TimeEmbedding(self.cond_dim)
        mlp = {
            key.removeprefix("time."): value.double()
            for key, value in state.items()
            if key.startswith("time.")
        }
        time.load_state_dict(mlp, assign=True)
        with torch.no_grad():
            condition = time(torch.zeros(1, device=self.device))[0]
        folded = {key: value for key, value in state.items() if not key.startswith("time.")}
        for key in [key for key in folded if key.endswith("modulation.weight")]:
            bias = key.replace("weight", "bias")
            folded[bias] = (folded.pop(key).double() @ condition + folded[bias].double()).to(
                self.dtype
            )
        return folded

    def _number_of_heads(
        self, tensors: Mapping[str, Tensor], config: Mapping[str, object], argument: int | None
    ) -> int:
        widths = [read(tensors[name]) for name, read in _HEAD_DIM.items() if name in tensors]
        counts = [self.dim // width for width in widths]
        counts += [config[key] for key in ("n_heads", "num_attention_heads") if key in config]
        counts += [argument] if argument is not None else []
        if len(set(counts)) != 1:
            raise ValueError(
                f"heads={argument}: rotary buffers, config.json and this argument give "
                f"{counts or 'no number'}, must "
                "give one number"
            )
        return counts[0]


_HEAD_DIM = {
    "rotary_emb.inv_freq": lambda buffer: 2 * buffer.shape[-1],
    "rotary_emb.cos_cached": lambda buffer: buffer.shape[-1],
}
_BUFFERS = ("rotary_emb.inv_freq", "rotary_emb.cos_cached", "rotary_emb.sin_cached", "logit_bias")


def names_of(depth: int, with_clusters: bool = False) -> dict[str, str]:
    """Map the name of every parameter of ``DiT`` to the authors', in the order of their
    ``parameters()``.
    """
    names = dict(_BEFORE)
    for block in range(depth):
        names |= {
            f"blocks.{block}.{ours}": f"blocks.{block}.{theirs}" for ours, theirs in _BLOCK.items()
        }
    names |= _output("", "head", _WORDS)
    return (
        names | _output("cluster_head.", "cluster_head.linear", _CLUSTERS)
        if with_clusters
        else names
    )


def _output(ours: str, linear: str, theirs: str) -> dict[str, str]:
    return {
        f"{ours}norm.weight": f"{theirs}.norm_final.weight",
        **{f"{linear}.{part}": f"{theirs}.linear.{part}" for part in _LINEAR},
        **{f"{ours}modulation.{part}": f"{theirs}.adaLN_modulation.{part}" for part in _LINEAR},
    }


def _require(tensors: Mapping[str, Tensor], name: str, ndim: int) -> Tensor:
    if name not in tensors or tensors[name].ndim != ndim:
        raise ValueError(
            f"no tensor {name!r} with {ndim} dimensions: this is not a DiT of MDLM, GIDD or HDLM "
            "(the networks of "
            "GIDD's scaling paper, with RMSNorm and 131072 tokens, are another architecture). "
            f"It has {_some(tensors)}"
        )
    return tensors[name]


def _refuse_buffers(tensors: Mapping[str, Tensor]) -> None:
    """Raise for buffers of the authors' that this network cannot represent."""
    if "logit_bias" in tensors and bool(tensors["logit_bias"].any()):
        raise ValueError(
            "logit_bias is not 0: a bias towards the current token has no counterpart in DiT"
        )
    if "rotary_emb.inv_freq" in tensors:
        turned = tensors["rotary_emb.inv_freq"].float().cos()
        position = 1
    elif "rotary_emb.cos_cached" in tensors:
        table = tensors["rotary_emb.cos_cached"]
        turned = table[0, -1, 0, 0, : table.shape[-1] // 2]
        position = table.shape[1] - 1
    else:
        return
    angles = rotary_angles(position + 1, 2 * len(turned), turned.device)[position]
    if (turned.float() - angles.cos()).abs().max() > 0.01:  # bfloat16 has cosines to 0.004
        raise ValueError("rotary_emb: the frequencies are not those of base 10000, which DiT uses")


def _compare(
    expected: Mapping[str, torch.Size], tensors: Mapping[str, Tensor], dtype: torch.dtype
) -> None:
    if missing := expected.keys() - tensors.keys():
        raise ValueError(f"missing tensors: {_some(missing)}")
    if unknown := tensors.keys() - expected.keys():
        raise ValueError(f"unknown tensors: {_some(unknown)}")
    for name, shape in expected.items():
        if tensors[name].shape != shape or tensors[name].dtype != dtype:
            raise ValueError(
                f"{name}: {tensors[name].dtype} {tuple(tensors[name].shape)}, must be {dtype} "
                f"{tuple(shape)} "
                "like the rest of this checkpoint"
            )


def _some(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:5]) + (f" and {len(ordered) - 5} more" if len(ordered) > 5 else "")

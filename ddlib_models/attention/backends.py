"""Attention back ends behind one interface: SDPA, torch's variable-length kernels, FlexAttention,
xformers.

A back end is a small object: ``attend(q, k, v)`` on a batch of equal lengths, ``attend(q, k, v,
attend.mask(offsets))`` on one row into which sequences are packed, ``attend(q, k, v,
attend.mask_by(rule, n, L, device))`` with a mask given as a predicate. It holds no tensors, so it
can be shared, copied, pickled and hashed.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from ddlib_models.attention.masks import PackedRows, Rule, within


def owners(cu_seqlens: Int[Tensor, " n"]) -> Int[Tensor, " L"]:
    """Return the index of the sequence of each position in a pack: offsets 0, 2, 5 give 0 0 1 1 1.

    Reads the offsets on the host, so an accelerator synchronises: call it once per batch, outside
    compiled regions.

    Raises:
        ValueError: unless the offsets begin at 0 and increase.
    """
    lengths = cu_seqlens.diff().long()
    if (
        cu_seqlens.ndim != 1
        or len(cu_seqlens) < 2
        or int(cu_seqlens[0]) != 0
        or int(lengths.min()) < 1
    ):
        raise ValueError(
            f"cu_seqlens={cu_seqlens.tolist()}: must start at 0 and increase, with one offset more "
            "than sequences"
        )
    return torch.arange(len(lengths), device=lengths.device).repeat_interleave(lengths)


class Attention(ABC):
    """Bidirectional attention within each sequence.

    out_i = sum_j softmax_j(q_i . k_j / sqrt(K)) v_j,   j over the positions of i's sequence
    """

    @abstractmethod
    def mask(self, cu_seqlens: Int[Tensor, " n"]) -> Any:
        """Build the mask that separates packed sequences; once per batch, outside compiled regions.

        Args:
            cu_seqlens: where the sequences begin, and the total length: 0, ..., L.
        """

    def mask_by(
        self, rule: Rule, queries: int | Int[Tensor, "B n"], keys: int, device: torch.device
    ) -> Any:
        """Build the mask in which every query attends to the keys that the rule allows.

        Args:
            rule: predicate over query and key indices. Every query must attend to some key.
            queries: their number, for 0..n-1; or the query positions of each sequence.
            keys: their number, for 0..L-1.
            device: device of the mask.

        Raises:
            ValueError: the back end does not support such masks.
        """
        raise ValueError(
            f"attention {type(self).__name__}: does not support this attention mask; 'sdpa' and "
            "'flex' do"
        )

    @abstractmethod
    def __call__(
        self,
        q: Float[Tensor, "B n H K"],
        k: Float[Tensor, "B L H K"],
        v: Float[Tensor, "B L H K"],
        mask: Any = None,
    ) -> Float[Tensor, "B n H K"]:
        """Compute attention in the dtype of ``v``; for a pack B is 1 and L = n the total length."""


@dataclass(frozen=True)
class SDPA(Attention):
    """``scaled_dot_product_attention``: every device, every dtype.

    A mask is dense, which the flash kernels do not take: for packs and blocks on a GPU use another.
    A pack of many sequences is cut into rows of the longest, unless one dense mask of the pack has
    fewer scores.
    """

    def mask(self, cu_seqlens: Int[Tensor, " n"]) -> Tensor | PackedRows:
        owner = owners(cu_seqlens)
        rows = PackedRows.of(owner)
        if rows.mask.numel() < len(owner) ** 2:
            return rows
        return self.mask_by(within(owner), len(owner), len(owner), owner.device)

    def mask_by(
        self, rule: Rule, queries: int | Int[Tensor, "B n"], keys: int, device: torch.device
    ) -> Tensor:
        if isinstance(queries, int):
            index = torch.arange(queries, device=device)[:, None]
        else:
            index = rearrange(queries, "b n -> b 1 n 1")
        return rule(index, torch.arange(keys, device=device))

    def __call__(
        self,
        q: Float[Tensor, "B n H K"],
        k: Float[Tensor, "B L H K"],
        v: Float[Tensor, "B L H K"],
        mask: Any = None,
    ) -> Float[Tensor, "B n H K"]:
        if isinstance(mask, PackedRows):
            out = self(*(x[0, mask.index] for x in (q, k, v)), mask.mask)
            return out.flatten(0, 1)[mask.place][None]
        q, k, v = (rearrange(x, "b l h k -> b h l k") for x in (q, k, v))
        return rearrange(
            F.scaled_dot_product_attention(q, k, v, attn_mask=mask), "b h l k -> b l h k"
        )


@dataclass(frozen=True)
class Varlen(Attention):
    """torch's variable-length flash attention: a GPU, bfloat16 or float16, and no mask in memory.

    The offsets are a tensor, so a new packing does not recompile.

    Raises:
        ImportError: where torch is older than 2.10.
        RuntimeError: without a CUDA device.
    """

    def __post_init__(self) -> None:
        if find_spec("torch.nn.attention.varlen") is None:
            raise ImportError(
                f"attention 'varlen' needs torch >= 2.10, this is {torch.__version__}"
            )
        _require_cuda("varlen")

    def mask(self, cu_seqlens: Int[Tensor, " n"]) -> tuple[Tensor, int]:
        owners(cu_seqlens)  # raises for invalid offsets
        return cu_seqlens.int(), int(cu_seqlens.diff().max())

    def __call__(
        self,
        q: Float[Tensor, "B n H K"],
        k: Float[Tensor, "B L H K"],
        v: Float[Tensor, "B L H K"],
        mask: Any = None,
    ) -> Float[Tensor, "B n H K"]:
        _require_half_precision("varlen", q)
        from torch.nn.attention.varlen import varlen_attn

        batch = len(q)
        k_offsets, longest_k = mask or self._equal_offsets(k)
        q_offsets, longest_q = (
            (k_offsets, longest_k) if q.shape == k.shape else self._equal_offsets(q)
        )
        q, k, v = (rearrange(x, "b l h k -> (b l) h k") for x in (q, k, v))
        out = varlen_attn(q, k, v, q_offsets, k_offsets, longest_q, longest_k)
        return rearrange(out, "(b l) h k -> b l h k", b=batch)

    @staticmethod
    def _equal_offsets(x: Float[Tensor, "B L H K"]) -> tuple[Tensor, int]:
        """Return the result of ``mask`` for sequences of one length."""
        batch, length = x.shape[:2]
        return torch.arange(
            0, (batch + 1) * length, length, dtype=torch.int32, device=x.device
        ), length


@dataclass(frozen=True)
class Flex(Attention):
    """FlexAttention: one kernel compiled for the mask, which is stored by blocks of 128 positions.

    The mask is made from a dense one, (n, L) booleans. On the CPU it runs unfused, with the full
    score matrix and no backward pass, and torch warns: the kernel that it would compile there
    (2.13, AVX2) returns uninitialised memory in some results. A network compiled whole for the CPU
    gets that kernel; give it ``SDPA``.
    """

    def mask(self, cu_seqlens: Int[Tensor, " n"]) -> Any:
        owner = owners(cu_seqlens)
        return self.mask_by(within(owner), len(owner), len(owner), owner.device)

    def mask_by(
        self, rule: Rule, queries: int | Int[Tensor, "B n"], keys: int, device: torch.device
    ) -> Any:
        from torch.nn.attention.flex_attention import create_block_mask

        def of_all(batch, head, query, key):
            return rule(query, key)

        def of_some(batch, head, query, key):
            return rule(queries[batch, query], key)

        if isinstance(queries, int):
            return create_block_mask(of_all, None, None, queries, keys, device=device)
        return create_block_mask(of_some, len(queries), None, queries.shape[1], keys, device=device)

    def __call__(
        self,
        q: Float[Tensor, "B n H K"],
        k: Float[Tensor, "B L H K"],
        v: Float[Tensor, "B L H K"],
        mask: Any = None,
    ) -> Float[Tensor, "B n H K"]:
        q, k, v = (rearrange(x, "b l h k -> b h l k") for x in (q, k, v))
        return rearrange(
            _flex(compiled=q.device.type != "cpu")(q, k, v, block_mask=mask), "b h l k -> b l h k"
        )


@dataclass(frozen=True)
class XFormers(Attention):
    """xformers' ``memory_efficient_attention`` with a ``BlockDiagonalMask``: a GPU, bfloat16 or
    float16.

    The mask carries the lengths as Python numbers: under ``torch.compile`` a new packing can
    recompile.

    Raises:
        ImportError: where xformers is not installed.
        RuntimeError: without a CUDA device.
    """

    def __post_init__(self) -> None:
        _require_xformers()
        _require_cuda("xformers")

    @staticmethod
    def block_diagonal(cu_seqlens: Int[Tensor, " n"]) -> Any:
        """xformers' ``BlockDiagonalMask`` of the pack; needs no GPU.

        Raises:
            ImportError: where xformers is not installed.
        """
        _require_xformers()
        from xformers.ops.fmha import BlockDiagonalMask

        lengths = owners(cu_seqlens).bincount().tolist()
        return BlockDiagonalMask.from_seqlens(lengths, device=cu_seqlens.device)

    def mask(self, cu_seqlens: Int[Tensor, " n"]) -> Any:
        return self.block_diagonal(cu_seqlens)

    def __call__(
        self,
        q: Float[Tensor, "B n H K"],
        k: Float[Tensor, "B L H K"],
        v: Float[Tensor, "B L H K"],
        mask: Any = None,
    ) -> Float[Tensor, "B n H K"]:
        _require_half_precision("xformers", q)
        from xformers.ops import memory_efficient_attention

        return memory_efficient_attention(q, k, v, attn_bias=mask)


BACKENDS: dict[str, Callable[[], Attention]] = {
    "sdpa": SDPA,
    "varlen": Varlen,
    "flex": Flex,
    "xformers": XFormers,
}
"""The back ends by their name in a configuration."""


def backend(name: str) -> Attention:
    """Return the back end of that name.

    Raises:
        ValueError: no such name.
        ImportError, RuntimeError: a missing package or device; the message names it.
    """
    if name not in BACKENDS:
        raise ValueError(f"attention={name!r}: must be one of {', '.join(BACKENDS)}")
    return BACKENDS[name]()


def cached_mask(
    attend: Attention, rule: Rule, queries: int, keys: int, device: torch.device
) -> Any:
    """Return ``attend.mask_by(...)`` of a hashable rule; the last few results are cached.

    Compiled code builds the mask itself, as a part of its graph.
    """
    if torch.compiler.is_compiling():
        return attend.mask_by(rule, queries, keys, device)
    return _build_mask(attend, rule, queries, keys, device)


@lru_cache(maxsize=4)
def _build_mask(
    attend: Attention, rule: Rule, queries: int, keys: int, device: torch.device
) -> Any:
    with torch.inference_mode(False):  # the next caller may be training
        return attend.mask_by(rule, queries, keys, device)


@cache
def _flex(compiled: bool) -> Callable[..., Tensor]:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if compiled else flex_attention


def _require_cuda(name: str) -> None:
    if not torch.cuda.is_available():
        raise RuntimeError(
            f"attention {name!r} needs a CUDA device and torch finds none; 'sdpa' runs on every "
            "device"
        )


def _require_xformers() -> None:
    if find_spec("xformers") is None:
        raise ImportError(
            "attention 'xformers' needs xformers >= 0.0.35 for the CUDA version of your torch (>= "
            "2.10): "
            "pip install 'ddlib[gpu]'"
        )


def _require_half_precision(name: str, q: Tensor) -> None:
    if q.dtype not in (torch.bfloat16, torch.float16):
        raise TypeError(
            f"attention {name!r} got {q.dtype}: needs bfloat16 or float16, such as under autocast"
        )

"""Losses compared by benchmarks.gpu_head, and their batch.

Each takes a ``Batch`` and returns a differentiable number. They are described in
``benchmarks.gpu_head``.
"""

import importlib
import os
from collections.abc import Callable, Mapping
from functools import partial
from importlib.util import find_spec
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import ddlib as dd
from ddlib_models import ChildHead

CLIP = dd.weightings.Clip(10.0)
OTHER_LOSS = (
    "children",
    "children_without_triton",
    "cross_entropy",
    "compiled_cross_entropy",
    "compiled_padded_cross_entropy",
    "linear_cross_entropy",
    "liger_cross_entropy",
)
"""Methods whose value differs from the process's loss on logits of tokens."""


class Sizes(NamedTuple):
    """Sizes of a batch and its output layer."""

    sequences: int = 64
    length: int = 512
    width: int = 768
    words: int = 50_257
    clusters: int = 64


TINY = Sizes(4, 6, 8, 40, 5)
PROCESSES: Mapping[str, Callable[[Sizes], dd.processes.Hierarchical]] = {
    "mdlm": lambda sizes: dd.presets.mdlm(sizes.words),
    "hdlm": lambda sizes: dd.presets.hdlm(
        dd.hierarchies.random_parents(sizes.words, sizes.clusters)[0]
    ),
}


class Batch:
    """Hidden states, matrix, tokens, states and times, on the device."""

    def __init__(self, kind: str, masks: bool, sizes: Sizes, device: str) -> None:
        self.process = PROCESSES[kind](sizes)
        generator = torch.Generator().manual_seed(0)
        hidden = torch.randn(sizes.sequences, sizes.length, sizes.width, generator=generator)
        matrix = torch.randn(sizes.words, sizes.width, generator=generator).mul_(
            2 / sizes.width**0.5
        )
        x = torch.randint(sizes.words, (sizes.sequences, sizes.length), generator=generator)
        t = (torch.arange(sizes.sequences, dtype=torch.float64) + 0.5) / sizes.sequences
        z = self.process.sample(x, t, generator)
        if masks:
            z = torch.full_like(z, self.process.num_states - 1)
        self.hidden = hidden.to(device, torch.bfloat16).requires_grad_()
        self.matrix = matrix.to(device).requires_grad_()
        self.x, self.z, self.t = x.to(device), z.to(device), t.to(device)
        many = dd.hierarchies.random_parents(sizes.words, round(sizes.words**0.5))
        tree = dd.hierarchies.Tree(many) if kind == "mdlm" else self.process.hierarchy
        head = ChildHead(sizes.width, sizes.words, [edge.parents for edge in tree.maps[:-1]])
        self.process = self.process.to(device)
        self.meaning = dd.Children(tree.to(device), rows=head.rows.to(device))
        states = torch.randn(len(head.weight), sizes.width, generator=generator).mul_(
            2 / sizes.width**0.5
        )
        self.states = states.to(device).requires_grad_()

    def cast(self) -> Tensor:
        """Return the matrix in the dtype of the hidden states."""
        return self.matrix.to(self.hidden.dtype)

    def reference(self) -> float:
        """Compute the loss in float64, a sequence at a time."""
        losses = []
        matrix = self.cast().detach().double()
        for i in range(len(self.x)):
            here = slice(i, i + 1)
            logits = F.linear(self.hidden[here].detach().double(), matrix)
            arguments = self.process, logits, self.x[here], self.z[here], self.t[here]
            losses.append(dd.training_loss(*arguments, weighting=CLIP))
        return float(torch.stack(losses).mean())


Loss = Callable[[Batch], Tensor]


def ours(batch: Batch, triton: bool, chunk: int | None = None) -> Tensor:
    """Compute the fused output layer and loss, with ddlib's kernels or without them."""
    os.environ["DDLIB_TRITON"] = str(int(triton))
    output = dd.Hidden(batch.hidden, batch.cast(), chunk=chunk)
    return dd.training_loss(batch.process, output, batch.x, batch.z, batch.t, CLIP)


def plain(batch: Batch) -> Tensor:
    """Compute the loss on the logits of all tokens."""
    logits = F.linear(batch.hidden, batch.cast())
    return dd.training_loss(
        batch.process, logits.float(), batch.x, batch.z, batch.t, weighting=CLIP
    )


def children(batch: Batch, triton: bool) -> Tensor:
    """Compute the fused loss on child logits, with ddlib's kernels or without them."""
    os.environ["DDLIB_TRITON"] = str(int(triton))
    output = dd.Hidden(batch.hidden, batch.states.to(batch.hidden.dtype))
    arguments = batch.process, output, batch.x, batch.z, batch.t
    return dd.training_loss(*arguments, weighting=CLIP, parameterization=batch.meaning)


def cross_entropy(batch: Batch) -> Tensor:
    """Compute the cross-entropy of all tokens."""
    return F.cross_entropy(
        F.linear(batch.hidden, batch.cast()).flatten(0, 1).float(), batch.x.flatten()
    )


def padded_cross_entropy(batch: Batch) -> Tensor:
    """Compute the same with a matrix padded to a multiple of 128 rows, faster on GPUs."""
    words = len(batch.matrix)
    logits = F.linear(batch.hidden, F.pad(batch.cast(), (0, 0, 0, -words % 128)))[..., :words]
    return F.cross_entropy(logits.flatten(0, 1).float(), batch.x.flatten())


def linear_cross_entropy(batch: Batch) -> Tensor:
    """Compute the same by torch's fused function."""
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=4096, chunking_method=None)
    return F.linear_cross_entropy(
        batch.hidden.flatten(0, 1), batch.cast(), batch.x.flatten(), options=options
    )


def liger_cross_entropy(batch: Batch) -> Tensor:
    """Compute the same by Liger."""
    from liger_kernel.transformers import LigerFusedLinearCrossEntropyLoss

    return LigerFusedLinearCrossEntropyLoss()(
        batch.cast(), batch.hidden.flatten(0, 1), batch.x.flatten()
    )


def methods(dry: bool) -> dict[str, Loss]:
    """Return all methods that run here, by name; each case compiles anew."""
    compiled = partial(torch.compile, dynamic=False, **(dict(backend="aot_eager") if dry else {}))
    losses: dict[str, Loss] = {
        "triton": partial(ours, triton=True),
        "without_triton": partial(ours, triton=False),
        "children": partial(children, triton=True),
        "children_without_triton": partial(children, triton=False),
        "compiled": compiled(plain),
        "cross_entropy": cross_entropy,
        "compiled_cross_entropy": compiled(cross_entropy),
        "compiled_padded_cross_entropy": compiled(padded_cross_entropy),
    }
    if not dry and hasattr(importlib.import_module("torch._inductor.config"), "auto_chunker"):
        losses["compiled_in_chunks"] = compiled(plain, options={"auto_chunker.enable": True})
    if hasattr(F, "linear_cross_entropy"):
        losses["linear_cross_entropy"] = linear_cross_entropy
    if find_spec("liger_kernel"):
        losses["liger_cross_entropy"] = liger_cross_entropy
    return losses


def training(batch: Batch, loss: Loss) -> Tensor:
    """Compute a loss and its gradients."""
    value = loss(batch)
    torch.autograd.grad(value, (batch.hidden, batch.matrix, batch.states), allow_unused=True)
    return value.detach()


def evaluation(batch: Batch, loss: Loss) -> Tensor:
    """Compute a loss alone."""
    with torch.no_grad():
        return loss(batch)


MODES = {"training": training, "evaluation": evaluation}

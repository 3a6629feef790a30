"""Label of a sequence: the vectors of classes, and a denoiser at fixed labels."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ddlib_models.dit.inputs import Packing, check_range
from ddlib_models.kv_cache import Cache
from ddlib_models.window_cache import WindowCache

Label = Tensor | int | None
"""Classes of the sequences, (B,) int64; one class for all of them; or None.

-1 and None are the null class.
"""


class LabelEmbedding(nn.Embedding):
    """One vector per class, and a last one for the null class, which means "no label": (n,) -> (n,
    C).

    In training mode each label is replaced by the null class with probability ``dropout`` (Ho &
    Salimans 2022, arXiv 2207.12598), so that one network learns both distributions that
    classifier-free guidance needs. Draws are those of torch's generator. Without dropout there is
    no null class, as in DiT (Peebles & Xie 2023, arXiv 2212.09748): nothing would train it.

    Args:
        num_classes: number of classes.
        cond_dim: width C of the condition.
        dropout: probability of the null class in training.
    """

    def __init__(self, num_classes: int, cond_dim: int, dropout: float) -> None:
        super().__init__(num_classes + (dropout > 0), cond_dim)
        self.num_classes = num_classes
        self.dropout = dropout

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=0.02)

    @property
    def null(self) -> int | None:
        """Row of the null class; None without one."""
        return self.num_classes if self.num_embeddings > self.num_classes else None

    def indices(self, label: Label, rows: int, device: torch.device) -> Int[Tensor, " n"]:
        """Return the row of the table for each of ``rows`` sequences.

        Raises:
            TypeError: a label that is neither int64 nor an int nor None.
            ValueError: another number of labels than of sequences; a class out of range (of a
                tensor: on a CPU only, as an accelerator would synchronise); no label, and there is
                no null class.
        """
        least = 0 if self.null is None else -1
        rule = f"must lie in 0..num_classes-1={self.num_classes - 1}"
        rule += (
            "; label_dropout=0 trains no null class"
            if self.null is None
            else ", or be -1 or None for no label"
        )
        if label is None or (isinstance(label, int) and not isinstance(label, bool)):
            number = -1 if label is None else label
            if not least <= number < self.num_classes:
                raise ValueError(f"label is {label}: {rule}")
            return torch.full((rows,), self.num_classes if number < 0 else number, device=device)
        if not isinstance(label, Tensor) or label.dtype != torch.int64:
            got = f"has dtype {label.dtype}" if isinstance(label, Tensor) else f"is {label!r}"
            raise TypeError(f"label {got}: must be int64 (B,), an int, or None")
        if label.shape != (rows,):
            raise ValueError(
                f"label has shape {tuple(label.shape)}: expected ({rows},), one for each sequence, "
                "or an int for all. "
                "Samplers leave finished rows out of a batch: one label per row requires "
                "dd.sample(..., controls=[dd.controls.WholeBatch()])"
            )
        check_range("label holds", label, least, self.num_classes, rule)
        # no class: fails in the table everywhere
        index = label.where(label != self.num_classes, self.num_embeddings)
        return index.where(label != -1, self.num_classes).to(device)

    def forward(self, index: Int[Tensor, " n"]) -> Float[Tensor, "n C"]:
        if self.training and self.null is not None:
            index = torch.where(
                torch.rand(index.shape, device=index.device) < self.dropout, self.null, index
            )
        return super().forward(index)


def format_label(label: Label) -> str:
    """Return a label as messages show it: a class, or the shape of a tensor."""
    return f"of shape {tuple(label.shape)}" if isinstance(label, Tensor) else str(label)


class Wrapper(ABC):
    """Weights and properties of the network whose outputs a wrapper returns."""

    @property
    @abstractmethod
    def network(self) -> nn.Module:
        """The network."""

    def output_weights(self) -> tuple[Float[Tensor, "K D"], Float[Tensor, " K"]]:
        """Return the head's matrix and bias; see ``DiT.output_weights``."""
        return self.network.output_weights()

    def siblings(self) -> tuple[Float[Tensor, "K D"], Float[Tensor, " K"], Int[Tensor, " n"]]:
        """Return matrix, bias and rows of a head over children; see ``DiT.siblings``."""
        return self.network.siblings()

    @property
    def tree(self) -> Sequence[Int[Tensor, " n"]] | None:
        """Parents of the tree whose children the head predicts; None if it predicts tokens."""
        return self.network.tree

    @property
    def block_size(self) -> int:
        """Positions of a block, 0 without blocks."""
        return self.network.block_size

    @property
    def takes_memory(self) -> bool:
        """True if the model takes the features of the previous call."""
        return self.network.takes_memory


class Conditioned(Wrapper):
    """A ``DiT`` at fixed labels: a denoiser ``(z, t) -> logits``, from ``DiT.with_label``.

    It has the methods of the model that samplers and losses use, so it is a split, sparse and block
    denoiser like the model (``ddlib.typing``). It holds the model and no copy of it.

    Args:
        model: a ``DiT`` with ``num_classes``.
        label: one class for all sequences, or (B,) int64, one per sequence of a batch.

    Raises:
        TypeError, ValueError: at construction a model without classes, a label of another type or
            out of range; at a call another number of sequences than of labels.
    """

    own_times = True

    @property
    def network(self) -> nn.Module:
        """The conditional network."""
        return self.model

    def __init__(self, model: nn.Module, label: Label) -> None:
        if model.labels is None:
            raise ValueError(
                f"label is {format_label(label)}: must be None with num_classes=0; build the "
                "model with the number of classes"
            )
        rows = len(label) if isinstance(label, Tensor) and label.ndim else 1
        # raises for a label that no call would accept
        model.labels.indices(label, rows, model.labels.weight.device)
        self.model = model
        self.label = label

    def __call__(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        cu_seqlens: Int[Tensor, " n"] | Packing | None = None,
        **options: Any,
    ) -> Float[Tensor, "B L V"]:
        """Compute logits; see ``DiT.forward``."""
        return self.model(z, t, cu_seqlens, label=self.label, **options)

    def features(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        cu_seqlens: Int[Tensor, " n"] | Packing | None = None,
        **options: Any,
    ) -> Float[Tensor, "B L D"]:
        """Compute the head's input; see ``DiT.features``."""
        return self.model.features(z, t, cu_seqlens, label=self.label, **options)

    def features_at(
        self,
        z: Int[Tensor, "B L"],
        t: Float[Tensor, "*batch"],
        positions: Int[Tensor, "B n"],
        **options: Any,
    ) -> Float[Tensor, "B n D"]:
        """Compute the head's input at some positions; see ``DiT.features_at``."""
        return self.model.features_at(z, t, positions, label=self.label, **options)

    def prefill(self, x: Int[Tensor, "B L"], cache: Cache | None = None) -> Cache:
        """Compute a cache; see ``DiT.prefill``."""
        return self.model.prefill(x, cache, label=self.label)

    def prefill_around(
        self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"], start: int, stop: int
    ) -> WindowCache:
        """Compute the cache around a window; see ``DiT.prefill_around``."""
        return self.model.prefill_around(z, t, start, stop, label=self.label)

    def extend(
        self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"], cache: Cache | WindowCache
    ) -> Float[Tensor, "B L V"]:
        """Compute logits behind a cache, or in its window; see ``DiT.extend``."""
        return self.model.extend(z, t, cache, label=self.label)

    @property
    def parameterization(self) -> Any:
        """Meaning of the logits, as an attribute of the model states it; None if it states none."""
        return getattr(self.model, "parameterization", None)

    def __repr__(self) -> str:
        return f"{type(self.model).__name__}.with_label({format_label(self.label)})"

"""DiT for sequences of several alphabets: embedded fields, and an output layer for each."""

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ddlib_models.attention.backends import Attention
from ddlib_models.dit.embedding import StateEmbedding
from ddlib_models.dit.network import DiT
from ddlib_models.io.constants import Constants


class FieldEmbedding(StateEmbedding):
    """Sum of the vector of a state and that of its field.

    Args:
        sizes: number of states of each field; the states of all fields are numbered one after the
            other.
        vocab_size: number of tokens of the largest field.
        dim: width D.
    """

    def __init__(self, sizes: Sequence[int], vocab_size: int, dim: int) -> None:
        super().__init__(sum(sizes), vocab_size, dim)
        count = torch.arange(len(sizes), device="cpu")
        self.field_of_state = count.repeat_interleave(torch.tensor(sizes, device="cpu"))
        self.field_of_state = self.field_of_state.to(self.weight.device)
        self.fields = nn.Embedding(len(sizes), dim)
        nn.init.normal_(self.fields.weight, std=0.02)

    def forward(self, z: Int[Tensor, "B L"]) -> Float[Tensor, "B L D"]:
        return super().forward(z) + self.fields(self.field_of_state[z])


class FieldHead(Constants, nn.Linear):
    """An output layer for each field, padded to the largest alphabet: (B, L, D) -> (B, L, V).

    Entries beyond the alphabet of a position are those of its first token. The layers start at
    zero.

    Args:
        dim: width D.
        sizes: number of tokens of each field.
    """

    def __init__(self, dim: int, sizes: Sequence[int]) -> None:
        super().__init__(dim, sum(sizes))
        tokens = torch.tensor(sizes, device="cpu")
        starts = tokens.cumsum(0) - tokens
        token = torch.arange(max(sizes), device="cpu")
        columns = starts[:, None] + torch.where(token < tokens[:, None], token, 0)
        self.columns = columns.to(self.weight.device)
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(
        self, x: Float[Tensor, "B L D"], field: Int[Tensor, "B L"]
    ) -> Float[Tensor, "B L V"]:
        return super().forward(x).gather(-1, self.columns[field])

    def output_weights(self) -> tuple[Float[Tensor, "N D"], Float[Tensor, " N"]]:
        """Return matrix and bias, a row for every token of every field."""
        return self.weight, self.bias


class FieldDiT(DiT):
    """``DiT`` for a ``ddlib.processes.Product``: sequences whose positions have other alphabets.

    A state determines its field, so the network is called as any other, ``model(z, t)``. The vector
    of a state is that of the state plus that of its field, and each field has its own output layer.
    ``output_weights`` returns them one after the other, so that samplers and losses compute the
    logits of a position by the layer of its field alone. The label of a sequence is another field.

    Example:
        >>> import torch
        >>> model = FieldDiT([(6, 5), (2, 2)], dim=16, depth=2, heads=2)  # masks, uniform noise
        >>> model(torch.tensor([[0, 5, 7]]), torch.rand(1)).shape
        torch.Size([1, 3, 5])

    Args:
        fields: (number of states, number of tokens) of each field, ``product.sizes``.
        dim: see ``DiT``.
        depth: see there, and so are the following.
        heads: see there.
        cond_dim: see there.
        time_conditioned: see there.
        dropout: see there.
        positions: see there. Columns of a table have no distance: "learned".
        shape: see there.
        half_residual: see there.
        attention: see there.

    Raises:
        ValueError: no field, or one that is not two numbers, at least as many states as tokens; as
            ``DiT``.
    """

    model_type = None
    unsaved_defaults = ()

    def __init__(
        self,
        fields: Sequence[Sequence[int]],
        dim: int,
        depth: int,
        heads: int,
        cond_dim: int = 128,
        time_conditioned: bool = True,
        dropout: float = 0.0,
        *,
        positions: str = "rope",
        shape: Sequence[int] = (),
        half_residual: bool = False,
        attention: str | Attention = "sdpa",
    ) -> None:
        sizes = [tuple(field) for field in fields]
        if not sizes:
            raise ValueError("fields is empty: must have the sizes of at least one field")
        for i, size in enumerate(sizes):
            if len(size) != 2 or not 1 <= size[1] <= size[0]:
                raise ValueError(
                    f"fields[{i}] is {size}: must be the numbers of states and of tokens, at least "
                    "as many states as tokens"
                )
        states = [size[0] for size in sizes]
        tokens = [size[1] for size in sizes]
        super().__init__(
            sum(states),
            max(tokens),
            dim,
            depth,
            heads,
            cond_dim,
            time_conditioned,
            dropout,
            positions=positions,
            shape=shape,
            half_residual=half_residual,
            attention=attention,
        )
        self.field_sizes = sizes
        self.embedding = FieldEmbedding(states, max(tokens), dim)
        self.head = FieldHead(dim, tokens)

    def forward(
        self, z: Int[Tensor, "B L"], t: Float[Tensor, "*batch"], *given: Any, **options: Any
    ) -> Float[Tensor, "B L V"]:
        """Compute logits over the tokens of each position's field; arguments as ``DiT``."""
        field = self.embedding.field_of_state[z]
        return self.head(self.features(z, t, *given, **options), field)

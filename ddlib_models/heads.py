"""From features to logits: over words, and over clusters for the paper's ablation."""

from jaxtyping import Float, Int
from torch import Tensor, nn

from ddlib_models.layers import LayerNorm, Modulation, modulate
from ddlib_models.linear import Linear


def round_up(size: int, multiple: int) -> int:
    """The least multiple of ``multiple`` that is at least ``size``."""
    return -(-size // multiple) * multiple


class WordHead(Linear):
    """Logits over words, logits = W x + b, from a matrix that may have more rows than there are words.

    The rows beyond the words make the product a size that GPUs multiply fast, or belong to other states when the matrix
    is that of the embedding. Their logits are cut off, so that no probability and no gradient reaches them.

    Shapes: (B, L, D) -> (B, L, V).

    Args:
        dim: width D.
        vocab_size: number of words V.
        rows: rows of the matrix, at least V. It starts at zero, and so does the bias.
        pad_to: ... rounded up to a multiple of this.
    """

    def __init__(self, dim: int, vocab_size: int, rows: int, pad_to: int = 1) -> None:
        super().__init__(dim, round_up(rows, pad_to))
        self.vocab_size = vocab_size
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "B L D"]) -> Float[Tensor, "B L V"]:
        return super().forward(x)[..., : self.vocab_size]

    def words(self) -> tuple[Float[Tensor, "V D"], Float[Tensor, " V"]]:
        """The words' rows of matrix and bias, for losses that fuse the head."""
        return self.weight[: self.vocab_size], self.bias[: self.vocab_size]


class ClusterHead(nn.Module):
    """Logits over clusters beside those over words: the auxiliary classifier c(z, t) of HDLM's ablation.

    Its norm and modulation are its own. It starts at the uniform law.

    Shapes: (B, L, D) -> (B, L, n).
    """

    def __init__(self, dim: int, num_clusters: int, cond_dim: int | None) -> None:
        super().__init__()
        self.norm, self.modulation = LayerNorm(dim), Modulation(dim, 2, cond_dim)
        self.linear = Linear(dim, num_clusters)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(
        self, x: Float[Tensor, "B L D"], condition: Float[Tensor, "N C"] | None, owner: Int[Tensor, " L"] | None = None
    ) -> Float[Tensor, "B L n"]:
        return self.linear(modulate(self.norm(x), *self.modulation(condition, owner)))

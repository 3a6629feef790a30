"""Small backbone: a module with a constructor and a ``forward`` from states and times to logits."""

import math

import torch
import torch.nn.functional as F
from torch import nn
from torchtyping import TensorType

from ddlib.typing import Logits, Times, Tokens
from ddlib.utils.validation import check_count, check_times, check_tokens, require


class Neighbours(nn.Module):
    r"""Network that predicts a token from the states near it, by convolutions with growing
    dilation.

    .. math:: h_0 = embedding(z),
        \qquad h_{k+1} = h_k + conv_k(gelu(norm_k(h_k) (1 + a_k(t)) + b_k(t)))

    Convolution k has ``reach`` taps on each side with dilation (reach + 1)^k, as in van den Oord et
    al., "WaveNet" (2016). The logits at position i depend on the states at positions i - span to i
    + span only. Sequences are padded with zeros. The weights of the head are initialised to zero,
    so that the initial probabilities are uniform.

    Args:
        num_states: number of states, at least ``vocab_size``.
        vocab_size: number of tokens.
        width: number of channels.
        reach: number of taps of a convolution on each side.
        layers: number of convolutions.

    Attributes:
        span: reach of the receptive field to each side, the sum of reach * (reach + 1)^k over the
            layers.

    Raises:
        ValueError: a size below 1, or fewer states than tokens.

    Example:
        >>> network = Neighbours(num_states=12, vocab_size=11)
        >>> network(torch.zeros(3, 5, dtype=torch.int64), torch.rand(3)).shape
        torch.Size([3, 5, 11])
    """

    def __init__(
        self, num_states: int, vocab_size: int, width: int = 32, reach: int = 2, layers: int = 2
    ) -> None:
        super().__init__()
        sizes = dict(vocab_size=vocab_size, width=width, reach=reach, layers=layers)
        for name, value in sizes.items():
            check_count(name, value)
        require(
            num_states >= vocab_size,
            f"num_states is {num_states}, must be at least vocab_size, {vocab_size}",
        )
        self.num_states = num_states
        holes = [(reach + 1) ** k for k in range(layers)]
        self.span = reach * sum(holes)
        self.embedding = nn.Embedding(num_states, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in holes)
        self.times = nn.ModuleList(nn.Linear(width, 2 * width) for _ in holes)
        self.convolutions = nn.ModuleList(
            nn.Conv1d(width, width, 2 * reach + 1, padding=reach * hole, dilation=hole)
            for hole in holes
        )
        self.head = nn.Linear(width, vocab_size)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    def forward(self, z: Tokens, t: Times) -> Logits:
        check_tokens("z", z, self.num_states, "states")
        check_times("t", t, len(z))
        x = self.embedding(z)
        log_noise = self._log_noise(t)
        for norm, time, convolution in zip(self.norms, self.times, self.convolutions, strict=True):
            scale, shift = time(log_noise)[:, None].chunk(2, -1)
            inner = F.gelu(norm(x) * (1 + scale) + shift)
            x = x + convolution(inner.transpose(1, 2)).transpose(1, 2)
        return self.head(x)

    def _log_noise(self, t: TensorType["B"]) -> TensorType["B", "K"]:
        """cos(pi k t) for k = 0..width-1."""
        waves = torch.arange(self.embedding.embedding_dim, device=t.device)
        return torch.cos(math.pi * waves * t[:, None].float()).to(self.head.weight.dtype)

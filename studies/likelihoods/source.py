"""Source of known entropy: a Markov chain, with its exact network for every process."""

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

import ddlib as dd


@dataclass(frozen=True)
class Chain:
    """Markov chain over tokens: rows are softmax(1.5 normal - log rank), as in tutorial 7."""

    size: int
    length: int

    @cached_property
    def follows(self) -> Float64[Tensor, "V V"]:
        """Distribution of a token given the one before."""
        generator = torch.Generator().manual_seed(0)
        rank = torch.arange(1, self.size + 1).double().log()
        normal = torch.randn(self.size, self.size, generator=generator, dtype=torch.float64)
        return (1.5 * normal - rank).softmax(-1)

    @cached_property
    def first(self) -> Float64[Tensor, "V"]:
        """Distribution of the first token, which is stationary."""
        return torch.linalg.matrix_power(self.follows, 400)[0]

    @property
    def entropy(self) -> float:
        """Entropy in nats per token."""
        step = -(self.first[:, None] * torch.xlogy(self.follows, self.follows)).sum()
        whole = -torch.xlogy(self.first, self.first).sum() + (self.length - 1) * step
        return float(whole) / self.length

    def sample(self, count: int, seed: int) -> Int64[Tensor, "B L"]:
        """Draw sequences."""
        generator = torch.Generator().manual_seed(seed)
        tokens = [torch.multinomial(self.first, count, replacement=True, generator=generator)]
        for _ in range(self.length - 1):
            row = self.follows[tokens[-1]]
            tokens.append(torch.multinomial(row, 1, generator=generator)[:, 0])
        return torch.stack(tokens, 1)

    def nats(self, x: Int64[Tensor, "B L"]) -> Float64[Tensor, "B"]:
        """Return -log p(x) of sequences."""
        steps = self.follows[x[:, :-1], x[:, 1:]].log().sum(-1)
        return -(self.first[x[:, 0]].log() + steps)

    def network(self, process: dd.processes.ForwardProcess) -> "Exact":
        """Return the exact network of a process."""
        return Exact(self, process)


@dataclass(frozen=True)
class Exact:
    """Distribution log p(x_l | the other noisy positions), by the forward-backward algorithm."""

    chain: Chain
    process: dd.processes.ForwardProcess

    def __call__(self, z: Int64[Tensor, "B L"], t: Tensor) -> Float64[Tensor, "B L V"]:
        evidence = self.process.token_evidence(z, t.double())
        follows = self.chain.follows
        rows = len(z)
        before = [self.chain.first.expand(rows, -1)]
        after = [torch.ones(rows, self.chain.size, dtype=torch.float64)]
        for i in range(z.shape[1] - 1):
            ahead = (before[-1] * evidence[:, i]) @ follows
            back = (after[-1] * evidence[:, -1 - i]) @ follows.T
            before.append(ahead / ahead.sum(-1, keepdim=True))
            after.append(back / back.sum(-1, keepdim=True))
        return (torch.stack(before, 1) * torch.stack(after[::-1], 1)).log()

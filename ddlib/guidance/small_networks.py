"""Denoisers and classifiers for small processes, for ``examples``."""

import torch
from torch import Tensor

from ddlib.processes import ForwardProcess


class Lookup:
    """Denoiser with float64 logits from a table indexed by the states at a position and to its
    left.
    """

    def __init__(self, process: ForwardProcess, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        shape = (2, process.num_states, process.vocab_size)
        self.table = torch.randn(shape, generator=generator, dtype=torch.float64)

    def __call__(self, z: Tensor, t: Tensor) -> Tensor:
        return self.table[0][z] + self.table[1][z.roll(1, -1)]


class Scale:
    """Binary classifier: log p(y|z) is the log-sigmoid of a sum over the positions."""

    def __init__(self, process: ForwardProcess, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.weight = torch.randn(process.num_states, generator=generator, dtype=torch.float64)

    def __call__(self, states: Tensor, t: Tensor) -> Tensor:
        return torch.nn.functional.logsigmoid((states.to(torch.float64) @ self.weight).sum(1))

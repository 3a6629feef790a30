"""Small processes of every kind, with denoisers and classifiers for them, for ``examples``."""

from collections.abc import Mapping

import torch
from torch import Tensor

from ddlib.hierarchies import Tree
from ddlib.processes import GIDD, ForwardProcess, Hierarchical, Masked, Uniform
from ddlib.schedules import Cosine, Linear


def processes() -> Mapping[str, ForwardProcess]:
    """Return one process for each way of steering, over four tokens."""
    return {
        "masked": Masked(4, Cosine()),
        "tree": Hierarchical(Tree([[0, 0, 1, 1]], speed=[2.0, 1.0]), Linear()),
        "levels": Hierarchical(Tree([[0, 1, 1, 2], [0, 0, 1]], speed=[1.0, 2.0, 0.7]), Cosine()),
        "xi": Hierarchical(Tree([[0, 1, 1, 2], [0, 0, 1]], xi=[0.7, 0.8], speed=[1.0, 2.0, 0.7]), Cosine()),
        "uniform": Uniform(4, Linear()),
        "gidd": GIDD(4, 0.2),
    }


class Lookup:
    """Denoiser with float64 logits from a table indexed by the states at a position and to its left."""

    def __init__(self, process: ForwardProcess, seed: int) -> None:
        generator, shape = torch.Generator().manual_seed(seed), (2, process.num_states, process.vocab_size)
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

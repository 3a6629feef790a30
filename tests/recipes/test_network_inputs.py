"""A network may write into the states that it is given: it gets a copy."""

import pytest
import torch

from recipes.engine.network import Network
from recipes.engine.objectives.noising import NoisyBatch


class Writing(torch.nn.Module):
    def forward(self, z, t, *packing):
        z.zero_()
        return torch.zeros(*z.shape, 5)


@pytest.mark.parametrize("packing", [{}, {"cu_seqlens": torch.tensor([0, 3, 6])}])
def test_a_network_may_write_into_its_states(packing):
    """Else the loss would be that of other states."""
    x = torch.tensor([[0, 1, 2], [4, 2, 3]])
    t = torch.tensor([0.25, 0.5])
    noisy = NoisyBatch(
        x, x.clone(), t, torch.ones(2), torch.ones(2, 3).bool(), piece_t=t, **packing
    )
    Network(Writing()).evaluate(noisy)
    assert torch.equal(noisy.z, x)

"""Tensors of networks that are neither learned nor saved: they move, and no average of weights
changes them.
"""

import copy

import pytest
import torch
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn, get_ema_multi_avg_fn

from ddlib_models import DiT
from ddlib_models.io.constants import Constants

TREE = [[0, 0, 0, 1, 1, 1, 2, 2, 2]]


def network():
    torch.manual_seed(0)
    return DiT(
        vocab_size=9, num_states=13, dim=16, depth=1, heads=2, cond_dim=8, tree=TREE, parents=TREE
    )


@pytest.mark.parametrize(
    "how", [{"avg_fn": get_ema_avg_fn(0.9)}, {"multi_avg_fn": get_ema_multi_avg_fn(0.9)}, {}]
)
def test_an_average_of_weights_leaves_rows_and_tokens_as_they_are(how):
    """Rows of the output layer [0, 1, 2, 3, 4, ...] became [0, 1, 2, 2, 4, ...]."""
    model = network()
    average = AveragedModel(model, use_buffers=True, **how)
    for _ in range(5):
        average.update_parameters(model)
    mean = average.module
    assert torch.equal(mean.head.rows, model.head.rows)
    assert torch.equal(mean.embedding.tokens, model.embedding.tokens)
    assert torch.equal(mean.embedding.starts, model.embedding.starts)
    z = torch.arange(13)[None]
    t = torch.tensor([0.5])
    torch.testing.assert_close(mean(z, t), model(z, t))


def test_constants_move_and_are_copied_and_are_no_state():
    model = network()
    assert (
        not list(model.buffers())
        and not {"head.rows", "embedding.tokens"} & model.state_dict().keys()
    )
    away = copy.deepcopy(model).to("meta")
    assert away.head.rows.is_meta and away.embedding.starts.is_meta and not model.head.rows.is_meta

    class Held(Constants):
        def __init__(self):
            super().__init__()
            self.mask, self.count = torch.zeros(2), torch.arange(2)

    held = Held().to(torch.bfloat16)
    assert held.mask.dtype == torch.bfloat16 and held.count.dtype == torch.int64

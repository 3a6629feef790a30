"""The sizes of the papers, counted on the meta device."""

import pytest
import torch
from tiny import count

from ddlib_models import DiT, sizes

GPT2 = 50257


SIZES = [(sizes.tiny, 28.4, 80.1), (sizes.small, 92.1, 169.7), (sizes.base, 321.2, 424.6)]


@pytest.mark.parametrize(("size", "blocks", "total"), SIZES)
def test_parameters_in_millions_are_those_of_the_papers(size, blocks, total):
    """HDLM's appendix counts the blocks; GIDD's code counts all, with 50259 ids padded to 50304."""
    with torch.device("meta"):
        model = DiT(num_states=GPT2 + 2, vocab_size=GPT2 + 2, **size())
    assert round(count(model.blocks) / 1e6, 1) == blocks
    assert round(count(model) / 1e6, 1) == total


def test_tables_are_padded_to_128_rows_and_logits_are_not():
    with torch.device("meta"):
        model = DiT(num_states=GPT2 + 64 + 1, vocab_size=GPT2, **sizes.tiny())
        logits = model(torch.zeros(1, 3, dtype=torch.int64), torch.rand(1))
    assert len(model.embedding.weight) == len(model.head.weight) + 128 == 50432
    assert logits.shape == (1, 3, GPT2)

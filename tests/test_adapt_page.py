"""Records of adapted models: values read from the folder of a run are those that the run wrote."""

import pytest
import torch
from torch import nn

from benchmarks import adapt
from recipes.data import open_prepared, prepare, speeches


def test_samples_are_read_as_they_were_written():
    text = "sample 1\none\n\ntwo\n\nsample 2\nthree\n\nsample 1 as it denoises\nt = 1.000: _\n"
    assert adapt.samples(text) == ["one\n\ntwo", "three"]


class Bigram(nn.Module):
    """Network that predicts each token from the token before it."""

    def __init__(self, words: int) -> None:
        super().__init__()
        self.table = nn.Parameter(
            torch.randn(words, words, generator=torch.Generator().manual_seed(0))
        )

    def forward(self, z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.table[torch.cat([z[:, :1], z[:, :-1]], 1)]


def test_the_causal_models_own_likelihood_counts_each_token_once(tmp_path):
    data = prepare(speeches(words=300, held_out=40), tmp_path / "data")
    model = Bigram(data.vocab_size)
    found = adapt.causal(model, open_prepared(data.folder), length=10_000, count=40, batch=3)
    probs = model.table.double().log_softmax(-1)
    nats = 0.0
    tokens = 0
    for document in data.validation:
        words = torch.tensor(document.astype("int64"))
        nats -= float(probs[words[:-1], words[1:]].sum().detach())
        tokens += len(words) - 1
    assert (
        found["nats_per_token"] == pytest.approx(nats / tokens, rel=1e-5)
        and found["sequences"] == 40
    )

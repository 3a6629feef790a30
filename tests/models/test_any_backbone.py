"""Any callable (z, t) -> logits is a backbone: here a masked language model of Hugging Face's making."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

import ddlib as dd

PARENTS = [0, 0, 1, 1, 2, 2, 2]


class Backbone(nn.Module):
    """``transformers.AutoModelForMaskedLM`` for a process, after ``model.resize_token_embeddings(process.num_states)``.

    The time is not told: a masked language model sees how noisy its input is.
    """

    def __init__(self, model: nn.Module, vocab_size: int) -> None:
        super().__init__()
        self.model, self.vocab_size = model, vocab_size

    def forward(self, z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=z).logits[..., : self.vocab_size]


class TinyBert(nn.Module):
    """A random BERT, called and answering as those of transformers are."""

    def __init__(self, vocab_size: int, hidden_size: int = 16, max_position_embeddings: int = 32) -> None:
        super().__init__()
        self.words, self.positions = (nn.Embedding(n, hidden_size) for n in (vocab_size, max_position_embeddings))
        layer = nn.TransformerEncoderLayer(hidden_size, 2, 32, dropout=0.0, activation="gelu", batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2)
        self.decoder = nn.Linear(hidden_size, vocab_size)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> SimpleNamespace:
        x = self.words(input_ids) + self.positions.weight[: input_ids.shape[1]]
        return SimpleNamespace(logits=self.decoder(self.encoder(x)))


@pytest.fixture(params=["mdlm", "gidd", "hdlm"])
def process(request):
    return {
        "mdlm": lambda: dd.presets.mdlm(7),
        "gidd": lambda: dd.presets.gidd(7, 0.2),
        "hdlm": lambda: dd.presets.hdlm(PARENTS),
    }[request.param]()


def test_a_masked_language_model_trains_and_samples_with_every_process(process):
    torch.manual_seed(0)
    denoiser = Backbone(TinyBert(process.num_states), process.vocab_size)
    optimizer, x = torch.optim.Adam(denoiser.parameters(), 3e-3), torch.arange(7).repeat(8, 1)
    losses = []
    for _ in range(40):
        t = dd.sample_times(len(x))
        z = process.sample(x, t)
        loss = dd.training_loss(process, denoiser(z, t), x, z, t, weight_clip=(0.0, 2.0))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5]), "it learns a text that is always the same"
    assert dd.bound(process, denoiser, x).total.isfinite().all()
    words = dd.sample(process, denoiser, (2, 7), steps=8)
    assert words.shape == (2, 7) and words.max() < process.vocab_size

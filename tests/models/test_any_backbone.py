"""Any callable (z, t) -> logits is a backbone: here Hugging Face's masked language models, in ten
lines.
"""

import pytest
import torch
from torch import nn
from transformers import AutoModelForMaskedLM, BertConfig, RobertaConfig
from zoo.processes import presets

import ddlib as dd

PARENTS = [0, 0, 1, 1, 2, 2, 2]


class MaskedLM(nn.Module):
    """A masked language model of Hugging Face's that reads the states of a process.

    It takes no time: it sees how noisy its input is.
    """

    def __init__(self, model: nn.Module, process: dd.processes.ForwardProcess) -> None:
        super().__init__()
        model.resize_token_embeddings(process.num_states)
        self.model = model
        self.vocab_size = process.vocab_size

    def forward(self, z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        return self.model(input_ids=z).logits[..., : self.vocab_size]


SIZE = dict(
    vocab_size=7, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
)
SIZE |= dict(max_position_embeddings=16, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
CONFIGS = {"bert": BertConfig(**SIZE), "roberta": RobertaConfig(**SIZE, pad_token_id=1)}
PROCESSES = presets(PARENTS)


@pytest.mark.parametrize("name", PROCESSES)
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_a_masked_language_model_trains_and_samples_with_every_process(name, config):
    torch.manual_seed(0)
    process = PROCESSES[name]
    denoiser = MaskedLM(AutoModelForMaskedLM.from_config(config), process)
    optimizer = torch.optim.Adam(denoiser.parameters(), 1e-2)
    x = torch.arange(7).repeat(8, 1)
    losses = []
    for _ in range(40):
        t = dd.sample_times(len(x))
        z = process.sample(x, t)
        loss = dd.training_loss(process, denoiser(z, t), x, z, t, weighting=dd.weightings.Clip(2.0))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5]), "it learns a text that is always the same"
    assert dd.bound(process, denoiser, x).total.isfinite().all()
    tokens = dd.sample(process, denoiser, (2, 7), steps=8)
    assert tokens.shape == (2, 7) and tokens.max() < process.vocab_size

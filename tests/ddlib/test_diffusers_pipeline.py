"""A pipeline of diffusers, with a network that is a table, draws by ``SamplerScheduler`` what the
plain loop draws.
"""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from ddlib.integrations.diffusers import SamplerScheduler

pytestmark = [
    pytest.mark.usefixtures("as_users_call"),
    pytest.mark.filterwarnings(
        "ignore:.torch.jit.script:DeprecationWarning"
    ),  # torch's own, as pipelines load it
]
V = 11
CANVAS = 6


class Table(nn.Module):
    """Model for ``DiffusionGemmaPipeline`` without attention: the logits depend on the canvas
    alone.
    """

    def __init__(self):
        from transformers import LlamaConfig

        super().__init__()
        text = LlamaConfig(
            vocab_size=V,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=8,
        )
        self.config = SimpleNamespace(canvas_length=CANVAS, get_text_config=lambda decoder: text)
        decoder = SimpleNamespace(create_diffusion_decoder_attention_mask=lambda **given: None)
        self.model = SimpleNamespace(encoder=lambda **given: None, decoder=decoder)
        self.rows = nn.Parameter(torch.randn(V, V, generator=torch.Generator().manual_seed(0)))

    device = torch.device("cpu")
    dtype = torch.float32

    def forward(self, decoder_input_ids, **given):
        own = self.rows[decoder_input_ids]
        return SimpleNamespace(logits=own + own.roll(1, 1))


class Words:
    """A processor of numbers."""

    eos_token_id = None

    def apply_chat_template(self, messages, **given):
        return {"input_ids": torch.zeros(2, 3, dtype=torch.int64)}


@pytest.mark.parametrize("sampler", ["ancestral", "psi:0.7"])
def test_a_pipeline_of_blocks_runs_its_loop_on_a_sampler(sampler, tmp_path):
    from diffusers import DiffusionGemmaPipeline

    process = {"kind": "uniform", "vocab_size": V, "schedule": "linear"}
    scheduler = SamplerScheduler(process=process, sampler=sampler)
    model = Table()
    generator = torch.Generator().manual_seed(3)
    pipeline = DiffusionGemmaPipeline(model=model, scheduler=scheduler, processor=Words())
    pipeline.set_progress_bar_config(disable=True)
    options = {
        "prompt": "x",
        "num_inference_steps": 5,
        "temperature": 0.8,
        "confidence_threshold": None,
    }
    found = pipeline(
        **options, gen_length=2 * CANVAS, output_type="seq", generator=generator
    ).sequences

    generator = torch.Generator().manual_seed(3)
    blocks = []
    again = SamplerScheduler(process=process, sampler=sampler, num_inference_steps=5)
    for _ in range(2):
        canvas = torch.randint(0, V, (2, CANVAS), generator=generator)
        for k in again.timesteps:
            logits = model(canvas).logits
            canvas = again.step(
                logits, k, canvas, temperature=0.8, generator=generator, return_dict=False
            )[0]
        blocks.append(canvas)
    assert found.equal(torch.cat(blocks, 1)) and bool((found < V).all())
    assert len(found.unique()) > 2
    scheduler.save_pretrained(tmp_path)
    assert repr(SamplerScheduler.from_pretrained(tmp_path).sampler) == repr(scheduler.sampler)

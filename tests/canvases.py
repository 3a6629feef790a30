"""Tiny configuration of DiffusionGemma for tests."""

from transformers import DiffusionGemmaConfig, DiffusionGemmaTextConfig, Gemma4VisionConfig


def gemma(rows: int) -> DiffusionGemmaConfig:
    """Configuration with ``rows`` rows of the embedding and a canvas of four tokens."""
    text = DiffusionGemmaTextConfig(
        vocab_size=rows,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=8,
        global_head_dim=8,
        sliding_window=6,
        num_experts=2,
        top_k_experts=1,
        moe_intermediate_size=8,
        layer_types=["sliding_attention", "full_attention"],
    )
    seen = Gemma4VisionConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=8,
    )
    return DiffusionGemmaConfig(text_config=text, vision_config=seen, canvas_length=4)

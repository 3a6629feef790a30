"""Range checks for numeric configuration fields, and other codebases' names of fields."""

ELSEWHERE = {
    **dict.fromkeys(("dtype", "precision", "fp16", "mixed_precision"), "hardware.bf16"),
    **dict.fromkeys(
        ("grad_accum", "accumulation", "gradient_accumulation_steps", "accumulate_grad_batches", "micro_batch_size"),
        "hardware.micro_batch",
    ),
    "per_device_train_batch_size": "hardware.micro_batch",
    **dict.fromkeys(("batch_size", "global_batch_size"), "batch"),
    **dict.fromkeys(("learning_rate", "base_lr"), "optimizer.lr"),
    **dict.fromkeys(("warmup_steps", "num_warmup_steps"), "optimizer.warmup"),
    **dict.fromkeys(("ema_decay",), "optimizer.ema"),
    **dict.fromkeys(("gradient_clip_val", "grad_clip"), "optimizer.max_grad_norm"),
    **dict.fromkeys(("max_steps", "num_steps", "iters", "epochs", "num_train_epochs"), "steps"),
    **dict.fromkeys(("seq_len", "sequence_length", "max_length", "context_length"), "data.length"),
    **dict.fromkeys(("output_dir", "save_dir"), "output.folder"),
    **dict.fromkeys(("eval_steps", "val_check_interval"), "output.validate_every"),
    **dict.fromkeys(("save_steps",), "output.save_every"),
}
"""Fields of a recipe by the last part of their names in other codebases (MDLM, transformers, Lightning)."""


def at_least(least: float, **values: float) -> None:
    """Raise ValueError naming the first value below ``least``."""
    for name, value in values.items():
        if not value >= least:
            raise ValueError(f"{name}={value}: must be at least {least}")


def share(**values: float) -> None:
    """Raise ValueError naming the first value outside [0, 1)."""
    for name, value in values.items():
        if not 0 <= value < 1:
            raise ValueError(f"{name}={value}: must lie in [0, 1)")

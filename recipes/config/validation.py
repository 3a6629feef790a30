"""Range checks for numeric configuration fields, and other codebases' names of fields."""

import inspect
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, get_type_hints

from ddlib import parts

_THEIRS = {
    "hardware.bf16": "dtype precision fp16 mixed_precision",
    "hardware.micro_batch": "grad_accum accumulation gradient_accumulation_steps "
    "accumulate_grad_batches micro_batch_size per_device_train_batch_size",
    "batch": "batch_size global_batch_size",
    "optimizer.lr": "learning_rate base_lr",
    "optimizer.warmup": "warmup_steps num_warmup_steps",
    "optimizer.ema": "ema_decay",
    "optimizer.max_grad_norm": "gradient_clip_val grad_clip",
    "steps": "max_steps num_steps iters epochs num_train_epochs",
    "data.length": "seq_len sequence_length max_length context_length",
    "output.folder": "output_dir save_dir",
    "output.validate_every": "eval_steps val_check_interval",
    "output.save_every": "save_steps",
}
ELSEWHERE = {name: ours for ours, names in _THEIRS.items() for name in names.split()}
"""Fields of a recipe by the last part of their names in other codebases (MDLM, transformers,
Lightning).
"""

_NOT_FIELDS = {
    "a run takes the GPU that it finds: CUDA_VISIBLE_DEVICES chooses one, or the CPU if it is "
    "empty; torchrun "
    "--nproc-per-node starts a process for each of several": (
        "device devices cuda gpu gpus accelerator"
    ),
    "a schedule is a key of the process, and a preset such as mdlm fixes it: --process.kind masked "
    "--process.schedule cosine": "noise noise_schedule schedule scheduler",
    "samples of a run are drawn by the ancestral sampler: python -m recipes.generate RUN --sampler "
    "draws by "
    "others": "sampler",
}
INSTEAD = {name: text for text, names in _NOT_FIELDS.items() for name in names.split()}
"""Settings to use in place of options that recipes do not have, by the names of those elsewhere."""


def instead(name: str) -> str | None:
    """Return the setting to use in place of an option that a recipe does not have.

    None for any other name.
    """
    near = get_close_matches(name, INSTEAD, 1, 0.8)
    return INSTEAD[near[0]] if near else None


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


def of_types(holder: Callable[..., Any], **values: Any) -> dict[str, Any]:
    """Return values in the types that a function, or the fields of a dataclass, state for them.

    Raises:
        ValueError: a value of another type, by its name.
    """
    hints = get_type_hints(holder)
    result = {}
    for name, value in values.items():
        try:
            result[name] = parts.Key(name, hints[name], None).check(value)
        except ValueError as error:
            raise ValueError(f"{name}: {error}") from error
    return result


def check_keys(place: str, given: Mapping[str, Any], function: Callable[..., Any]) -> None:
    """Raise ValueError for the first missing key, or key that is not an argument, with the nearest
    argument.

    Args:
        place: name of the keys in messages.
        given: arguments by name.
        function: the function, or a class.
    """
    parameters = inspect.signature(function).parameters
    for name in given:
        if name not in parameters:
            near = get_close_matches(name, parameters, 1)
            hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(parameters)}"
            raise ValueError(f"{place} {name}: no such key; {hint}")
    for name, parameter in parameters.items():
        if parameter.default is parameter.empty and name not in given:
            raise ValueError(f"{place} {name}: is missing")

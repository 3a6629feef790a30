"""Files of recorded paths: tensors as safetensors, with the state of the process."""

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import Tensor

from ddlib.config.comparison import difference
from ddlib.config.plain import describe
from ddlib.rewards.log_prob import state_difference
from ddlib.samplers.control import SamplingCall
from ddlib.samplers.runtime.context import WindowContext
from ddlib.samplers.runtime.model import FullContext
from ddlib.samplers.trajectory import Step, Trajectory, check_trajectory
from ddlib.utils.validation import require

_FORMAT = "ddlib trajectory 2"

_STEP = ("z", "t", "s", "after", "drawn")
"""Tensors of a step."""

_WINDOW = ("before", "given", "after", "behind", "times")
"""Tensors of its window, which are arguments of ``WindowContext``."""


def save_trajectory(trajectory: Trajectory, path: str | Path) -> None:
    """Write a recorded path to a file, with the state of its process.

    Args:
        trajectory: the second result of ``dd.sample(..., record=True)``.
        path: the file, such as ``path.safetensors``; its folder must exist.

    Raises:
        TypeError: not a trajectory, or one whose network has inputs besides a window.
    """
    from safetensors.torch import save

    check_trajectory(trajectory)
    call = trajectory.call
    tensors = {f"process.{name}": value for name, value in call.process.state_dict().items()}
    tensors |= {"log_probs": trajectory.log_probs, "free": call.free, "fixed": call.fixed}
    for k, step in enumerate(trajectory.steps):
        tensors |= {f"{k}.{name}": getattr(step, name) for name in _STEP}
        tensors |= {f"{k}.window.{name}": value for name, value in _window(step.context).items()}
    facts = {
        "process": repr(call.process),
        "call": _describe(call),
        "weight": trajectory.weight,
        "steps": [{"force": step.force, "time": step.time} for step in trajectory.steps],
    }
    data = save(
        {name: value.detach().clone().contiguous() for name, value in tensors.items()},
        {"format": _FORMAT, "facts": json.dumps(facts)},
    )
    target = Path(path)
    unfinished = target.with_name(f"{target.name}.tmp")
    unfinished.write_bytes(data)
    os.replace(unfinished, target)


def load_trajectory(path: str | Path, call: SamplingCall) -> Trajectory:
    """Read a path that ``save_trajectory`` wrote; ``log_prob`` of it is the same, bit for bit.

    Args:
        path: the file.
        call: the call that made it, ``dd.plan`` with the same arguments as ``dd.sample``, on the
            device of the path. Prompt and generator may differ.

    Raises:
        FileNotFoundError: there is no such file.
        TypeError: ``call`` is not the result of ``dd.plan``.
        ValueError: the file is of another format; a path of another process, shape, sampler or grid
            of times, or with other controls. The message has the first difference.
    """
    from safetensors import SafetensorError, safe_open

    if not isinstance(call, SamplingCall):
        raise TypeError(f"call is a {type(call).__name__}, must be the result of dd.plan")
    if not Path(path).is_file():
        raise FileNotFoundError(f"path={str(path)!r}: there is no such file")
    try:
        with safe_open(path, "pt") as file:
            stated = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise ValueError(f"path={str(path)!r}: is not a file of save_trajectory: {error}") from None
    version = stated.get("format")
    require(version == _FORMAT, f"path={str(path)!r}: has format {version!r}, must be {_FORMAT!r}")
    facts = json.loads(stated["facts"])
    saved = {
        name.removeprefix("process."): tensors.pop(name)
        for name in list(tensors)
        if name.startswith("process.")
    }
    message = state_difference(call.process, saved)
    require(
        not message,
        f"path={str(path)!r}: is of {facts['process']}, and the process of call is "
        f"{call.process!r}, must be the same: {message}",
    )
    message = difference(facts["call"], json.loads(json.dumps(_describe(call))), "call")
    require(not message, f"path={str(path)!r}: is of another call: {message}, must be the same")
    tensors = {name: value.to(call.free.device) for name, value in tensors.items()}
    steps = tuple(_step(tensors, k, **values) for k, values in enumerate(facts["steps"]))
    call = replace(call, free=tensors["free"], fixed=tensors["fixed"])
    return Trajectory(call, steps, tensors["log_probs"], facts["weight"])


def _step(tensors: dict[str, Tensor], k: int, force: bool, time: float) -> Step:
    """Return step ``k`` of a file."""
    z, t, s, after, drawn = (tensors[f"{k}.{name}"] for name in _STEP)
    context = FullContext()
    if f"{k}.window.before" in tensors:
        context = WindowContext(*(tensors[f"{k}.window.{name}"] for name in _WINDOW))
    return Step(context, z, t, s, after, drawn, force, time)


def _window(context: FullContext) -> dict[str, Tensor]:
    """Return the tensors of a window; none for the whole sequence."""
    if type(context) is FullContext:
        return {}
    if type(context) is not WindowContext:
        raise TypeError(
            f"trajectory has inputs of the network of type {type(context).__name__}, must be of "
            "whole sequences or windows"
        )
    return {name: getattr(context, name) for name in _WINDOW}


def _describe(call: SamplingCall) -> dict[str, Any]:
    """Return what determines the distributions of a call, and its sampler, as plain values."""
    return {
        "shape": list(call.free.shape),
        "sampler": describe(call.sampler),
        "times": call.times.tolist(),
        "pace": describe(call.pace),
        "controls": [describe(control) for control in call.controls],
        "parameterization": repr(call.network.parameterization),
    }

"""Claims about constructor arguments and state: plain values rebuild a part, the state holds
learned numbers only.
"""

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from typing import cast

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_avg_fn

from ddlib.config.comparison import apart, rebuilt
from ddlib.config.part import Part
from ddlib.config.plain import write_values
from ddlib.processes import ForwardProcess
from ddlib.verification.framework.claim import Claim, Comparison, Point, condition


def _unknown(part: Part) -> str:
    """Return the reason why the values of a part cannot be compared; empty if they can.

    Empty too if an argument is not stored, which is a fault.
    """
    try:
        write_values(part)
    except TypeError as error:
        return "" if _missing_arguments(part) else str(error)
    return ""


def _missing_arguments(part: Part) -> str:
    """Return the reason why the arguments of a part are not known; empty if they are."""
    try:
        part.arguments()
    except TypeError as error:
        return str(error)
    return ""


def _values(part: Part, point: Point) -> Iterator[Comparison]:
    reason = _missing_arguments(part)
    yield condition("the arguments of the constructor", not reason, reason)
    if reason:
        return
    again = rebuilt(part, json.loads(json.dumps(write_values(part))))
    difference = apart(part, again)
    message = f"{difference} is not what the constructor creates from the same arguments"
    hint = (
        "the arguments of the constructor must determine the object; a constant must be "
        "computed from them only"
    )
    yield condition("the part rebuilt from dd.values", not difference, message, hint)


def _state(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    learned = {name for name, _ in process.named_parameters()}
    constants = [
        name
        for name in process.state_dict()
        if name not in learned and not name.endswith("_extra_state")
    ]
    message = (
        f"{', '.join(constants)}: in state_dict(), must follow from the constructor's arguments"
    )
    hint = (
        "write self.name = tensor in a ddlib.utils.precision.Float64Module, not a buffer; use a "
        "parameter if it is "
        "learned"
    )
    yield condition("tensors in the state that are not learned", not constants, message, hint)
    loaded = copy.deepcopy(process)
    loaded.load_state_dict(process.state_dict())
    difference = apart(process, loaded)
    yield condition(
        "the process after loading its own state dict",
        not difference,
        f"{difference} changed by load_state_dict",
    )


def _average(process: ForwardProcess, point: Point) -> Iterator[Comparison]:
    """Average the weights of a network that has the process as a submodule."""
    network = nn.Module()
    network.process = copy.deepcopy(process)
    average = AveragedModel(network, avg_fn=get_ema_avg_fn(0.9), use_buffers=True)
    for _ in range(3):
        average.update_parameters(network)
    mean = cast(ForwardProcess, average.module.process)
    changed = [
        name
        for name, value in process.named_buffers()
        if not torch.equal(value, mean.get_buffer(name))
    ]
    message = (
        f"{', '.join(changed)}: changed by torch.optim.swa_utils.AveragedModel(network, "
        "use_buffers=True)"
    )
    hint = (
        "write self.name = tensor in a ddlib.utils.precision.Float64Module, not register_buffer: "
        "averages do not "
        "change it"
    )
    yield condition("constants that an average of weights changes", not changed, message, hint)
    if not list(process.parameters()):
        t = float(point["t"])
        yield Comparison(
            "q_{t|0} after averaging",
            ("from", "to"),
            mean.transition(0.0, t),
            process.transition(0.0, t),
            0,
        )


PART_CLAIMS = (
    Claim(
        "arguments",
        "values",
        "dd.values contains all arguments of the object",
        "exactly",
        _values,
        applies=_unknown,
    ),
)
"""Claims about every part, and about processes."""

CLAIMS = (
    *PART_CLAIMS,
    Claim(
        "arguments",
        "state",
        "the state dict holds learned numbers only, and loads",
        "exactly",
        _state,
    ),
    Claim(
        "arguments",
        "averages",
        "an average of weights does not change the process",
        "exactly",
        _average,
        ({"t": 0.6},),
        rests_on=("state", "rates", "distributions"),
    ),
)

SIZE_CLAIMS = tuple(
    replace(claim, topic="as given", name=f"{claim.name} as given") for claim in CLAIMS[:2]
)
"""Claims about a process at its full size, in addition to those about its small copy."""

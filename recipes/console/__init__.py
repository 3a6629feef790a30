"""Console output of the commands."""

from recipes.console.bar import TrainingBar
from recipes.console.screen import (
    command,
    make_console,
    on_its_way,
    plain_errors,
    render,
    render_states,
    sign,
)
from recipes.console.writing import check_file, check_inputs_kept

__all__ = [
    "TrainingBar",
    "check_file",
    "check_inputs_kept",
    "command",
    "make_console",
    "on_its_way",
    "plain_errors",
    "render",
    "render_states",
    "sign",
]

"""Parts that record their constructor arguments: plain values, comparison, state dicts."""

from ddlib.arguments.compared import apart, difference, rebuilt
from ddlib.arguments.identified import check_extra_state, extra_state
from ddlib.arguments.names import declared
from ddlib.arguments.plain import described, values, written
from ddlib.arguments.recorded import Part, made_by

__all__ = [
    "Part",
    "apart",
    "check_extra_state",
    "declared",
    "described",
    "difference",
    "extra_state",
    "made_by",
    "rebuilt",
    "values",
    "written",
]

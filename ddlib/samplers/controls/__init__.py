"""Controls of sampling: truncation, forbidden tokens, endings, memory, batches."""

from ddlib.samplers.control import Control, Needs
from ddlib.samplers.controls.endings import Ending, EndOfText, Settled
from ddlib.samplers.controls.network import Memory, WholeBatch
from ddlib.samplers.controls.tokens import Forbidden, RepetitionPenalty
from ddlib.samplers.controls.truncation import Truncation

__all__ = [
    "Control",
    "EndOfText",
    "Ending",
    "Forbidden",
    "Memory",
    "Needs",
    "RepetitionPenalty",
    "Settled",
    "Truncation",
    "WholeBatch",
]

"""Queries to the Hugging Face hub, with short errors and without retries."""

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

SECONDS = 10.0
"""Timeout of the hub in seconds."""


def lookup(name: str) -> str | None:
    """Query once whether the hub has a model of this name; return None if it does, else the reason as ``nothing``."""
    try:
        HfApi().model_info(name, timeout=SECONDS)
    except Exception as error:  # network errors have no common base class
        return nothing(name, error)
    return None


def nothing(name: str, error: Exception) -> str:
    """Return the message that this name exists neither here nor on the hub, with the hub's error."""
    if isinstance(error, HFValidationError):
        return f"no folder {name}, and not a valid name of a model on the hub"
    answer = getattr(error, "response", None) if isinstance(error, HfHubHTTPError) else None
    if answer is None:
        return f"no folder {name}, and the hub does not answer"
    return f"no folder {name}, and the hub answers {answer.status_code}: no such model, or no permission"

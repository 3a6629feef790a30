"""Queries to the Hugging Face hub, with short errors and without retries."""

from pathlib import Path

from huggingface_hub import HfApi, try_to_load_from_cache
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

SECONDS = 10.0
"""Timeout of the hub in seconds."""


def lookup(name: str) -> str | None:
    """Query once whether the hub has a model of this name.

    Return None if it does, else the reason as ``nothing``.
    """
    try:
        HfApi().model_info(name, timeout=SECONDS)
    except Exception as error:  # network errors have no common base class
        return nothing(name, error)
    return None


def check_there(place: str, name: str, file: str, revision: str | None = None) -> None:
    """Raise unless there is a folder or file of this name, a cached file of the hub, or a model on
    the hub.

    One request in place of those that libraries repeat for each file, half a minute without a
    network.

    Args:
        place: name of the argument, for messages.
        name: path, or name on the hub.
        file: file of the model that is read.
        revision: branch, tag or commit of the model on the hub.

    Raises:
        FileNotFoundError: there is none.
    """
    if Path(name).exists():
        return
    try:
        cached = try_to_load_from_cache(name, file, revision=revision)
    except HFValidationError as error:
        raise FileNotFoundError(f"{place}: {nothing(name, error)}") from error
    if not isinstance(cached, str) and (reason := lookup(name)):
        raise FileNotFoundError(f"{place}: {reason}")


def nothing(name: str, error: Exception) -> str:
    """Return the message that this name exists neither here nor on the hub, with the hub's
    error.
    """
    if isinstance(error, HFValidationError):
        return f"no folder {name}, and not a valid name of a model on the hub"
    answer = getattr(error, "response", None) if isinstance(error, HfHubHTTPError) else None
    if answer is None:
        return f"no folder {name}, and the hub does not answer"
    return (
        f"no folder {name}, and the hub answers {answer.status_code}: no such model, or no "
        "permission"
    )

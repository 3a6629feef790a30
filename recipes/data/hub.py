"""What the Hugging Face hub answers, in a few words and without trying twice."""

from huggingface_hub import HfApi
from huggingface_hub.errors import HfHubHTTPError, HFValidationError

SECONDS = 10.0
"""What the hub has for an answer."""


def ask(name: str) -> str | None:
    """Asks once whether the hub has a model of this name: None if it does, else why there is none, as ``nothing``."""
    try:
        HfApi().model_info(name, timeout=SECONDS)
    except Exception as error:  # of the network, which are no exceptions of one kind
        return nothing(name, error)
    return None


def nothing(name: str, error: Exception) -> str:
    """Says that there is nothing of this name here, nor on the hub, whose answer was an error."""
    if isinstance(error, HFValidationError):
        return f"no folder {name}, and that is no name of a model on the hub"
    answer = getattr(error, "response", None) if isinstance(error, HfHubHTTPError) else None
    if answer is None:
        return f"no folder {name}, and no such model on the hub can be reached"
    return f"no folder {name}, and the hub answers {answer.status_code}: no such model, or not for you"

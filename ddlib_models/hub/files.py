"""Files of a pretrained model besides the weights: configuration, tokenizer."""

from pathlib import Path
from types import ModuleType
from typing import Any

from huggingface_hub import snapshot_download
from huggingface_hub.errors import StrictDataclassError
from torch import nn

from ddlib_models.dit import DiT
from ddlib_models.hf.base import transformers_for
from ddlib_models.hub.family import Config, WeightSource
from ddlib_models.io.json_files import line, read_model_config, read_object
from ddlib_models.io.manifest import MANIFEST, read_facts
from ddlib_models.io.safetensors import load_from_safetensors

TRUST = "trust=True (on the command line --trust NAME, the model's)"
"""Setting that allows code that comes with weights, for messages."""

GENERATION = "generation_config.json"

_QUANTISED = ("quantization_config", "quantization", "compression_config")


def transformers() -> ModuleType:
    """Import transformers, or raise an error with the command to install it."""
    return transformers_for("ddlib_models.hub")


def read_config(name: str, revision: str | None = None) -> dict[str, Any]:
    """Read config.json; for a folder of ddlib the ``model_type`` is "ddlib", and the ``class`` is
    included.

    Raises:
        ValueError: there is no model, its config.json is broken, or its weights are quantised.
    """
    transformers()  # raises for a missing package before any file is read
    hub = {} if revision is None else {"revision": revision}
    config = read_model_config(name, name, revision)
    folder = Path(name)
    quantised = [key for key in _QUANTISED if config.get(key)]
    if quantised:
        raise ValueError(
            f"{name}: {quantised[0]} of config.json declares quantised weights, which are not "
            "supported: use the "
            "repository of the original weights"
        )
    if not folder.is_dir() and config.get("model_type") in (None, DiT.model_type):
        folder = Path(snapshot_download(name, allow_patterns=[MANIFEST], **hub))
    if (folder / MANIFEST).is_file():
        config |= {"model_type": "ddlib", "class": read_facts(folder).get("class")}
    return config


def read_tokenizer(
    name: str, kind: str, config: Config, trust: bool, revision: str | None = None
) -> Any:
    """Read the tokenizer beside the weights.

    Args:
        name: name of the model.
        kind: the class of transformers that reads it.
        config: content of config.json.
        trust: whether code of the repository may be run.
        revision: revision of the repository.

    Raises:
        PermissionError: it requires code of the repository.
        ValueError: there is none, or config.json has values that its class does not accept.
    """
    hub: dict[str, Any] = {"trust_remote_code": trust} | (
        {} if revision is None else {"revision": revision}
    )
    code = trust and "AutoConfig" in (config.get("auto_map") or ())
    if (
        kind == "AutoTokenizer"
        and not code
        and config.get("model_type") not in transformers().CONFIG_MAPPING
    ):
        # the class that transformers would select too, with a warning of a wrong class
        hub["config"] = transformers().PreTrainedConfig(
            tokenizer_class=config.get("tokenizer_class")
        )
    try:
        tokenizer = getattr(transformers(), kind).from_pretrained(name, **hub)
    except StrictDataclassError as error:
        raise ValueError(
            f"{name}: config.json has values that are not accepted: {line(error)}"
        ) from error
    except (OSError, ValueError, TypeError) as error:
        message = str(error).strip().splitlines()[0]
        if "trust_remote_code" in str(error):
            raise PermissionError(
                f"{name}: its tokenizer is code of its repository, and loading it runs this code: "
                "read it, then pass "
                f"{TRUST}"
            ) from error
        raise ValueError(f"{name}: its tokenizer cannot be loaded: {message}") from error
    if tokenizer.get_vocab().keys() <= set(tokenizer.all_special_tokens):
        # without tokenizer files, transformers makes a tokenizer of a few tokens
        raise ValueError(
            f"{name}: its tokenizer cannot be loaded, as none of its files contains the tokens"
        )
    return tokenizer


def load_pretrained(kind: Any, source: WeightSource, **options: Any) -> nn.Module:
    """Load a network of transformers, from safetensors only.

    Args:
        kind: the class of the network, or an auto class.
        source: source of the weights.
        options: options of ``from_pretrained``.

    Raises:
        ValueError: missing or unknown weights.
    """
    return load_from_safetensors(
        kind, source.name, source.name, dtype=source.dtype, **source.hub, **options
    )


def read_generation(name: str, revision: str | None = None) -> dict[str, Any]:
    """Read generation_config.json, if it exists.

    Raises:
        ValueError: it is broken, or an end of sequence is not an id.
    """
    try:
        config = read_object(name, GENERATION, revision) or {}
    except OSError:
        return {}
    ends = config.get("eos_token_id")
    for end in ends if isinstance(ends, list) else [ends]:
        if end is not None and type(end) is not int:
            raise ValueError(
                f"{name}: eos_token_id={ends!r} of {GENERATION}: must be an id or a list of ids"
            )
    return config

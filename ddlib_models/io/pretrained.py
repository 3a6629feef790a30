"""Base class for saving, loading and publishing a network: safetensors, config.json and a
manifest.
"""

import copy
import functools
import inspect
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import torch
from huggingface_hub import PyTorchModelHubMixin, snapshot_download
from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError
from huggingface_hub.utils import is_jsonable, validate_repo_id

from ddlib_models.io.manifest import (
    FOREIGN,
    MANIFEST,
    ManifestError,
    check_manifest,
    list_files,
    writing,
)
from ddlib_models.io.tensors import fill, save_tensors

T = TypeVar("T", bound="Pretrained")

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
CARD = "README.md"
_HEADER = ("model_type", "architectures")  # keys of config.json that are not arguments

_TEMPLATE = """---
{{ card_data }}
---

# {{ title | default(class_name, true) }}

{{ about | default("A network for discrete diffusion, saved by ddlib.", true) }}

```python
from {{ module }} import {{ class_name }}

model = {{ class_name }}.from_pretrained("...")  # this repository, or a folder with its files
```

`ddlib_manifest.json` holds the sizes and sha256 of all files; they are checked at every load.
"""


class Pretrained(
    PyTorchModelHubMixin,
    library_name="ddlib",
    tags=["discrete-diffusion"],
    model_card_template=_TEMPLATE,
):
    """Mixin that gives an ``nn.Module`` ``save_pretrained``, ``from_pretrained`` and
    ``push_to_hub``.

    The constructor's arguments go to config.json as they were passed, so they must be JSON, or of a
    type that has ``coders`` (see huggingface_hub's ``ModelHubMixin``). Tensors keep their dtype,
    bit for bit; tied ones stay tied.

    Example:
        >>> class Small(Pretrained, nn.Module):
        ...     def __init__(self, dim: int):
        ...         super().__init__()
        ...         self.linear = nn.Linear(dim, dim)
        >>> Small(dim=3).save_pretrained("folder")  # doctest: +SKIP
        >>> Small.from_pretrained("folder")  # doctest: +SKIP

    Attributes:
        unsaved: arguments that affect only how to compute; they are not saved, and may be given at
            each load.
        unsaved_defaults: arguments that are saved only if they differ from their default: those
            added since the first release, so that older versions load what does not use them.
        model_type: the class's name in transformers' registry, if it is registered there.
    """

    unsaved: ClassVar[tuple[str, ...]] = ()
    unsaved_defaults: ClassVar[tuple[str, ...]] = ()
    model_type: ClassVar[str | None] = None

    def __init_subclass__(cls, *, coders: Mapping[type, Any] | None = None, **kwargs: Any) -> None:
        inherited = getattr(cls, "_hub_mixin_coders", {})  # the mixin would drop them
        super().__init_subclass__(coders={**inherited, **(coders or {})}, **kwargs)
        # help() and the documentation would show the mixin's __new__(*args, **kwargs)
        cls.__signature__ = inspect.signature(functools.partial(cls.__init__, None))

    @classmethod
    def _is_jsonable(cls, value: Any) -> bool:
        # the mixin would drop other values and save the default; saved_arguments raises instead
        return True

    @classmethod
    def _encode_arg(cls, arg: Any) -> Any:
        encoded = super()._encode_arg(arg)
        if encoded is not arg or not isinstance(arg, dict | list):
            return encoded
        # a copy: the constructor may take items out of it, or its caller change it later
        return copy.deepcopy(arg) if is_jsonable(arg) else copy.copy(arg)

    def save_pretrained(
        self,
        save_directory: str | Path,
        *,
        extra: Mapping[str, bytes | str] | None = None,
        model_card_kwargs: dict[str, Any] | None = None,
        config: None = None,
        **push: Any,
    ) -> str | None:
        """Write weights, config.json, README.md and the manifest, first to a temporary folder,
        which is then moved.

        An older save in the folder is replaced; other files and an existing README.md stay.

        Args:
            save_directory: the folder.
            extra: further files by name, such as a tokenizer; the manifest covers them.
            model_card_kwargs: ``title`` and ``about`` of README.md.
            config: None; the mixin's parameter. The constructor's arguments are the configuration.
            **push: ``push_to_hub=True``, ``repo_id`` and the arguments of ``push_to_hub``, to
                publish as well.

        Returns:
            The address of the commit if it was published.

        Raises:
            TypeError: a constructor argument that is not JSON, by name.
            ValueError: an extra file's name that cannot be used.
            ManifestError: the folder holds files that are not from a save; see
                ``manifest.writing``.
        """
        if config is not None:
            raise TypeError(
                "config: must be None, as the constructor's arguments are the configuration"
            )
        extra = extra or {}
        for name in extra:
            if name in (WEIGHTS, CONFIG, CARD, MANIFEST) or not re.fullmatch(r"\w[\w.-]*", name):
                raise ValueError(
                    f"extra file {name!r}: must be a plain name, and not one of the model's own "
                    "files"
                )
        publish = push.pop("push_to_hub", False)
        repo_id = push.pop("repo_id", Path(save_directory).name)
        if push and not publish:
            raise TypeError(
                f"save_pretrained got {', '.join(push)}, which require push_to_hub=True"
            )
        self.saved_arguments()  # raises before any work
        with writing(save_directory, {"class": type(self).__name__}, unlisted=(CARD,)) as folder:
            super().save_pretrained(folder, model_card_kwargs=model_card_kwargs)
            for name, content in extra.items():
                (folder / name).write_bytes(
                    content.encode() if isinstance(content, str) else content
                )
        if not publish:
            return None
        return self.push_to_hub(repo_id, extra=extra, model_card_kwargs=model_card_kwargs, **push)

    def push_to_hub(
        self, repo_id: str, *, extra: Mapping[str, bytes | str] | None = None, **kwargs: Any
    ) -> str:
        """Publish the files of ``save_pretrained``; files of the repository with other names stay.

        Args:
            repo_id: "name" or "owner/name"; created if it does not exist.
            extra: see ``save_pretrained``.
            **kwargs: see ``huggingface_hub.ModelHubMixin.push_to_hub``: ``private``, ``token``,
                ``branch``, ...

        Returns:
            The address of the commit.
        """
        publisher = copy.copy(self)  # the mixin calls save_pretrained without extra files
        publisher.__dict__["save_pretrained"] = functools.partial(self.save_pretrained, extra=extra)
        return super(Pretrained, publisher).push_to_hub(repo_id, **kwargs)

    @classmethod
    def from_pretrained(
        cls: type[T], pretrained_model_name_or_path: str | Path, **kwargs: Any
    ) -> T:
        """Load the model of a folder or a hub repository, in evaluation mode, after checking every
        file.

        Args:
            pretrained_model_name_or_path: a folder written by ``save_pretrained``, or a
                repository's id.
            **kwargs: ``revision``, ``token``, ``cache_dir``, ``force_download``,
                ``local_files_only`` for the hub; ``map_location``, the device; others replace an
                argument of the constructor, such as ``attention``.

        Raises:
            FileNotFoundError: neither a folder nor a repository's id; a repository that is not
                cached, without network.
            ManifestError: a file is missing, truncated, altered or foreign, or another class was
                saved.
            ValueError: config.json has an unknown key, or the weights do not fit, by name.
        """
        hub = {key: kwargs.pop(key) for key in _HUB if key in kwargs}
        folder = verify_folder(pretrained_model_name_or_path, cls.__name__, **hub)
        cls._refuse_unknown(folder / CONFIG)
        return super().from_pretrained(folder, **kwargs)

    def saved_arguments(self) -> dict[str, Any]:
        """Return the constructor's arguments as saved in config.json, without those of ``unsaved``.

        Raises:
            TypeError: an argument that is not JSON, or that ``from_pretrained`` could not pass, by
                name.
        """
        config = self._hub_mixin_config or {}
        config = asdict(config) if is_dataclass(config) else config
        defaults = {
            key: self._hub_mixin_init_parameters[key].default for key in self.unsaved_defaults
        }
        saved = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in defaults.items()
        }
        changed = {
            key
            for key, value in config.items()
            if key not in defaults or value not in (defaults[key], saved[key])
        }
        config = {
            key: value
            for key, value in config.items()
            if key in changed and key not in self.unsaved
        }
        for key, value in config.items():
            if not is_jsonable(value):
                raise TypeError(
                    f"{key} is {type(value).__name__}, which cannot be stored as JSON: give the "
                    "class coders for it"
                )
            if key in _TAKEN:
                raise TypeError(
                    f"{key}: must have another name, as from_pretrained has an argument of that "
                    "name"
                )
            if (
                parameter := self._hub_mixin_init_parameters.get(key)
            ) and parameter.kind in _NAMELESS:
                raise TypeError(
                    f"{key} was passed by position to an argument that cannot be passed by name"
                )
        return config

    def fill(self, path: Path, optional: tuple[str, ...] = ()) -> None:
        """Load the tensors of a file into the network; see ``tensors.fill``."""
        fill(self, path, optional)

    def generate_model_card(self, *args: Any, **kwargs: Any) -> Any:
        kind = type(self)
        return super().generate_model_card(
            *args, **{"class_name": kind.__name__, "module": kind.__module__} | kwargs
        )

    def _save_pretrained(self, save_directory: Path) -> None:
        save_tensors(self, save_directory / WEIGHTS)
        header = (
            {"model_type": self.model_type, "architectures": [type(self).__name__]}
            if self.model_type
            else {}
        )
        text = ",\n".join(
            f"{json.dumps(key)}: {json.dumps(value)}"
            for key, value in (header | self.saved_arguments()).items()
        )
        (save_directory / CONFIG).write_text(f"{{\n{text}\n}}\n", encoding="utf-8")

    @classmethod
    def _refuse_unknown(cls, path: Path) -> None:
        parameters = cls._hub_mixin_init_parameters
        if "config" in parameters or any(
            parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters.values()
        ):
            return  # it takes any arguments
        header = _HEADER if cls.model_type else ()
        unknown = json.loads(path.read_text(encoding="utf-8")).keys() - {*parameters, *header}
        if unknown:
            raise ValueError(
                f"{path}: {', '.join(sorted(unknown))}: no argument of {cls.__name__} in this "
                "version"
            )

    @classmethod
    def _from_pretrained(
        cls: type[T], *, model_id: str, map_location: str | torch.device = "cpu", **kwargs: Any
    ) -> T:
        arguments = {key: value for key, value in kwargs.items() if key not in _HUB}
        model = cls(**arguments).to(map_location)
        model.fill(Path(model_id) / WEIGHTS)
        return model.eval()


_HUB = ("revision", "token", "cache_dir", "force_download", "local_files_only")
_TAKEN = (*_HUB, "map_location", "model_id", "pretrained_model_name_or_path")
_NAMELESS = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY)


def verify_folder(name: str | Path, class_name: str, **hub: Any) -> Path:
    """Return the local folder of a saved model of that class, downloaded if necessary, all listed
    files checked.

    Args:
        name: a folder, or the id of a hub repository, from which only the listed files are taken.
        class_name: the required class of the saved model.
        **hub: passed on to ``huggingface_hub.snapshot_download``.

    Raises:
        FileNotFoundError: neither a folder nor a repository's id; a repository that is not cached,
            without network.
        ManifestError: see ``manifest.check_manifest``; or another class was saved.
    """
    folder = Path(name)
    foreign = FOREIGN
    if not folder.is_dir():
        folder = _download(str(name), **hub)
        foreign = ()
    saved = check_manifest(folder, foreign).get("class")
    if saved != class_name:
        raise ManifestError(f"{folder}: contains {saved or 'no model'}, must contain {class_name}")
    return folder


def _download(name: str, **hub: Any) -> Path:
    try:
        validate_repo_id(name)
    except HFValidationError as error:
        raise FileNotFoundError(
            f"{name}: neither a folder nor the id of a repository on the hub"
        ) from error
    try:
        folder = snapshot_download(name, allow_patterns=[MANIFEST], **hub)
    except LocalEntryNotFoundError as error:
        raise FileNotFoundError(
            f"{name}: no folder, not in the cache, and the hub does not answer"
        ) from error
    return Path(snapshot_download(name, allow_patterns=[MANIFEST, *list_files(folder)], **hub))

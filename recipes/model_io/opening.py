"""Opening of a model: network, noise, tokenizer and metadata."""

import hashlib
import json
from collections.abc import Callable, Collection, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, get_type_hints

import torch
from huggingface_hub import snapshot_download
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError
from jaxtyping import Int
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn

import ddlib as dd
from ddlib import registry
from ddlib.hierarchies import Clusters, load_clusters
from ddlib_models import Pretrained
from ddlib_models.io.manifest import MANIFEST, check_manifest
from ddlib_models.io.tensors import fill
from recipes.config import ModelContext, Recipe, RunContext, at_least, plugins, read_recipe
from recipes.data import Layout
from recipes.data.hub import nothing
from recipes.data.layout import TEMPLATE
from recipes.data.symbols import special_ids
from recipes.data.tokens import add_special
from recipes.model_io.base import FoundModel, LoadedModel, ModelFiles, Precision, RowLayout
from recipes.model_io.calling import as_function
from recipes.model_io.foreign import WEIGHTS as WEIGHTS_FILES
from recipes.model_io.foreign import find_foreign, with_template
from recipes.model_io.names import (
    CLUSTERS,
    CONTENT,
    COUNTS,
    RECIPE,
    SYMBOLS,
    TOKENIZER,
    WEIGHTS,
)


class Published(RunContext):
    """Run context of a folder whose manifest was checked.

    Args:
        folder: folder of the weights.
        tokenizer: their tokenizer.
        layout: layout of the sequences of symbols; None for text.
    """

    def __init__(self, folder: Path, tokenizer: Tokenizer, layout: Layout | None = None) -> None:
        self._folder = folder
        self._vocabulary = tokenizer.get_vocab()
        self._layout = layout

    def vocabulary(self) -> dict[str, int]:
        return self._vocabulary

    def counts(self) -> Int[Tensor, " V"]:
        return load_file(self._folder / COUNTS)["counts"]

    def parents(self, clusters: int | list[int] | str = 64) -> list[Int[Tensor, " n"]]:
        return list(load_clusters(self._folder / CLUSTERS, self.fingerprint()).parents)

    def names(self) -> dict[str, list[str]] | list[list[str]]:
        return super().names() if (found := self.saved_clusters()) is None else found.names.plain()

    def saved_clusters(self) -> Clusters | None:
        """Clusters of the process, if it has any."""
        there = (self._folder / f"{CLUSTERS}.json").exists()
        return load_clusters(self._folder / CLUSTERS, self.fingerprint()) if there else None


CONFIG = "config.json"
"""Configuration file that transformers writes beside weights."""
UNREAD = (
    "*.bin",
    "*.pt",
    "*.pth",
    "*.ckpt",
    "*.h5",
    "*.msgpack",
    "*.onnx",
    "*.gguf",
    "*.tflite",
    "*.ot",
)
"""Weights in formats that are never read: pickles, and those of other programs."""


def one_of(run: str | None, model: str | None) -> str:
    """Return the requested model, given in one of two arguments: ``open_saved`` detects its kind.

    Raises:
        ValueError: neither, or both.
    """
    if (run is None) == (model is None):
        got = "neither is given" if run is None else f"got {run!r} and {model!r}"
        raise ValueError(f"model: must be given once, as RUN or by --model; {got}")
    return model if run is None else run


def open_saved(
    source: str | Path,
    device: str | torch.device = "cpu",
    precision: Precision = "float32",
    trust: Collection[str] = (),
    family: str | None = None,
    mask_token: str | None = None,
    block_size: int | None = None,
    revision: str | None = None,
) -> LoadedModel:
    """Open the folder of a run, its weights, or a pretrained third-party denoiser.

    Arguments and errors are those of ``find_saved``, and the errors of loading the network: damaged
    weights, or weights of another network.
    """
    return find_saved(
        source, device, precision, trust, family, mask_token, block_size, revision
    ).load()


def find_saved(
    source: str | Path,
    device: str | torch.device = "cpu",
    precision: Precision = "float32",
    trust: Collection[str] = (),
    family: str | None = None,
    mask_token: str | None = None,
    block_size: int | None = None,
    revision: str | None = None,
) -> FoundModel:
    """Find the folder of a run, its weights, or a pretrained third-party denoiser.

    A local one, or one on the hub. Its network is not loaded, and the weights of a third party are
    not downloaded, until the result is.

    A published recipe has a ``recipe.yaml``; everything else is read by ``ddlib_models.hub``.

    Args:
        source: folder, or id of a repository on the hub.
        device: for the network and the noise.
        precision: precision of the network's products; for a third-party model of its weights too.
        trust: modules from which ``package.module:object`` in the recipe may be imported. The
            folder of a run is trusted; weights alone may be from a third party. For a third-party
            model ``source`` itself, if code that comes with it may be run.
        family: format of a third-party model, see ``ddlib_models.hub.load``; by default detected
            from its files.
        mask_token: its mask token, or, where no token is spelled so, the token's id; likewise.
        block_size: positions of a block in its training, likewise; 0: all positions attend to each
            other.
        revision: branch, tag or commit of a repository on the hub.

    Raises:
        FileNotFoundError: no such folder, and none on the hub that can be reached; nothing was
            published there.
        OSError: a third-party model with weights in a pickle alone, which are not read.
        ValueError: damaged files, files that do not belong together, or a plug-in that is not
            installed; for a third-party model the errors of ``ddlib_models.hub.load``.
        PermissionError: a module, or a model's code, that is not trusted.
    """
    at_least(0, block_size=block_size or 0)
    for one in trust:
        if one.lower() in ("true", "yes", "1"):
            raise ValueError(
                f"trust={one!r}: must name what is trusted: package.module, or the model, "
                f"{str(source)!r}"
            )
    folder = Path(source)
    has_weights = (folder / WEIGHTS).is_dir()
    if has_weights:
        folder = folder / WEIGHTS
    if folder.is_file():
        raise FileNotFoundError(f"{source} is a file, must be the folder of a run or of a model")
    fetch: Callable[[], Path] | None = None
    if not folder.is_dir():

        def download(ignored: Sequence[str]) -> Path:
            return Path(
                snapshot_download(str(source), revision=revision, ignore_patterns=[*ignored])
            )

        fetch = partial(download, UNREAD)
        if folder.is_absolute() or len(folder.parts) > 2:
            raise FileNotFoundError(f"no folder {source}, and not a name or owner/name on the hub")
        try:
            folder = download((*UNREAD, WEIGHTS_FILES))
            if (folder / RECIPE).exists() or not (folder / CONFIG).exists():
                folder = download(UNREAD)  # a manifest covers all files
                fetch = None
        except (
            HfHubHTTPError,
            HFValidationError,
            LocalEntryNotFoundError,
            ConnectionError,
        ) as error:
            raise FileNotFoundError(nothing(str(source), error)) from error
    elif revision is not None:
        raise ValueError(
            f"revision={revision!r}: only for a repository on the hub, {source} is a folder"
        )
    if not (folder / RECIPE).exists() and (folder / CONFIG).exists():
        trusted = str(source) in trust
        return find_foreign(
            folder,
            fetch,
            str(source),
            device,
            precision,
            trusted,
            family,
            mask_token,
            block_size,
            revision,
        )
    if not (folder / RECIPE).exists():
        raise FileNotFoundError(
            f"{folder} has no {RECIPE}: the run has not saved yet, or this is not its folder; it "
            f"has no {CONFIG} of a "
            "third-party model either"
        )
    if not has_weights and not any(
        (folder / name).exists() for name in (MANIFEST, "model.safetensors")
    ):
        raise FileNotFoundError(
            f"{folder} has a {RECIPE} and no weights: the run has not saved yet, as it does every "
            "output.save_every "
            "steps"
        )
    for name, value in {
        "family": family,
        "mask_token": mask_token,
        "block_size": block_size,
    }.items():
        if value is not None:
            raise ValueError(
                f"{name}={value!r}: only for third-party models, {source} has a recipe, which "
                "determines it"
            )
    check_manifest(folder)  # so all files below are intact
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    layout = layout_of(folder)
    context = Published(folder, tokenizer, layout)
    with nullcontext() if has_weights else registry.trusting(trust):
        recipe = read_recipe(folder / RECIPE)
        process = dd.build("processes", recipe.process, context, "process").to(device)
    # before the comparison: it may add padding, which is not a state
    special = (
        add_special(tokenizer, recipe.data.corpus)
        if layout is None
        else special_ids(tokenizer, layout)
    )
    dd.check_vocabulary(
        process, tokenizer.get_vocab(), pad=special.pad, bos=special.bos, eos=special.eos
    )
    template = template_of(folder, layout)
    files = ModelFiles(
        process=process,
        tokenizer=with_template(tokenizer, template) if template else tokenizer,
        special=special,
        rows=_rows(recipe, layout),
        name=str(source),
        precision=precision,
        clusters=context.saved_clusters(),
        plugins=plugins(recipe),
        recipe=recipe,
        layout=layout,
        content=content_of(folder),
    )

    def load() -> LoadedModel:
        with nullcontext() if has_weights else registry.trusting(trust):
            model = load_network(folder, recipe, ModelContext(context, process)).to(device).eval()
        if precision == "float32":
            model.float()  # the file may hold bfloat16, in which products would be taken too
        for name in ("vocab_size", "num_states"):
            if getattr(model, name, getattr(process, name)) != getattr(process, name):
                raise ValueError(
                    f"{folder}: the network has {name}={getattr(model, name)}, the process "
                    f"{getattr(process, name)}: files of different runs"
                )
        return LoadedModel.of(
            files,
            model=model,
            denoiser=model if precision == "float32" else as_function(model, half=True),
            token_parameterization=recipe.objective().parameterization,
            length=recipe.data.length,
            pace=recipe.order(),
            sha256=hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest(),
        )

    return FoundModel(files, load)


def template_of(folder: Path, layout: Layout | None) -> str:
    """Return the chat template of published weights; empty for none."""
    if layout is not None:
        return layout.template
    path = folder / TEMPLATE
    return path.read_text(encoding="utf-8") if path.exists() else ""


def content_of(folder: Path) -> str:
    """Return the fingerprint of the data of published weights; empty if it is not known."""
    path = folder / CONTENT
    return json.loads(path.read_text(encoding="utf-8"))["content"] if path.exists() else ""


def layout_of(folder: Path) -> Layout | None:
    """Return the layout of the data of published weights; None for text."""
    path = folder / SYMBOLS
    return Layout.read(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None


def _rows(recipe: Recipe, layout: Layout | None) -> RowLayout:
    """Return the layout of the rows that a recipe trains on."""
    if layout is not None and not layout.ends:
        return "exact"
    if recipe.data.wrap:
        return "wrapped"
    return "packed" if recipe.data.packed else "padded"


def load_network(folder: Path, recipe: Recipe, known: ModelContext) -> nn.Module:
    """Load the network of a recipe with the weights of a folder: by its class's method, or built
    anew and filled.

    Raises:
        ValueError: weights that do not fit, each by name.
    """
    target = registry.find("backbones", recipe.model["kind"])
    cls = target if isinstance(target, type) else get_type_hints(target).get("return")
    if isinstance(cls, type) and issubclass(cls, Pretrained):
        return cls.from_pretrained(folder)
    model = dd.build("backbones", recipe.network, known, "model")
    fill(model, folder / "model.safetensors")
    return model


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """Options for loading a model."""

    family: str | None = None
    """Format of a third-party model, a name in ddlib_models.hub; by default detected from its
    files.
    """
    mask_token: str | None = None
    """Mask token of a third-party model, or its id if no token is spelled so; by default detected
    from its files.
    """
    block_size: int | None = None
    """Positions of a block in the training of a third-party model, which determines its pace; 0:
    full attention; by default detected from its files."""
    revision: str | None = None
    """Branch, tag or commit of a repository on the hub."""
    trust: tuple[str, ...] = ()
    """Modules that third-party weights may import parts from, package.module; or a model's name, to
    run its code.
    """

    def __post_init__(self) -> None:
        at_least(0, block_size=self.block_size or 0)

    def open(self, source: str, device: str | torch.device, precision: Precision) -> LoadedModel:
        """Open the model; arguments as in ``open_saved``."""
        return self.find(source, device, precision).load()

    def find(self, source: str, device: str | torch.device, precision: Precision) -> FoundModel:
        """Find the model; arguments as in ``find_saved``."""
        return find_saved(source, device, precision, **asdict(self))

    def options_of_results(self) -> dict[str, Any]:
        """Return the options that affect results, by name, without ``trust``."""
        return {
            name: value
            for name, value in asdict(self).items()
            if name != "trust" and value is not None
        }

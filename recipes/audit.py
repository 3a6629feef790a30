"""Audit of a trained model: estimators of its likelihood, and which of them are likelihoods.

    python -m recipes.audit runs/owt/hdlm              # all estimators on 8 held-out sequences
    python -m recipes.audit runs/owt/hdlm --only NELBO chain --sequences 64 --draws 64
    python -m recipes.audit runs/owt/mdlm --length 64          # fewer network calls along orders

Prints a line for each estimator: nats per token on the same held-out sequences, their standard
error, network calls per sequence, the difference from the chain of a fixed order, and the verdict
of Kraft's sum on a small copy of the process under random networks: exact (always 1), bound (at
most 1) or neither (above 1 for some network). What the process or its pace does not support is
listed with the reason. Writes audit.json into the folder of the run.
"""

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
import tyro
from jaxtyping import Bool, Int64
from rich.console import Console
from rich.table import Table
from torch import Tensor

import ddlib as dd
from recipes.config import at_least
from recipes.console import check_file, command, make_console, plain_errors
from recipes.data import Batch, Prepared, examples, wrap
from recipes.data.lengths import check_lengths
from recipes.engine.provenance import provenance
from recipes.engine.validation import NOISE, WINDOWS, check_sequences
from recipes.estimators import (
    ESTIMATORS,
    FIXED,
    Estimator,
    Model,
    kraft_sums,
    reason_against,
    small_model,
    verdict,
)
from recipes.evaluation.report import check_model, result_path, value_and_error, write
from recipes.metrics.bound import by_length
from recipes.metrics.conditioned import takes_labels, with_label
from recipes.model_io import LoadedModel, LoadOptions, check_labels, measured_length, open_held_out

RESULT = "audit.json"


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of ``python -m recipes.audit``."""

    run: tyro.conf.Positional[str]
    """Folder of a run or of weights, or owner/name on the Hugging Face hub."""
    only: tuple[str, ...] = ()
    """Parts of names of the estimators, beside the chain of a fixed order; by default all."""
    sequences: int = 8
    """Number of held-out sequences."""
    draws: int = 16
    """Draws of times and noise for each sequence."""
    length: int | None = None
    """Tokens of a sequence; as in training by default, and at most 512 for a third-party model."""
    batch: int = 8
    """Sequences per network call."""
    seed: int = NOISE
    """Seed of times and noise."""
    data: Path | None = None
    """Folder of prepared data; by default that of the run."""
    reading: Annotated[LoadOptions, tyro.conf.arg(name="")] = field(default_factory=LoadOptions)
    out: Path | None = None
    """File for the result; by default audit.json in the run's folder, or audit-NAME.json here."""

    def __post_init__(self) -> None:
        length = 1 if self.length is None else self.length
        at_least(1, draws=self.draws, batch=self.batch, length=length)
        at_least(2, sequences=self.sequences)  # one sequence has no standard error
        at_least(0, seed=self.seed)
        for part in self.only:
            if not any(part in each.name for each in ESTIMATORS):
                names = ", ".join(repr(each.name) for each in ESTIMATORS)
                raise ValueError(
                    f"only={part!r}: must be a part of the name of an estimator: {names}"
                )

    @property
    def path(self) -> Path:
        """Path of the result."""
        return result_path(RESULT, self.run, self.out)

    @property
    def estimators(self) -> list[Estimator]:
        """The selected estimators, that of the fixed order first."""
        chosen = [
            each
            for each in ESTIMATORS
            if not self.only or any(part in each.name for part in self.only)
        ]
        fixed = [each for each in ESTIMATORS if each.name == FIXED]
        return fixed + [each for each in chosen if each.name != FIXED]


class HeldOutBatch(NamedTuple):
    """Held-out sequences of one shape and label, with the model that they are given to."""

    model: Model
    x: Int64[Tensor, "B L"]
    free: Bool[Tensor, "B L"]
    """False at padding and at a given beginning."""
    index: Int64[Tensor, "B"]


def rows_of(
    saved: LoadedModel, data: Prepared, length: int, options: Options
) -> Iterator[HeldOutBatch]:
    """Yield the first held-out sequences, in batches of rows of one length and label.

    Padding is given, to all estimators alike; rows of other models have no padding.
    """
    count = options.sequences
    free_rows = saved.rows == "free"
    stream = examples(
        data.validation,
        length=length,
        pad_id=data.fill_id,
        batch_size=options.batch,
        seed=WINDOWS,
        threads=0,
    )
    with closing(stream):
        for batch in islice(stream, -(-count // options.batch)):
            parts = (
                [batch]
                if saved.rows == "padded"
                else by_length(batch, saved.pace.block or 1, given=free_rows)
            )
            for part in parts:
                wanted = part.index < count
                if bool(wanted.any()):
                    yield from _by_label(saved, part, wanted)


def _by_label(
    saved: LoadedModel, batch: Batch, wanted: Bool[Tensor, "B"]
) -> Iterator[HeldOutBatch]:
    conditional = batch.labels is not None and takes_labels(saved.model)
    labels = batch.labels if conditional else torch.zeros_like(batch.index)
    for label in labels[wanted].unique().tolist():
        rows = wanted & (labels == label)
        network = with_label(saved.denoiser, label) if conditional else saved.denoiser
        model = Model(saved.process, network, saved.parameterization, saved.pace)
        device = saved.process.device
        yield HeldOutBatch(
            model,
            batch.x[rows].to(device),
            (batch.mask & batch.free)[rows].to(device),
            batch.index[rows].to(device),
        )


def measure(
    estimator: Estimator, rows: Sequence[HeldOutBatch], options: Options
) -> tuple[Tensor, int]:
    """Return the nats of every sequence, a column per draw, and the calls of a sequence."""
    draws = options.draws if estimator.random else 1
    nats = []
    most = 0
    for model, x, free, index in rows:
        drawn = [
            estimator.draw(model, x, free, dd.KeyedGenerator(options.seed, number, index))
            for number in range(draws)
        ]
        nats.append(torch.stack([each.nats for each in drawn], 1).cpu())
        most = max(most, sum(each.calls for each in drawn))
    return torch.cat(nats), most


def judge(estimator: Estimator, model: Model) -> dict[str, Any]:
    """Return the verdict of Kraft's sum on a small copy of the model, its extremes and the
    space.
    """
    try:
        small, length = small_model(model)
    except (TypeError, ValueError) as error:
        return {"verdict": "not judged", "reason": str(error)}
    reason = reason_against(estimator, small, length)
    if reason:
        return {"verdict": "not judged", "reason": reason}
    sums = kraft_sums(estimator, small, length, seeds=1)
    space = {
        "process": repr(small.process),
        "length": length,
        "networks": len(sums),
        "pace": repr(small.pace),
    }
    return {"verdict": verdict(sums), "smallest": min(sums), "largest": max(sums), "space": space}


def audit(options: Options, console: Console) -> dict[str, Any]:
    """Evaluate every estimator that supports the model; write and return the result.

    Raises:
        ValueError: before anything is measured: no data, a length that the model does not support,
            a model that reads the prompt separately, or a file with the result of another model.
    """
    check_file("out", options.path)
    check_model("out", options.path, options.run)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    saved = options.reading.open(options.run, device, "float32")
    if saved.leads:
        raise ValueError(
            f"run={options.run}: encodes the prompt separately, which no estimator of the audit "
            "supports"
        )
    length = measured_length(saved, options.length, saved.pace.block or 1)
    data = open_held_out(saved, options.data)
    check_labels(saved, data)
    if saved.rows == "wrapped":
        data = wrap(data, length)
    check_lengths(data, length, packed=True)
    check_sequences("sequences", options.sequences, data, 1)
    rows = list(rows_of(saved, data, length, options))
    model = Model(saved.process, saved.denoiser, saved.parameterization, saved.pace)
    tokens = torch.cat([each.free.sum(1) for each in rows]).cpu()
    result: dict[str, Any] = {
        "protocol": {
            "run": options.run,
            "checkpoint_sha256": saved.sha256,
            "sequences": len(tokens),
            "tokens": int(tokens.sum()),
            "length": length,
            "draws": options.draws,
            "seed": options.seed,
            "pace": repr(saved.pace),
            "parameterization": saved.token_parameterization,
            "padding": "given" if saved.rows == "padded" else "none",
            "beginning": "given" if saved.rows == "free" else "counted",
            "error": "standard error over sequences, which includes that of the remaining noise",
            "times": "independent",
            "data": data.manifest["inputs"],
            **options.reading.options_of_results(),
        },
        "estimators": [],
        "refused": {},
        "provenance": provenance(saved.plugins),
    }
    fixed: Tensor | None = None
    for estimator in options.estimators:
        reason = next(
            (
                entry
                for each in rows
                if (entry := reason_against(estimator, model, each.x.shape[1]))
            ),
            "",
        )
        if reason:
            result["refused"][estimator.name] = reason
            continue
        nats, calls = measure(estimator, rows, options)
        if estimator.name == FIXED:
            fixed = nats
        entry: dict[str, Any] = {"name": estimator.name, "source": estimator.source, "calls": calls}
        entry["nats_per_token"] = value_and_error(dd.Measure.ratio(nats, tokens, "nats/token"))
        entry["less_chain"] = None
        if fixed is not None and estimator.name != FIXED:
            entry["less_chain"] = value_and_error(
                dd.Measure.ratio(nats - fixed, tokens, "nats/token")
            )
        entry |= judge(estimator, model)
        result["estimators"].append(entry)
        write(options.path, result)
        console.print(
            f"{estimator.name}: {entry['nats_per_token']['value']:.4f}",
            markup=False,
            highlight=False,
        )
    write(options.path, result)
    show(result, console)
    console.print(f"written to {options.path}", markup=False, soft_wrap=True)
    return result


def show(result: dict[str, Any], console: Console) -> None:
    """Print the table, the space of the verdicts and the reasons of what was refused."""
    setup = result["protocol"]
    table = Table(title=f"{setup['run']}  {setup['checkpoint_sha256'][:12]}", title_justify="left")
    for heading in (
        "estimator",
        "nats/token",
        "±",
        "less chain",
        "± ",
        "calls",
        "verdict",
        "Kraft",
    ):
        table.add_column(
            heading, justify="left" if heading in ("estimator", "verdict") else "right"
        )
    for row in result["estimators"]:
        largest = f"{row['largest']:.4f}" if "largest" in row else ""
        table.add_row(
            row["name"],
            *_numbers(row["nats_per_token"], ".4f"),
            *_numbers(row["less_chain"], "+.4f"),
            str(row["calls"]),
            row["verdict"],
            largest,
        )
    console.print(table)
    console.print(
        f"{setup['sequences']} sequences of {setup['length']}, {setup['tokens']} tokens, "
        f"{setup['draws']} draws, "
        f"padding: {setup['padding']}; calls: of the network, for each sequence and all draws; "
        "less chain: difference "
        f"from '{FIXED}' on the same sequences; Kraft: the largest sum, above 1 for a number that "
        "bounds nothing",
        markup=False,
    )
    unjudged = {
        estimator["name"]: estimator["reason"]
        for estimator in result["estimators"]
        if "reason" in estimator
    }
    for kind, reasons in (("refused", result["refused"]), ("not judged", unjudged)):
        for name, reason in reasons.items():
            console.print(f"{kind}: {name}: {reason}", markup=False, soft_wrap=True)


def _numbers(found: dict[str, float | None] | None, form: str) -> tuple[str, str]:
    if found is None:
        return "", ""
    error = "" if found["error"] is None else f"{found['error']:.4f}"
    return f"{found['value']:{form}}", error


def main(arguments: Sequence[str] | None = None) -> None:
    """Audit the run of the command line."""
    with plain_errors():
        options = tyro.cli(
            Options, args=arguments, prog="python -m recipes.audit", description=__doc__
        )
        audit(options, make_console())


if __name__ == "__main__":
    command(main)

"""Evaluation of a trained model.

Its bound on held-out text, and the perplexity and entropy of its samples.

    python -m recipes.evaluate runs/owt/hdlm                             # scored by gpt2-large
    # a local causal language model
    python -m recipes.evaluate runs/owt/hdlm --scorer models/gpt2-large
    # in discrete time, as D3PM
    python -m recipes.evaluate runs/owt/hdlm --scorer none --bound-steps 1000
    python -m recipes.evaluate runs/owt/hdlm --scorer none --likelihood confidence
    python -m recipes.evaluate runs/owt/mdlm-block16 --scorer none --pace blocks:size=32
    torchrun --nproc-per-node 8 -m recipes.evaluate runs/owt/hdlm

Prints a table and writes evaluation.json, with all settings that determine the numbers, into the
folder of the run. The numbers do not depend on batch size or number of processes, up to rounding.
``--pace`` selects another pace.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any

import tyro

import ddlib as dd
from ddlib.paces import Pace
from ddlib.times import TimeDensity
from recipes.config import IN_STRATA, UNIFORM, at_least, at_once, check_times, time_density
from recipes.console import check_file, command, make_console, plain_errors
from recipes.data import Prepared, wrap
from recipes.data.lengths import check_lengths
from recipes.engine.parallel import World, join
from recipes.engine.provenance import provenance
from recipes.engine.validation import (
    NOISE,
    WINDOWS,
    check_pace,
    check_sequences,
    coupling_of,
    quietest,
    references,
    validate,
)
from recipes.evaluation.by_field import measure_fields
from recipes.evaluation.exact import check_order, exact
from recipes.evaluation.generative import NONE, generate_and_judge, judge, warn_missing
from recipes.evaluation.report import check_model, result_path, show, write
from recipes.evaluation.samples import draw_samples, measure, metrics_of
from recipes.generation.sampling import Sampling
from recipes.metrics import Estimate, Terms, by_label, estimates
from recipes.metrics.conditioned import takes_labels
from recipes.model_io import (
    LoadedModel,
    LoadOptions,
    Precision,
    check_labels,
    make_order,
    measured_length,
    one_of,
    open_held_out,
)
from recipes.model_io import check_order as check_exact

RESULT = "evaluation.json"
METHODS = {
    "stratified": "of stratified times, from differences between neighbours",
    "independent": "as for independent draws",
}
"""Meaning of ``Measure.method``, for readers of the result."""
TOKENS_PER_BYTE = (
    "all validation documents, whole",
    "all validation rows, with the two tokens that each adds",
)
"""Text that bits per byte refer to: without and with rows cut from the concatenation of
documents.
"""


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of ``python -m recipes.evaluate``."""

    run: tyro.conf.Positional[str | None] = None
    """Folder of a run or of weights, or owner/name on the Hugging Face hub, also of a third-party
    denoiser.
    """
    model: str | None = None
    """The same as a named option, in place of the positional one."""
    length: int | None = None
    """Tokens of a sequence; as in training by default, and at most 512 for a third-party model."""
    sequences: int | None = None
    """Validation sequences; all by default."""
    replicates: int = 4
    """Passes over them, each with new times and noise."""
    bound_steps: int | None = None
    """Measure the bound of this many even steps, as T of D3PM, instead of that of
    continuous time.
    """
    bound_levels: str | None = None
    """How the noise of a sequence is drawn: "independent" for each token, or "balanced", which
    keeps the mean of the bound and lowers its variance; by default balanced, where the process
    supports it."""
    times: str = "optimal"
    """Density of the times: optimal, with the smallest error; uniform, beta:a=2,b=1,
    bell:mean=0,spread=1.
    """
    likelihood: str | None = None
    """An order, such as confidence or left_to_right: adds the exact likelihood by it, one network
    call per edge.
    """
    likelihood_steps: int | None = None
    """Maximum number of calls, several edges in each; by default one per edge."""
    likelihood_group: int | None = None
    """Jumps (for masks: positions) in each network call. Also measures the costs of drawing them in
    parallel and of the order, by up to two more calls per jump.
    """
    scorer: str = "gpt2-large"
    """Causal language model for generative perplexity: owner/name on the hub, or a folder; "none"
    to leave it out.
    """
    scorer_bos: bool = False
    """Put the scorer's beginning of text before each sample, so that the first token is predicted
    too.
    """
    metrics: str | None = None
    """Metrics of samples that are not text: pictures, molecules, music or others of
    ``ddlib.metrics``; by default those of the data's source, "none" for none."""
    samples: int = 256
    """Number of unconditional samples for the scorer or the metrics."""
    sampling: Annotated[Sampling, tyro.conf.arg(name="")] = field(
        default_factory=lambda: Sampling(steps=512)
    )
    precision: Precision = "float32"
    """Precision of the network; bounds are summed and tokens drawn in float64."""
    batch: int = 32
    """Sequences per call on one process; affects only memory and speed."""
    seed: int = NOISE
    """Seed of times and noise; the first draw of the default is that of validation in training."""
    data: Path | None = None
    """Prepared text; by default that of the recipe."""
    reading: Annotated[LoadOptions, tyro.conf.arg(name="")] = field(default_factory=LoadOptions)
    out: Path | None = None
    """File for the result; by default evaluation.json in the folder of the run, or
    evaluation-NAME.json here for a
    model without one. A file with the result of another model is an error."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "run", one_of(self.run, self.model))
        object.__setattr__(self, "model", None)  # so that replace() gets one of the two
        at_least(1, replicates=self.replicates, batch=self.batch)
        at_least(
            1 if self.scorer == NONE else 2, samples=self.samples
        )  # one sample has no standard error
        limits = {"sequences": self.sequences, "likelihood_steps": self.likelihood_steps}
        limits |= {
            "likelihood_group": self.likelihood_group,
            "bound_steps": self.bound_steps,
            "length": self.length,
        }
        at_least(1, **{name: 1 if value is None else value for name, value in limits.items()})
        at_least(0, seed=self.seed)
        check_times("times", self.times)
        check_order(self.likelihood, self.likelihood_steps, self.likelihood_group)


def length_of(saved: LoadedModel, options: Options) -> int:
    """Return the length of a sequence in tokens."""
    return measured_length(saved, options.length, options.sampling.pace_of(saved).block or 1)


def pace_of(saved: LoadedModel, options: Options) -> Pace:
    """Return the pace of the bound, which is that of the samples."""
    return options.sampling.order(saved, length_of(saved, options))


def density_of(saved: LoadedModel, options: Options) -> TimeDensity | None:
    """Return the density of the times within a part of the pace; None for the uniform one."""
    return time_density(
        options.times, saved.process, length_of(saved, options), IN_STRATA, pace_of(saved, options)
    )


def bounds(
    saved: LoadedModel, data: Prepared, options: Options, world: World, density: TimeDensity | None
) -> list[Terms]:
    """Return the terms of the bound of every sequence, replicate by replicate.

    The same in every process.
    """
    count = min(options.sequences or len(data.validation), len(data.validation))
    return [
        validate(
            saved.process,
            saved.denoiser,
            data,
            length_of(saved, options),
            world,
            sequences=count,
            batch=min(options.batch, -(-count // world.size)),
            seed=options.seed,
            replicate=number,
            density=density,
            parameterization=saved.parameterization,
            steps=options.bound_steps,
            levels=options.bound_levels,
            pace=pace_of(saved, options),
            alone=saved.rows == "free",
            leads=saved.leads,
            packed=saved.rows == "packed",
        )
        for number in range(options.replicates)
    ]


def validation(
    saved: LoadedModel, data: Prepared, replicates: Sequence[Terms], options: Options
) -> dict[str, Any] | None:
    """Return the part of an evaluation that training also measured: its first sequences with the
    first draw.

    None if training used other noise or times, more sequences, another text or another bound, or is
    unknown.
    """
    if not saved.validated or length_of(saved, options) != saved.length:
        return None
    trained = saved.recipe.output
    count = min(trained.validate_sequences, len(data.validation))
    pace = pace_of(saved, options)
    usual = quietest(saved.process, pace, saved.length)
    if options.bound_steps is not None or options.bound_levels not in (None, usual):
        return None
    if repr(pace) != repr(saved.pace):
        return None
    other = (
        options.seed != NOISE or options.data is not None or options.times != trained.validate_times
    )
    if other or count > len(replicates[0].index):
        return None
    terms = replicates[0].first(count)
    return asdict(Estimate.of(terms.per_token, [])) | {
        "sequences": len(terms.index),
        "draws": terms.draws,
    }


def evaluate(options: Options, world: World) -> dict[str, Any]:
    """Return all results in the format of the result file.

    The same in every process except for the samples.

    Without a scorer that can be loaded there is the bound alone, and a warning before it is
    measured.

    Raises:
        ValueError: before anything is measured: the text is of another tokenizer, is a single
            sequence, or has no likelihood by the requested order.
    """
    found = options.reading.find(options.run, world.device, options.precision)
    data = open_held_out(found.files, options.data)
    text = data.is_text
    metrics = metrics_of(options.metrics, data)
    if not text and options.scorer not in (Options.scorer, NONE):
        raise ValueError(
            f"scorer={options.scorer!r}: a language model scores text, and the data is not text"
        )
    if options.likelihood is not None:
        check_exact(found.files, options.likelihood)
    if metrics is not None or (text and options.scorer != NONE):
        options.sampling.check_files(found.files)
    saved = found.load()
    check_labels(saved, data)
    length = length_of(saved, options)
    is_free = saved.rows == "free"
    if cut := saved.rows == "wrapped":
        data = wrap(data, length)
    check_lengths(data, length, packed=True)
    count = check_sequences("sequences", options.sequences, data, world.size)
    if world.first and (options.sequences or 0) > count:
        print(
            f"warning: sequences={options.sequences}: {data.folder} holds {count} for validation; "
            "all are measured",
            file=sys.stderr,
        )
    options = replace(options, sequences=count)
    pace = pace_of(saved, options)
    is_packed = saved.rows == "packed"
    check_pace(pace, length, data, is_packed)
    levels = coupling_of(saved.process, pace, length, options.bound_levels)
    group = options.likelihood_group
    order = (
        None
        if options.likelihood is None
        else make_order(saved, options.likelihood, length, group, pace)
    )
    scorer, missing = (
        judge(options.scorer, options.scorer_bos, world) if text else (None, "the data is not text")
    )
    if (scored := any(world.gather(scorer is not None))) or metrics is not None:
        options.sampling.course(saved, length)
    likely = (
        None
        if order is None
        else exact(
            saved,
            data,
            order,
            options.likelihood_steps,
            options.sequences,
            options.batch,
            world,
            length,
            group,
            pace,
        )
    )
    density = density_of(saved, options)
    replicates = bounds(saved, data, options, world, density)
    rows_at_once = min(options.batch, -(-options.sequences // world.size))
    result: dict[str, Any] = {
        "bound": {
            name: asdict(estimate)
            for name, estimate in estimates(replicates, data, int(is_free)).items()
        },
        "references": asdict(
            references(
                data,
                length,
                world,
                sequences=options.sequences,
                batch=rows_at_once,
                given=is_free,
            )
        ),
        "by_label": {
            name: asdict(estimate) for name, estimate in by_label(replicates, data).items()
        },
        "by_field": measure_fields(
            replicates, data, length, world, options.sequences, rows_at_once
        ),
        "likelihood": likely,
        "protocol": {
            "run": options.run,
            "checkpoint_sha256": saved.sha256,
            "ema": saved.ema,
            "sequences": len(replicates[0].index),
            "tokens": int(replicates[0].tokens.sum()),
            "replicates": options.replicates,
            "seed": options.seed,
            "length": length,
            "wrapped": cut,
            "long_documents": "cut into rows, all of them"
            if cut
            else f"one random window each, seed {WINDOWS}",
            "padding": "counted apart" if data.ends and not (cut or is_packed) else "none",
            "beginning": "given" if is_free else "counted",
            "pace": repr(pace),
            "times": (
                "one per block, sequence and replicate, evenly spread over the blocks, stratified "
                "over the corpus"
                if at_once(pace, saved.denoiser)
                else "one per sequence and replicate, stratified over the corpus"
            ),
            "steps": options.bound_steps or "continuous time",
            "levels": levels,
            "density_of_times": UNIFORM if density is None else options.times,
            "weights": "not clipped",
            "parameterization": saved.token_parameterization,
            "network_precision": saved.precision,
            **options.reading.options_of_results(),
            "vocabulary": data.fingerprint,
            "text" if text else "data": data.manifest["inputs"],
            **(
                {"bits_per_byte": f"tokens per byte are those of {TOKENS_PER_BYTE[cut]}"}
                if text
                else {}
            ),
            "shape": list(data.shape),
            "labels": "given"
            if len(data.validation.labels) and takes_labels(saved.model)
            else "not given",
            "error": "standard error over sequences, which includes that of the remaining noise",
            "method": METHODS[Terms.average(replicates).per_token.method],
            "caveat": dd.variance_caveat(
                saved.process, density, length, levels=levels, steps=options.bound_steps, pace=pace
            ),
            "noise": "standard error over replicates, of times and noise only",
        },
        "validation": validation(saved, data, replicates, options),
        "generative": None,
        "samples": None,
    }
    if scored or metrics is not None:
        drawn = draw_samples(
            saved,
            options.sampling,
            options.samples,
            length,
            options.batch,
            options.seed,
            world,
        )
    if metrics is not None and world.first:
        try:
            result["samples"] = measure(metrics, saved, drawn, data, options.sampling, options.seed)
        except ValueError as error:  # of these samples, as of a network that was hardly trained
            result["protocol"]["no_samples"] = warn_missing(error, "metrics of samples")
    if scored:
        try:
            result["generative"] = (
                None
                if scorer is None
                else generate_and_judge(
                    saved,
                    scorer,
                    drawn,
                    options.sampling,
                    options.seed,
                    options.scorer_bos,
                    options.batch,
                )
            )
        except ValueError as error:
            missing = warn_missing(error)
    result["protocol"]["no_generative"] = missing
    return result | {"provenance": provenance(saved.plugins)}


def main(arguments: Sequence[str] | None = None) -> None:
    with plain_errors(), ExitStack() as stack:
        options = tyro.cli(
            Options, args=arguments, prog="python -m recipes.evaluate", description=__doc__
        )
        world = stack.enter_context(join())
        path = result_path(RESULT, options.run, options.out)
        if world.first:
            check_file("out", path)
            check_model("out", path, options.run)
        result = evaluate(options, world)
        if world.first:
            write(path, result)
            show(result, console := make_console())
            console.print(f"written to {path}")


if __name__ == "__main__":
    command(main)

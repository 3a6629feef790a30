"""Samples of an evaluation, and the metrics of those that are not text."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

import ddlib as dd
from ddlib import registry
from recipes.data import Prepared
from recipes.engine.parallel import World
from recipes.evaluation.generative import NONE
from recipes.generation.given import Conditions
from recipes.generation.prompt import row
from recipes.generation.samples import batched, draw_batch, protocol, to_draw
from recipes.generation.sampling import Sampling
from recipes.model_io import LoadedModel


def draw_samples(
    saved: LoadedModel,
    sampling: Sampling,
    count: int,
    length: int,
    batch: int,
    seed: int,
    world: World,
) -> list[list[int]]:
    """Draw tokens of unconditional samples on all processes; the same in each.

    Args:
        saved: the model.
        sampling: options of the draws.
        count: number of samples.
        length: tokens of a sample, without a beginning that the model encodes separately; of those
            of different lengths the longest.
        batch: samples drawn at a time.
        seed: seed of the noise and of the lengths.
        world: the processes.
    """
    before = len(saved.beginning) if saved.leads else 0
    start = row(saved, None, sampling.pace_of(saved), length + before)
    mine = range(count)[world.rank :: world.size]
    samples = to_draw(saved, [start], mine, seed, saved.draws_lengths, Conditions.of(saved.layout))
    for places in batched(saved, samples, sampling, batch):
        draw_batch(saved, [samples[place] for place in places], sampling, seed)
    drawn = {one.number: one.tokens for one in samples}
    everything = {number: tokens for part in world.gather(drawn) for number, tokens in part.items()}
    return [everything[number] for number in range(count)]


def metrics_of(name: str | None, data: Prepared) -> Any | None:
    """Return the metrics of samples that are not text.

    None for text, and where none are requested or registered.

    Args:
        name: of ``ddlib.metrics``; None for those with the name of the data's source, "none" for
            none.
        data: the data.

    Raises:
        ValueError: metrics of text, an unknown name, data that the metrics do not support.
    """
    if name is not None and name != NONE and data.layout is None:
        raise ValueError(
            f"metrics={name!r}: the data is text, whose samples are measured by --scorer"
        )
    if data.layout is None or name == NONE:
        return None
    if name is None and data.layout.kind not in registry.available("metrics"):
        return None
    metric = dd.build("metrics", name or data.layout.kind, place="metrics")
    metric.check(data)
    return metric


def plain_numbers(kind: str, measured: Mapping[str, Any]) -> dict[str, Any]:
    """Return metrics with numbers of numpy and torch as those of Python.

    Raises:
        TypeError: a value that JSON cannot hold, such as an array of several numbers.
    """
    plain = {}
    for name, value in measured.items():
        single = (
            isinstance(value, np.generic | np.ndarray | torch.Tensor) and np.ravel(value).size == 1
        )
        plain[name] = value.item() if single else value
        try:
            json.dumps(plain[name])
        except TypeError as error:
            raise TypeError(
                f"measure of {kind} returned {name!r} of type {type(value).__name__}, must be a "
                f"number, or a list or dictionary of numbers: {error}"
            ) from error
    return plain


def measure(
    metrics: Any,
    saved: LoadedModel,
    drawn: Sequence[Sequence[int]],
    data: Prepared,
    sampling: Sampling,
    seed: int,
) -> dict[str, Any]:
    """Return the metrics of samples, and the method.

    Args:
        metrics: of ``metrics_of``.
        saved: the model.
        drawn: tokens of each sample.
        data: the data that they are compared to.
        sampling: options of the draws.
        seed: seed of their noise.
    """
    labels = None if sampling.label is None else np.full(len(drawn), saved.class_of(sampling.label))
    documents = [np.array(saved.document(tokens)) for tokens in drawn]
    return {
        "metrics": plain_numbers(type(metrics).__name__, metrics.measure(documents, data, labels)),
        "samples": len(drawn),
        "protocol": protocol(saved, sampling, seed, max(map(len, drawn)))
        | {"metrics": type(metrics).__name__},
    }

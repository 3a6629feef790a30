"""Requirements of estimators: one table, whose rows return why a model does not meet them."""

from collections.abc import Callable

import ddlib as dd
from recipes.estimators.base import Estimator, Model


def _order(model: Model, length: int) -> str:
    try:
        dd.Likelihood.check(model.process, dd.samplers.LeftToRight())
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def _masks(model: Model, length: int) -> str:
    size = model.process.vocab_size
    if model.process.levels == (size, 1) and not _order(model, length):
        return ""
    return (
        f"needs a process of tokens and one mask, {model.process!r} has other states or "
        "replaces tokens"
    )


def _wrong_clusters(model: Model, length: int) -> str:
    tree = model.process.hierarchy
    if tree is not None and tree.depth == 2 and tree.levels[-1] == 1 and not tree.maps[0].plain:
        return ""
    return (
        f"needs one level of clusters with xi < 1 below one mask, {model.process!r} has no such "
        "level"
    )


def _blocks(model: Model, length: int) -> str:
    pace = model.pace
    if not (isinstance(pace, dd.paces.Together) or pace.block is not None):
        return f"needs one time for all positions, or blocks, the pace is {pace!r}"
    try:
        pace.parts(length)
    except ValueError as error:
        return str(error)
    return ""


def _whole(model: Model, length: int) -> str:
    if model.pace.block is None:
        return ""
    return f"needs positions that are noised together, the pace is {model.pace!r}"


def _density(model: Model, length: int) -> str:
    try:
        model.process.time_density(length)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


NEEDS: dict[str, Callable[[Model, int], str]] = {
    "blocks": _blocks,
    "order": _order,
    "masks": _masks,
    "wrong clusters": _wrong_clusters,
    "whole sequences": _whole,
    "density": _density,
}
"""Reason why a model does not meet it, or "", by the name of the requirement."""


def reason_against(estimator: Estimator, model: Model, length: int) -> str:
    """Return why the estimator cannot be computed for this model at this length, or ""."""
    reasons = (NEEDS[need](model, length) for need in ("blocks", *estimator.needs))
    return next((reason for reason in reasons if reason), "")

"""Samplers by their short strings, for a model: values of its data, such as the shape of a picture,
are filled in.
"""

from contextlib import suppress

import ddlib as dd
from ddlib.paces import Pace
from ddlib.samplers import Sampler
from recipes.model_io.base import LoadedModel, ModelFiles


class SamplerContext:
    """Values that a sampler and the parts in it take from the data of a model by name, see
    ``ddlib.build``.

    Args:
        saved: the model.
    """

    def __init__(self, saved: ModelFiles) -> None:
        self._saved = saved

    def shape(self) -> list[int]:
        """Return the shape of a sequence, such as [28, 28].

        Raises:
            ValueError: sequences without a shape.
        """
        layout = self._saved.layout
        if layout is None or not layout.shape:
            raise ValueError(f"the sequences of {self._saved.name} have no shape")
        return list(layout.shape)


class _UnknownValueError(Exception):
    """A value of the data is required, and there is no model yet."""


class _Later(SamplerContext):
    def __init__(self) -> None:
        pass

    def shape(self) -> list[int]:
        raise _UnknownValueError


def make_sampler(saved: ModelFiles, text: str, place: str = "sampler") -> Sampler:
    """Build a sampler for a model from its short string.

    Args:
        saved: the model.
        text: the short string.
        place: name of the option for messages.

    Raises:
        ValueError: no such sampler, invalid values, or a value that the data of the model do not
            have.
    """
    return dd.build("samplers", text, SamplerContext(saved), place)


def check_sampler(text: str, place: str = "sampler") -> None:
    """Check a short string before there is a model, but for what depends on its data.

    Raises:
        ValueError: as ``make_sampler``.
    """
    with suppress(_UnknownValueError):
        dd.build("samplers", text, _Later(), place)


def check_order(saved: ModelFiles, name: str) -> Sampler:
    """Build an order from its short string, without the checks that depend on the network.

    Raises:
        ValueError: no such sampler, or it defines no exact likelihood, with the reason.
    """
    order = make_sampler(saved, name, "likelihood")
    try:
        dd.Likelihood.check(saved.process, order)
    except (TypeError, ValueError) as error:
        raise ValueError(f"likelihood={name!r}: {error}") from error
    return order


def make_order(
    saved: LoadedModel,
    name: str,
    length: int | None = None,
    group: int | None = None,
    pace: Pace | None = None,
) -> Sampler:
    """Build the order of an exact likelihood from its short string.

    Args:
        saved: the model.
        name: short string of the order.
        length: tokens of a sequence; by default the model's.
        group: edges per call.
        pace: the pace of the model.

    Raises:
        ValueError: no such sampler; it defines no exact likelihood, with the reason; or it does not
            support the length of the sequences or blocks, or the group is longer.
    """
    order = check_order(saved, name)
    blocks = blocks_of(saved, pace)
    size = length or saved.length
    size = size if blocks is None else blocks.block or size
    try:
        if _of_one_length(saved):
            order.check_length(size)
    except (TypeError, ValueError) as error:
        raise ValueError(f"likelihood={name!r}: {error}") from error
    if group is not None and group > size:
        raise ValueError(
            f"likelihood_group={group}: must be at most {size}, the tokens that one call may draw"
        )
    return order


def _of_one_length(saved: LoadedModel) -> bool:
    """Return whether all rows have the same length."""
    fixed = saved.rows == "exact" and saved.layout is not None and saved.layout.fixed is not None
    return saved.rows in ("padded", "wrapped") or fixed


def blocks_of(saved: LoadedModel, pace: Pace | None) -> Pace | None:
    """Return the blocks by which a likelihood is computed: those of the pace, if all sequences
    consist of them.
    """
    return (
        pace
        if pace is not None and pace.block and _of_one_length(saved) and not saved.leads
        else None
    )

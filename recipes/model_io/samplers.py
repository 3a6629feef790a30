"""Samplers by their short strings, for a model: values of its data, such as the shape of a picture,
are filled in.
"""

from contextlib import suppress

import ddlib as dd
from ddlib.samplers import Sampler
from recipes.model_io.base import LoadedModel


class SamplerContext:
    """Values that a sampler and the parts in it take from the data of a model by name, see
    ``ddlib.build``.

    Args:
        saved: the model.
    """

    def __init__(self, saved: LoadedModel) -> None:
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


def make_sampler(saved: LoadedModel, text: str, place: str = "sampler") -> Sampler:
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

"""Uniform random numbers keyed by example, independent of batch size and device count.

``rand`` draws float64 uniforms from a ``torch.Generator``, from torch's global state, or from a
``KeyedGenerator``, whose numbers are a function of (seed, step, global example index) alone. With a
``KeyedGenerator`` an example has the same time and the same noise for every batch size, number of
ranks, gradient accumulation and resume point.
"""

import copy
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Self

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ddlib.utils import philox
from ddlib.utils.philox import LOW
from ddlib.utils.triton_kernels import usable
from ddlib.utils.validation import check_count, check_shape, due, require

_SPLIT = 0x73706C74  # separates the keys of copies from the numbers of the original
_SCRAMBLE = 0x73637262  # separates the numbers of a scrambling


def _keyed_on(device: torch.device) -> ModuleType:
    """Return the implementation of keyed numbers for a device."""
    # a compiler fuses the operations in torch
    if usable(device) and not torch.compiler.is_compiling():
        from ddlib.utils import philox_kernel  # imports Triton

        return philox_kernel
    return philox


class KeyedGenerator:
    """Uniform numbers keyed by (seed, step, global example index).

    Row ``b`` of every draw depends on ``(seed, step, index[b])`` and on the number of earlier draws
    from this object, and on nothing else. Construct one per step; draw the times first, then the
    noise. A second object with the same seed, step and index repeats the numbers of the first; a
    second call of one object does not.

    The index is a position in the order of training or evaluation, not the number of an example in
    its data set: ``step * batch + arange(batch)`` for the batches of one process.
    ``ddlib.sample_times`` stratifies times over consecutive positions. Arbitrary numbers of a data
    set give no stratification.

    Args:
        seed: seed of the run, >= 0.
        step: step of the optimiser (or the number of the evaluation pass), >= 0.
        index: (B,) int64, position of each example in the global data order, >= 0.
        scattered: whether positions may lie far apart or occur twice by intention, e.g. in a batch
            of the rows of one length out of a long order. ``ddlib.sample_times`` then issues no
            warning.

    Raises:
        TypeError, ValueError: seed or step negative or not int; index not int64 (B,) or negative.

    Example:
        >>> whole = KeyedGenerator(seed=0, step=7, index=torch.arange(4))
        >>> half = KeyedGenerator(seed=0, step=7, index=torch.arange(2, 4))
        >>> bool((whole.rand((4, 3))[2:] == half.rand((2, 3))).all())
        True
    """

    def __init__(
        self, seed: int, step: int, index: Int64[Tensor, "B"], *, scattered: bool = False
    ) -> None:
        for name, value in (("seed", seed), ("step", step)):
            check_count(name, value, 0)
            require(value < 2**63, f"{name} is {value}, must be below 2^63")
        if not isinstance(index, Tensor) or index.dtype != torch.int64:
            raise TypeError("index must be a torch.int64 tensor of global example positions")
        check_shape("index", index, (None,), "(B,)")
        if due(index) and index.numel():
            require(int(index.min()) >= 0, f"index holds {int(index.min())}, must be >= 0")
        self.seed = seed
        self.step = step
        self.index = index
        self.scattered = scattered
        counter = (step & LOW, step >> 32, 0, 0)
        self._key = list(philox.philox(counter, (seed & LOW, seed >> 32))[:2])
        self._draws = self._scramblings = 0

    def rand(self, shape: Sequence[int]) -> Float64[Tensor, "..."]:
        """Draw float64 uniforms in [0, 1) with 53 random bits; ``shape[0]`` must be B. Every call
        is a new draw.
        """
        rows = self.index.shape[0]
        require(
            len(shape) > 0 and shape[0] == rows,
            f"shape is {tuple(shape)}, must start with {rows}, the number of examples of this "
            "generator",
        )
        draw = self._draws
        self._draws += 1
        keyed = _keyed_on(self.index.device)
        numbers: Tensor = keyed.uniforms(self.index, shape, draw, self._key)
        return numbers

    def scramble(self, words: Int64[Tensor, "B"], *, reverse: bool = False) -> Int64[Tensor, "B"]:
        """Scramble 32-bit words: flip each bit at random, alike for all words that agree in the
        higher bits.

        Nested uniform scrambling (Owen, 1995): each word becomes uniform. Words that share their
        first k bits still share exactly these after the scrambling. The result is a function of
        (seed, step), the word and the number of earlier calls. Every call is a new scrambling.

        Args:
            words: the words.
            reverse: whether the order of the bits is reversed first. Numbers 0, 1, 2, ... then
                give the scrambled van der Corput sequence in base 2, times 2^32.
        """
        number = self._scramblings
        self._scramblings += 1
        key = (self._key[0] ^ _SCRAMBLE, self._key[1])
        keyed = _keyed_on(words.device)
        scrambled: Tensor = keyed.scramble(words, number, key, reverse)
        return scrambled

    def split(self, number: int) -> Self:
        """Return a generator for ``number`` copies of every example, the copies of the first
        example first.

        Every copy has a separate stream. It depends on the example, on the index of the copy and on
        the number of earlier draws from this object, but neither on the batch nor on ``number``.
        Every call is a new split.

        Raises:
            TypeError, ValueError: number below 1 or not int.

        Example:
            >>> noise = KeyedGenerator(seed=0, step=7, index=torch.arange(4)).split(3)
            >>> len(noise.rand((12, 5)).unique())
            60
        """
        check_count("number", number)
        index = self.index.repeat_interleave(number)
        copy_index = torch.arange(number, device=index.device).repeat(len(self.index))
        key = [
            word if isinstance(word, int) else word.repeat_interleave(number, 0)[:, 0]
            for word in self._key
        ]
        counter = (
            copy_index,
            self._draws,
            index & LOW,
            (index >> 32) & LOW,
        )
        words = _keyed_on(index.device).philox(counter, (key[0] ^ _SPLIT, key[1]))
        self._draws += 1
        copies = copy.copy(self)
        copies.index = index
        copies._draws = 0
        copies._scramblings = 0
        copies.scattered = True  # copies of an example have its position
        copies._key = [word[:, None] for word in words[:2]]
        return copies


Generator = torch.Generator | KeyedGenerator | None
"""Source of random numbers; None is torch's global state."""


def uniforms(
    shape: Sequence[int], generator: Generator, device: torch.device
) -> Iterator[Float64[Tensor, "..."]]:
    """Draw uniforms as ``rand``, one after the other without end."""
    while True:
        yield rand(shape, generator, device)


def home_of(generator: Generator) -> torch.device:
    """Return the device on which a generator draws.

    Raises:
        TypeError: not a generator.
    """
    if generator is None:
        return torch.device("cpu")
    if isinstance(generator, KeyedGenerator):
        return generator.index.device
    if not isinstance(generator, torch.Generator):
        raise TypeError(
            f"generator is {generator!r}, must be a torch.Generator, a KeyedGenerator or None"
        )
    return generator.device


def rand(
    shape: Sequence[int], generator: Generator, device: torch.device
) -> Float64[Tensor, "..."]:
    """Draw float64 uniforms in [0, 1) of ``shape`` on ``device``.

    Raises:
        TypeError: not a generator.
        ValueError: the generator is on another device type.
    """
    if generator is not None:
        home = home_of(generator)
        require(
            home.type == torch.device(device).type,
            f"generator is on {home}, must be on the device of the tokens, {device}",
        )
    if isinstance(generator, KeyedGenerator):
        return generator.rand(shape)
    return torch.rand(tuple(shape), generator=generator, device=device, dtype=torch.float64)

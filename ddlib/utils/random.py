"""Randomness that belongs to the example, not to the machine.

``rand`` draws float64 uniforms from a ``torch.Generator``, from torch's global state, or from a ``KeyedGenerator``,
whose numbers are a function of (seed, step, global example index) alone. With the latter an example meets the same
time and the same noise whatever the batch size, the number of ranks, the gradient accumulation or the resume point.
``mirrored`` pairs the rows of either.
"""

import copy
import math
from collections.abc import Callable, Sequence
from typing import Self

import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from ddlib.utils.validation import check_count, check_shape, require, visible

_LOW = 0xFFFFFFFF
_SPLIT = 0x73706C74  # keeps the keys of copies apart from the numbers of the original
_SCRAMBLE = 0x73637262  # and those of a scrambling


def philox(counter: Sequence[Tensor], key: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The Philox-4x32-10 counter-based generator: four words of counter and two of key give four random words.

    Words are 32-bit values held in int64 tensors that broadcast against each other. Same bits on every device.
    Salmon et al., "Parallel random numbers: as easy as 1, 2, 3" (SC 2011).
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        # int64 products wrap; the wrapped bits are those of the unsigned 64-bit product
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = ((p1 >> 32) & _LOW) ^ c1 ^ k0, p1 & _LOW, ((p0 >> 32) & _LOW) ^ c3 ^ k1, p0 & _LOW
        k0, k1 = (k0 + 0x9E3779B9) & _LOW, (k1 + 0xBB67AE85) & _LOW
    return c0, c1, c2, c3


class KeyedGenerator:
    """Uniform numbers keyed by (seed, step, global example index).

    Row ``b`` of everything drawn depends on ``(seed, step, index[b])`` and on how many draws came before it from this
    object, and on nothing else. Make one per step, draw the times first, then the noise. A second object with the same
    seed, step and index repeats the numbers of the first; a second call of one object does not.

    The index is a position in the order of training or evaluation, not the number of an example in its data set:
    ``step * batch + arange(batch)`` for the batches of one process. ``ddlib.sample_times`` stratifies times over
    consecutive positions, and over numbers that are drawn anywhere in a data set nothing is stratified.

    Args:
        seed: of the run, >= 0.
        step: of the optimiser (or the number of the evaluation pass), >= 0.
        index: (B,) int64, position of each example in the global data order, >= 0.
        scattered: whether positions may lie far apart or occur twice by intention, as where a batch holds the rows of
            one length out of a long order. Then ``ddlib.sample_times`` does not warn of it.

    Raises:
        TypeError, ValueError: seed or step negative or not int; index not int64 (B,) or negative.

    Example:
        >>> whole = KeyedGenerator(seed=0, step=7, index=torch.arange(4))
        >>> half = KeyedGenerator(seed=0, step=7, index=torch.arange(2, 4))
        >>> bool((whole.rand((4, 3))[2:] == half.rand((2, 3))).all())
        True
    """

    def __init__(self, seed: int, step: int, index: Int64[Tensor, "B"], *, scattered: bool = False) -> None:
        for name, value in (("seed", seed), ("step", step)):
            check_count(name, value, 0)
            require(value < 2**63, f"{name} is {value}, must be below 2^63")
        if not isinstance(index, Tensor) or index.dtype != torch.int64:
            raise TypeError("index must be a torch.int64 tensor of global example positions")
        check_shape("index", index, (None,), "(B,)")
        if visible(index) and index.numel():
            require(int(index.min()) >= 0, f"index holds {int(index.min())}, must be >= 0")
        self.seed, self.step, self.index, self.scattered = seed, step, index, scattered
        zero = torch.zeros((), dtype=torch.int64, device=index.device)
        counter = (zero + (step & _LOW), zero + (step >> 32), zero, zero)
        self._key = list(philox(counter, (zero + (seed & _LOW), zero + (seed >> 32)))[:2])
        self._draws = self._scramblings = 0

    def rand(self, shape: Sequence[int]) -> Float64[Tensor, "..."]:
        """Float64 uniforms in [0, 1) with 53 random bits; ``shape[0]`` must be B. Every call draws afresh."""
        rows, per_row = self.index.shape[0], math.prod(shape[1:])
        require(
            len(shape) > 0 and shape[0] == rows,
            f"shape is {tuple(shape)}, must start with the {rows} examples of this generator",
        )
        block = torch.arange((per_row + 1) // 2, device=self.index.device)
        index = self.index[:, None]
        draw = torch.full_like(index, self._draws)
        self._draws += 1
        words = philox((block[None], draw, index & _LOW, (index >> 32) & _LOW), self._key)
        high, low = torch.stack(words[:2], -1) >> 5, torch.stack(words[2:], -1) >> 6
        uniform = (high * 2**26 + low).to(torch.float64) / 2**53
        return uniform.flatten(1)[:, :per_row].reshape(tuple(shape))

    def scrambled(self, words: Int64[Tensor, "B"]) -> Int64[Tensor, "B"]:
        """Words of 32 bits, each bit turned or not by chance, the same for all words that agree in the bits above it.

        Nested uniform scrambling (Owen, 1995): each word becomes uniform, words that share their first k bits still
        share as many and go their own way below. A function of (seed, step), the word and how many calls came before.
        Every call scrambles afresh.
        """
        bit = torch.arange(32, device=words.device)
        above, zero = words[:, None] >> (32 - bit), torch.zeros_like(words)[:, None]
        counter = (above, bit[None] + zero, zero + self._scramblings, zero)
        self._scramblings += 1
        chance = philox(counter, (self._key[0] ^ _SCRAMBLE, self._key[1]))[0]
        return words ^ ((chance & 1) << (31 - bit)).sum(1)

    def split(self, number: int) -> Self:
        """A generator for ``number`` copies of every example, the copies of the first example first.

        A copy has a stream of its own. It depends on the example, on which of its copies this is and on how many draws
        came before from this object: on neither the batch nor ``number``. Every call splits afresh.

        Raises:
            TypeError, ValueError: number below 1 or not int.

        Example:
            >>> noise = KeyedGenerator(seed=0, step=7, index=torch.arange(4)).split(3)
            >>> len(noise.rand((12, 5)).unique())
            60
        """
        check_count("number", number)
        index = self.index.repeat_interleave(number)
        which = torch.arange(number, device=index.device).repeat(len(self.index))
        key = [word if word.ndim == 0 else word.repeat_interleave(number, 0)[:, 0] for word in self._key]
        counter = (which, torch.full_like(index, self._draws), index & _LOW, (index >> 32) & _LOW)
        words = philox(counter, (key[0] ^ _SPLIT, key[1]))
        self._draws += 1
        copies = copy.copy(self)
        copies.index, copies._draws, copies._scramblings = index, 0, 0
        copies.scattered = True  # copies of an example have its position
        copies._key = [word[:, None] for word in words[:2]]
        return copies


class Mirrored:
    """Randomness that rows share two by two: what is ``u`` for the one is 1 - u for the other. See ``mirrored``."""

    def __init__(self, generator: torch.Generator | KeyedGenerator | None) -> None:
        self.generator = generator
        if isinstance(generator, KeyedGenerator):
            self._pairs = copy.copy(generator)
            self._pairs.index = generator.index // 2

    @property
    def device(self) -> torch.device | None:
        """Where the generator inside lives; None of torch's global state, which lives everywhere."""
        if isinstance(self.generator, KeyedGenerator):
            return self.generator.index.device
        return None if self.generator is None else self.generator.device

    def shared(self, rows: int, draw: Callable[[int, torch.Generator | KeyedGenerator | None], Tensor]) -> Tensor:
        """What ``draw(n, generator)`` gives, n of something, the same for both rows of a pair.

        Raises:
            ValueError: an odd number of rows.
        """
        require(
            rows % 2 == 0, f"the mirrored generator is asked for {rows} rows, must be an even number: they are pairs"
        )
        if isinstance(self.generator, KeyedGenerator):
            return draw(rows, self._pairs)  # two rows of one key draw the same
        return draw(rows // 2, self.generator).repeat_interleave(2, 0)

    def rand(self, shape: Sequence[int], device: torch.device) -> Float64[Tensor, "..."]:
        """Float64 uniforms in [0, 1) of ``shape`` (B, ...), odd rows mirrored."""
        require(len(shape) > 0, "shape is (), must start with the rows of the pairs")
        u = self.shared(shape[0], lambda rows, generator: rand((rows, *shape[1:]), generator, device))
        index = self.generator.index if isinstance(self.generator, KeyedGenerator) else torch.arange(shape[0])
        odd = (index.to(u.device) % 2 == 1).view(-1, *[1] * (len(shape) - 1))
        return torch.where(odd, (1 - 2**-53) - u, u)  # the grid of 53 bits, turned round


def mirrored(generator: torch.Generator | KeyedGenerator | None = None) -> Mirrored:
    """Randomness for pairs of rows: both have the same time, and noise from ``u`` and 1 - u.

    Rows 2k and 2k + 1 make a pair, by the global index of a ``KeyedGenerator`` and by their place in the batch
    otherwise. Each row's noise has the law it has without, so every mean is what it was; what one row is above it, the
    other tends to be below. ``dd.sample_times`` draws a time for each pair.

    Args:
        generator: where the numbers come from; None is torch's global state. Draw from what is returned only.

    Raises:
        TypeError: something else than a generator, or one that is mirrored already.
        ValueError: when it is asked for an odd number of rows.

    Example:
        >>> noise = mirrored(torch.Generator().manual_seed(0))
        >>> rand((4, 3), noise, torch.device("cpu")).view(2, 2, 3).sum(1).unique()
        tensor([1.0000], dtype=torch.float64)
    """
    if generator is not None and not isinstance(generator, (torch.Generator, KeyedGenerator)):
        raise TypeError(f"generator is {generator!r}, must be a torch.Generator, a KeyedGenerator or None")
    return Mirrored(generator)


Generator = torch.Generator | KeyedGenerator | Mirrored | None
"""Where random numbers come from; None is torch's global state."""


def rand(shape: Sequence[int], generator: Generator, device: torch.device) -> Float64[Tensor, "..."]:
    """Float64 uniforms in [0, 1) of ``shape`` on ``device``.

    Raises:
        TypeError: something else than a generator.
        ValueError: the generator lives on another device type.
    """
    if generator is not None:
        if not isinstance(generator, (torch.Generator, KeyedGenerator, Mirrored)):
            raise TypeError(
                f"generator is {generator!r}, must be a torch.Generator, a KeyedGenerator, either mirrored, or None"
            )
        home = generator.index.device if isinstance(generator, KeyedGenerator) else generator.device
        require(
            home is None or home.type == torch.device(device).type,
            f"generator is on {home}, must be on the device of the tokens, {device}",
        )
    if isinstance(generator, KeyedGenerator):
        return generator.rand(shape)
    if isinstance(generator, Mirrored):
        return generator.rand(shape, torch.device(device))
    return torch.rand(tuple(shape), generator=generator, device=device, dtype=torch.float64)


def evenly(shape: Sequence[int], generator: Generator, device: torch.device) -> Float64[Tensor, "B L"]:
    """Float64 uniforms in [0, 1) of ``shape`` (B, L), systematic in every row.

    One random shift per row and L evenly spaced numbers in a random order: each is uniform on its own, together they
    leave no gap longer than 1 / L. Keyed per row where the generator is.
    """
    order = rand(shape, generator, device).argsort(-1).argsort(-1)
    shift = rand((shape[0], 1), generator, device)
    return ((order + shift) / shape[1]).clamp_max(1 - 2**-53)  # rounding

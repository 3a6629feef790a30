"""What a leaf must answer: three laws, and what the process is."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from ddlib.arguments import Identified
from ddlib.hierarchies import Hierarchy
from ddlib.processes.own_times import STEPS, answers_times, position_by_position, standing_still
from ddlib.schedules import Schedule
from ddlib.typing import StateMatrix, StateProbs, Times, Tokens
from ddlib.utils.validation import check_count, check_devices, check_order, check_times, check_tokens, require, visible


class Contract(Identified):
    r"""A continuous-time Markov chain :math:`q_t(z|x)` that noises each position on its own, told by three answers.

    ``marginal``, ``rate_matrix`` and ``transition`` have no default. The others say what the process is, and have one
    that serves a process of words and, perhaps, a mask.

    Args:
        vocab_size: number of words V; states 0..V-1 are the words.
        num_states: number of states S >= V.
        own_times: of the class, ``class Mine(ForwardProcess, own_times=True)``: whether the answers that its body
            overrides take times (B, L) as well as (B,). Of a body that does not say so they are asked position by
            position where a time per position is given, so no leaf has to know of it.
    """

    def __init_subclass__(cls, own_times: bool = False, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        for name, member in () if own_times else list(vars(cls).items()):
            known = any(name in vars(base) for base in cls.__mro__[1:])
            if known and answers_times(member):  # a leaf's own helpers are its own affair
                served = position_by_position(member)
                setattr(cls, name, standing_still(served) if name in STEPS else served)

    _place: Tensor
    """A constant that every process has: it is where the others are."""

    @abstractmethod
    def marginal(self, x: Tokens, t: Times) -> StateProbs:
        """q_t(.|x), the law of z_t given the word, (B, L, S); in the dtype of ``t``."""

    @abstractmethod
    def rate_matrix(self, t: float | Tensor) -> StateMatrix:
        """Q_t, rates per unit of time at the scalar ``t``, dense float64 (S, S), rows sum to 0."""

    @abstractmethod
    def transition(self, s: float | Tensor, t: float | Tensor) -> StateMatrix:
        """q_{t|s}, dense float64 (S, S) at scalar ``s <= t``, row = from, rows sum to 1."""

    def __init__(self, vocab_size: int, num_states: int) -> None:
        super().__init__()
        self.vocab_size = check_count("vocab_size", vocab_size)
        self.num_states = check_count("num_states", num_states, vocab_size)
        self._place = torch.zeros((), dtype=torch.int64)
        self.hierarchy = None  # no default of the class: that would hide the submodule which a leaf sets

    hierarchy: Hierarchy | None
    """Where tokens jump, in processes that are made of one; None elsewhere."""

    schedule: Schedule | None = None
    """The clock, in processes that have one."""

    modes: ClassVar[tuple[str, ...]] = ("standard",)
    """What ``training_loss`` can be: "hard" and "edges" too where the ``..._weighted_divergence`` of the name is."""

    @property
    def exact_ends(self) -> bool:
        """Whether the process starts at the data and ends in its limit: always, unless its clock says no."""
        return self.schedule is None or self.schedule.exact_ends

    @property
    def device(self) -> torch.device:
        """Where the process's constants live."""
        return self._place.device

    def level_of(self, z: Tokens) -> Tokens:
        """The level of each state: 0 for words, then upwards; the mask is highest."""
        return (z >= self.vocab_size).to(torch.int64)

    @property
    def levels(self) -> tuple[int, ...]:
        """Number of states of each level, words first: (V, 1) with a mask alone, (V,) if every state is a word.

        Counted by ``level_of`` where a leaf answers it.
        """
        beyond = self.num_states - self.vocab_size
        if type(self).level_of is Contract.level_of:  # nothing to count: an accelerator would have to wait for it
            return (self.vocab_size, beyond) if beyond else (self.vocab_size,)
        states = torch.arange(self.num_states, device=self.device)[None]
        return tuple(torch.bincount(self.level_of(states)[0]).tolist())

    def small_copy(self, vocab_size: int) -> Self:
        """A process of the same class and structure over at most ``vocab_size`` words, small enough to be enumerated.

        ``dd.verify`` proves a large process right on it.

        Raises:
            TypeError: the class offers none.
            ValueError: too few words for its structure.
        """
        raise TypeError(f"{type(self).__name__} offers no reduction to fewer words")

    @classmethod
    def examples(cls) -> Sequence[Self]:
        """Objects on which a registered class is verified; override where the constructor needs arguments."""
        return [cls()]  # type: ignore[call-arg] # a leaf's constructor may need nothing

    def _finish(self) -> None:
        """Puts the constant that says where the process is beside the others, which arguments may place."""
        if "_place" not in vars(self):
            return  # a subclass has not called super().__init__
        tensors = (value for module in self.modules() for value in (*vars(module).values(), *module.buffers(False)))
        held = next((v for v in tensors if isinstance(v, Tensor) and v is not self._place), self._place)
        self._place = self._place.to(held.device)

    def check_inputs(
        self, *, x: Tensor | None = None, z: Tensor | None = None, t: Tensor | None = None,
        s: Tensor | None = None, p: Tensor | None = None,
    ) -> None:  # fmt: skip
        """Raises unless the arguments are of the right type, shape, range and device."""
        tokens = z if x is None else x
        if x is not None:
            check_tokens("x", x, self.vocab_size, "words")
        if z is not None:
            check_tokens("z", z, self.num_states, "states")
        for name, time in (("t", t), ("s", s)):
            if time is not None and tokens is not None:
                check_times(name, time, *tokens.shape)
        if x is not None and z is not None:
            require(x.shape == z.shape, f"z has shape {tuple(z.shape)}, must be that of x, {tuple(x.shape)}")
        if s is not None and t is not None:
            require(s.shape == t.shape, f"s has shape {tuple(s.shape)}, must be that of t, {tuple(t.shape)}")
            check_order(s, t, strictly=t.ndim == 1)  # at its own time a position may stand still
        if p is not None and tokens is not None:
            want = (*tokens.shape, self.vocab_size)
            require(tuple(p.shape) == want, f"p has shape {tuple(p.shape)}, must be (B, L, V) = {want}")
            if visible(p):
                total = p.sum(-1)
                bad = ~((p >= 0).all(-1) & ((total - 1).abs() < 0.01))
                require(not bool(bad.any()), "p holds a row that is no law: negative, NaN, or not of sum 1")
        check_devices(x=x, z=z, t=t, s=s, p=p, process=self._place)

    def __repr__(self) -> str:
        fields = [f"vocab_size={self.vocab_size}", f"num_states={self.num_states}"]
        fields += [f"hierarchy={self.hierarchy!r}"] * (self.hierarchy is not None)
        fields += [f"schedule={self.schedule!r}"] * (self.schedule is not None)
        return f"{type(self).__name__}({', '.join(fields)})"

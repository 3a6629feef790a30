"""Deterministic finite automata over tokens: completions of partially drawn sequences."""

import copy
from collections.abc import Hashable, Iterable, Mapping
from typing import Self

import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from ddlib.contrib.constraints.classes import (
    class_groups,
    log_sums,
    number_transitions,
    token_classes,
)
from ddlib.typing import Tokens
from ddlib.utils.validation import check_count, require


class Automaton:
    r"""Deterministic finite automaton over tokens, a constraint for ``sample``.

    It accepts a sequence if its transitions lead from ``start`` to an accepting state. Regular
    expressions and JSON schemas of bounded depth have such automata, for example by the library
    outlines-core. A sequence in which some positions are not drawn has a completion if there is a
    path through states that are reachable from the start and from which an accepting state is
    reachable in the remaining number of positions (DINGO, arXiv 2505.23061). This holds for any
    order of the positions.

    Tokens with the same transitions in all states form a class. The cost of a pass over a sequence
    is proportional to the transitions between states and classes, and not to the number of tokens.

    Args:
        transitions: the next state for each state and token: ``{state: {token: state}}``. A token
            without an entry is not allowed in that state. States are numbers, strings or other
            keys.
        start: the first state.
        accepting: states in which a sequence may end.
        vocab_size: number of tokens V.
        end: token that may follow in an accepting state. Behind it there are only ``fill`` tokens,
            so accepted sequences may be shorter than the length. None: only sequences of the full
            length are accepted.
        fill: token behind ``end``; by default ``end``.

    Raises:
        TypeError, ValueError: tokens outside [0, V); no accepting states; a transition by ``end``
            in an accepting state; ``fill`` without ``end``.

    Example:
        >>> moves = {0: {1: 1}, 1: {1: 1}}
        >>> one_or_more = Automaton(moves, start=0, accepting=[1], vocab_size=4, end=3)
        >>> one_or_more.accepts(torch.tensor([[1, 1, 3, 3], [1, 3, 1, 3], [3, 3, 3, 3]]))
        tensor([ True, False, False])
        >>> one_or_more.allowed_tokens(torch.tensor([[4, 4, 1]])).int()  # 4 is the mask
        tensor([[[0, 1, 0, 0],
                 [0, 1, 0, 0],
                 [0, 1, 0, 0]]], dtype=torch.int32)
    """

    token_class: Int64[Tensor, "V"]
    """Class of each token, below ``num_classes``; the last class has no transitions."""
    num_classes: int
    is_open: Bool[Tensor, "n"]
    """True at classes with transitions whose tokens may be drawn."""
    edges: tuple[Int64[Tensor, "n"], Int64[Tensor, "n"], Int64[Tensor, "n"]]
    """Transitions: states, classes and next states, sorted by state and class."""
    pairs: tuple[Int64[Tensor, "m"], Int64[Tensor, "m"]]
    """Distinct pairs of a state and a next state by a token that may be drawn."""
    accepting: Bool[Tensor, "K"]
    """True at accepting states."""
    skip: int = 0
    """Number of positions at the beginning of a sequence that may hold any tokens."""
    ancestors: Int64[Tensor, "V n"]
    """State of each token in each level between the tokens and the mask."""
    groups: Bool[Tensor, "m C"]
    """Classes of the tokens that may be drawn.

    The first row is for all tokens, the others for those below each state in these levels.
    """
    _ends_in: tuple[Tensor, ...]

    def __init__(
        self,
        transitions: Mapping[Hashable, Mapping[int, Hashable]],
        start: Hashable,
        accepting: Iterable[Hashable],
        vocab_size: int,
        end: int | None = None,
        fill: int | None = None,
    ) -> None:
        self.vocab_size = check_count("vocab_size", vocab_size)
        require(
            end is not None or fill is None, f"fill is {fill} and end is None: fill requires end"
        )
        self.end = end
        self.fill = end if fill is None else fill
        final = dict.fromkeys(accepting)
        sources, tokens, targets, self.accepting = number_transitions(
            transitions, start, final, vocab_size, end, self.fill
        )
        self.token_class, count, (before, classes, after) = token_classes(
            sources, tokens, targets, vocab_size
        )
        self.ancestors = torch.zeros(vocab_size, 0, dtype=torch.int64)
        self._set(before, classes, after, torch.ones(count, dtype=torch.bool))

    def _set(
        self, sources: Tensor, classes: Tensor, targets: Tensor, is_open: Bool[Tensor, "n"]
    ) -> None:
        """Set the transitions between states and classes."""
        self.num_classes = len(is_open) + 1
        self.is_open = is_open
        self._keys, order = (sources * self.num_classes + classes).sort()
        self.edges = sources[order], classes[order], targets[order]
        states = len(self.accepting)
        some = is_open[classes]
        distinct = (sources * states + targets)[some].unique()
        self.pairs = distinct // states, distinct % states
        self._ends_in = (self.accepting,)
        self.groups = class_groups(self.token_class, self.ancestors, is_open)

    def to(self, device: torch.device) -> Self:
        """Return the automaton with its tensors on a device."""
        moved = copy.copy(self)
        for name in ("token_class", "accepting", "is_open", "_keys", "ancestors", "groups"):
            setattr(moved, name, getattr(self, name).to(device))
        for name in ("edges", "pairs"):
            setattr(moved, name, tuple(part.to(device) for part in getattr(self, name)))
        moved._ends_in = (moved.accepting,)
        return moved

    def behind(self, number: int) -> Self:
        """Return the automaton of sequences with this number of arbitrary tokens before those that
        it accepts.
        """
        moved = copy.copy(self)
        moved.skip = self.skip + check_count("number", number, 0)
        return moved

    def over(self, ancestors: Int64[Tensor, "V n"]) -> Self:
        """Return the automaton for states that may be ancestors of tokens too, with the ancestors
        of each token.

        A position in such a state has the tokens below it.
        """
        moved = copy.copy(self)
        moved.ancestors = ancestors
        moved.groups = class_groups(self.token_class, ancestors, self.is_open)
        return moved

    def without(self, tokens: Iterable[int]) -> Self:
        """Return the automaton whose completions have none of these tokens.

        Those that are drawn already may stay.
        """
        excluded = torch.zeros_like(self.token_class, dtype=torch.bool)
        excluded[list(tokens)] = True
        reduced = copy.copy(self)
        dead = self.num_classes - 1
        used = self.token_class < dead
        kinds, which = (2 * self.token_class + excluded)[used].unique(return_inverse=True)
        reduced.token_class = torch.full_like(self.token_class, len(kinds))
        reduced.token_class[used] = which
        number = torch.full((2 * dead,), -1, device=kinds.device)  # of both parts of each class
        number[kinds] = torch.arange(len(kinds), device=kinds.device)
        sources, classes, targets = (torch.cat([part, part]) for part in self.edges)
        classes = number[
            2 * classes
            + torch.arange(2, device=classes.device).repeat_interleave(len(classes) // 2)
        ]
        some = classes >= 0
        is_open = (kinds % 2 == 0) & self.is_open[kinds // 2]
        reduced._set(sources[some], classes[some], targets[some], is_open)
        return reduced

    def ends_by(self, token: int, fill: int) -> bool:
        """Return whether any number of ``fill`` tokens is accepted behind every ``token``."""
        sources, classes, targets = self.edges
        behind = torch.zeros_like(self.accepting)
        behind[targets[classes == self.token_class[token]]] = True
        loops = torch.zeros_like(self.accepting)
        loops[sources[(classes == self.token_class[fill]) & (sources == targets)]] = True
        return bool((loops & self.accepting)[behind].all())

    def accepts(self, x: Tokens) -> Bool[Tensor, "B"]:
        """Return whether each sequence is accepted."""
        return self.has_completion(x)

    def has_completion(self, z: Tokens) -> Bool[Tensor, "B"]:
        """Return whether each partially drawn sequence has an accepted completion.

        Args:
            z: (B, L) tokens, and numbers of at least V at positions that are not drawn.
        """
        classes = self.classes(z)
        states = self.start_sets(len(z))
        for column in range(min(self.skip, z.shape[1]), z.shape[1]):
            states = self.follow(states, classes[:, column])
        return (states & self.accepting).any(1)

    def allowed_tokens(self, z: Tokens) -> Bool[Tensor, "B L V"]:
        """Return the tokens at each position with which a sequence still has an accepted
        completion.

        At a drawn position that is its token alone, and no token if the sequence has no completion.

        Args:
            z: (B, L) tokens, and numbers of at least V at positions that are not drawn.
        """
        is_token = z[..., None] == torch.arange(self.vocab_size, device=z.device)
        return self.possible(z)[..., self.token_class] & (
            is_token | (z >= self.vocab_size)[..., None]
        )

    def possible(self, z: Tokens) -> Bool[Tensor, "B L C"]:
        """Return the classes of tokens at each position with which a sequence still has an accepted
        completion.

        Args:
            z: (B, L) tokens, and numbers of at least V at positions that are not drawn.
        """
        classes = self.classes(z)
        rows, length = z.shape
        allowed = torch.zeros(rows, length, self.num_classes, dtype=torch.bool, device=z.device)
        after = [self.ending(0).expand(rows, -1)]
        for column in range(length - 1, min(self.skip, length) - 1, -1):
            after.append(self.precede(after[-1], classes[:, column]))
        states = self.start_sets(rows)
        possible = after[-1][:, 0].isfinite()
        allowed[:, : self.skip] = possible[:, None, None]
        for column in range(min(self.skip, length), length):
            here = self.scores(states, after[length - 1 - column]).isfinite()
            allowed[:, column] = here & self.groups[(-1 - classes[:, column]).clamp_min(0)]
            states = self.follow(states, classes[:, column])
        return torch.where((classes >= 0)[..., None], possible[:, None, None], allowed)

    def classes(self, z: Int64[Tensor, "*n"]) -> Int64[Tensor, "*n"]:
        """Return the class of each token.

        At other positions minus the number of their group, counted from 1.
        """
        above = z - self.vocab_size + 1
        group = torch.where(above < len(self.groups), above, 0)
        return torch.where(
            above > 0, -1 - group, self.token_class[z.clamp_max(self.vocab_size - 1)]
        )

    def at_levels(
        self, scores: Float[Tensor, "B V"], levels: Int64[Tensor, "B"]
    ) -> Float[Tensor, "B S"]:
        """Return the log of the sum of exp(score) over the tokens below each state of a level, -inf
        at other states.

        Args:
            scores: (B, V) scores of tokens.
            levels: (B,) the level, 0 for the tokens.
        """
        if not bool((levels > 0).any()):
            return scores
        tokens = torch.arange(self.vocab_size, device=scores.device)[:, None]
        states = torch.cat([tokens, self.ancestors], 1).T[levels]
        return log_sums(scores, states, self.vocab_size + len(self.groups) - 1)

    def start_sets(self, rows: int) -> Bool[Tensor, "B K"]:
        """Return the sets of states before the first token: the start alone."""
        states = torch.zeros(
            rows, len(self.accepting), dtype=torch.bool, device=self.accepting.device
        )
        states[:, 0] = True
        return states

    def ending(self, number: int) -> Float64[Tensor, "K"]:
        """Return 0 for states from which this number of tokens may lead to an accepting state, -inf
        for others.
        """
        sources, targets = self.pairs
        ends_in = self._ends_in
        while len(ends_in) <= number:
            before = torch.zeros_like(self.accepting)
            before[sources[ends_in[-1][targets]]] = True
            ends_in = (*ends_in, before)
        self._ends_in = ends_in
        return torch.where(ends_in[number], 0.0, -torch.inf).to(torch.float64)

    def follow(
        self, states: Bool[Tensor, "B K"], classes: Int64[Tensor, "B"]
    ) -> Bool[Tensor, "B K"]:
        """Return the sets of states behind a token of these classes.

        Any of their group for negative ones.
        """
        reached = torch.zeros_like(states, dtype=torch.int32)
        known = (classes >= 0)[:, None]
        target, exists = self._next(classes)
        reached.scatter_add_(1, target, (states & exists & known).int())
        if not bool(known.all()):
            before, after, exists = self._moves(classes)
            reached.index_add_(1, after, (states[:, before] & exists).int())
        return reached > 0

    def precede(
        self, values: Float64[Tensor, "B K"], classes: Int64[Tensor, "B"]
    ) -> Float64[Tensor, "B K"]:
        """Return the values of the states before a token of these classes: those of the next
        states.

        For a negative class it is the largest one over the classes of its group, and -inf without a
        transition.
        """
        known = (classes >= 0)[:, None]
        target, exists = self._next(classes)
        score = torch.where(exists & known, values.gather(1, target), -torch.inf)
        if not bool(known.all()):
            before, after, exists = self._moves(classes)
            best = torch.where(exists, values[:, after], -torch.inf)
            score.scatter_reduce_(1, before.expand(len(values), -1), best, "amax")
        return score

    def scores(
        self, states: Bool[Tensor, "B K"], after: Float64[Tensor, "B K"]
    ) -> Float64[Tensor, "B C"]:
        """Return the largest value of a state that each class leads to from the given sets.

        It is -inf without one, and at classes that are not open.

        Args:
            states: (B, K) sets of states before the token.
            after: (B, K) values of the states behind it.
        """
        sources, classes, targets = self.edges
        values = torch.where(states[:, sources], after[:, targets], -torch.inf)
        totals = values.new_full((len(states), self.num_classes), -torch.inf)
        totals.scatter_reduce_(1, classes.expand(len(states), -1), values, "amax")
        totals[:, :-1][:, ~self.is_open] = -torch.inf
        return totals

    def sum_transitions(
        self, values: Float64[Tensor, "B K"], weights: Float64[Tensor, "B C"]
    ) -> Float64[Tensor, "B K"]:
        """Return the log of the sum over transitions of exp(weight of the class + value of the next
        state).

        Args:
            values: (B, K) values of the states behind a token.
            weights: (B, C) log-weights of its class.
        """
        sources, classes, targets = self.edges
        terms = weights[:, classes] + values[:, targets]
        places = sources.expand(len(values), -1)
        return log_sums(terms, places, len(self.accepting))

    def _moves(
        self, classes: Int64[Tensor, "B"]
    ) -> tuple[Int64[Tensor, "n"], Int64[Tensor, "n"], Bool[Tensor, "B n"]]:
        """Return states and next states, and whether a row has a token of a group, of negative
        class, between them.
        """
        if not bool((classes < -1).any()):
            return *self.pairs, (classes < 0)[:, None].expand(-1, len(self.pairs[0]))
        before, kinds, after = self.edges
        return (
            before,
            after,
            self.groups[(-1 - classes).clamp_min(0)][:, kinds] & (classes < 0)[:, None],
        )

    def _next(
        self, classes: Int64[Tensor, "B"]
    ) -> tuple[Int64[Tensor, "B K"], Bool[Tensor, "B K"]]:
        """Return the next state of every state by a class, and whether there is one.

        Some state where there is none.
        """
        states = torch.arange(len(self.accepting), device=classes.device)
        keys = states * self.num_classes + classes[:, None].clamp_min(0)
        if not len(self._keys) or not bool((classes >= 0).any()):
            return torch.zeros_like(keys), torch.zeros_like(keys, dtype=torch.bool)
        place = torch.searchsorted(self._keys, keys).clamp_max(len(self._keys) - 1)
        return self.edges[2][place], self._keys[place] == keys

    def __repr__(self) -> str:
        sizes = (
            f"states={len(self.accepting)}, classes={self.num_classes - 1}, "
            f"vocab_size={self.vocab_size}"
        )
        return f"Automaton({sizes}, end={self.end}, fill={self.fill}, skip={self.skip})"

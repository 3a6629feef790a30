"""Transitions as numbers, classes of tokens with the same transitions, and sums over them."""

from collections.abc import Collection, Hashable, Mapping
from itertools import chain

import numpy as np
import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from ddlib.utils.validation import check_count, require


def number_transitions(
    transitions: Mapping[Hashable, Mapping[int, Hashable]],
    start: Hashable,
    final: Collection[Hashable],
    vocab_size: int,
    end: int | None,
    fill: int | None,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, Bool[Tensor, "K"]]:
    """Return the states, tokens and next states of all transitions, and the accepting states.

    The start is state 0.

    The arguments are those of ``Automaton``.

    Raises:
        TypeError, ValueError: no accepting states; tokens outside [0, V); a transition by ``end``
            in an accepting state.
    """
    require(
        bool(final), "accepting is empty, must hold a state: no sequence satisfies the constraint"
    )
    for name, special in (("end", end), ("fill", fill)):
        if special is not None:
            require(
                check_count(name, special, 0) < vocab_size,
                f"{name} is {special}, must be in [0, {vocab_size})",
            )
    number: dict[Hashable, int] = {start: 0}
    for state in chain(transitions, *(row.values() for row in transitions.values()), final):
        number.setdefault(state, len(number))
    sizes = [len(row) for row in transitions.values()]
    count = sum(sizes)
    tokens = np.fromiter(chain.from_iterable(transitions.values()), np.int64, count)
    to = chain.from_iterable(row.values() for row in transitions.values())
    targets = np.fromiter((number[state] for state in to), np.int64, count)
    sources = np.repeat(np.array([number[state] for state in transitions], np.int64), sizes)
    if count:
        for token in (int(tokens.min()), int(tokens.max())):
            require(
                0 <= token < vocab_size,
                f"transitions hold token {token}, must be in [0, {vocab_size})",
            )
    final_numbers = np.array(sorted(number[state] for state in final), np.int64)
    states = len(number)
    if end is not None:
        twice = np.isin(sources[tokens == end], final_numbers)
        require(
            not twice.any(),
            f"end is {end}, by which an accepting state has a transition, must have none",
        )
        ended = [states] * len(final_numbers)
        sources = np.concatenate([sources, final_numbers, [states]])
        tokens = np.concatenate([tokens, [end] * len(final_numbers), [fill]]).astype(np.int64)
        targets = np.concatenate([targets, ended, [states]]).astype(np.int64)
        final_numbers = np.append(final_numbers, states)
        states = states + 1
    is_final = torch.zeros(states, dtype=torch.bool)
    is_final[torch.from_numpy(final_numbers)] = True
    return sources, tokens, targets, is_final


def log_sums(
    terms: Float[Tensor, "B n"], places: Int64[Tensor, "B n"], size: int
) -> Float[Tensor, "B m"]:
    """Return the logs of the sums of exp(terms) with the same place, (B, size).

    -inf for a place without terms.
    """
    largest = terms.new_full((len(terms), size), -torch.inf).scatter_reduce_(
        1, places, terms, "amax"
    )
    finite = torch.where(largest.isfinite(), largest, 0.0)
    sums = torch.zeros_like(largest).scatter_add_(
        1, places, (terms - finite.gather(1, places)).exp()
    )
    return sums.log() + finite


def class_groups(
    token_class: Int64[Tensor, "V"], ancestors: Int64[Tensor, "V n"], is_open: Bool[Tensor, "m"]
) -> Bool[Tensor, "K C"]:
    """Return the classes of the tokens that may be drawn.

    The root first: the classes of all tokens, then of those below each ancestor.

    Args:
        token_class: the class of each token.
        ancestors: the state of each token in each level between the tokens and the mask, from V on.
        is_open: True at classes whose tokens may be drawn; the class behind them has no
            transitions.
    """
    last = len(token_class) - 1
    number = int(ancestors.max()) - last + 1 if ancestors.numel() else 1
    groups = torch.zeros(number, len(is_open) + 1, dtype=torch.bool, device=token_class.device)
    for above in (torch.full_like(token_class, last), *ancestors.unbind(1)):
        groups[above - last, token_class] = True
    groups[:, :-1] &= is_open
    groups[:, -1] = False
    return groups


def token_classes(
    sources: np.ndarray, tokens: np.ndarray, targets: np.ndarray, vocab_size: int
) -> tuple[Int64[Tensor, "V"], int, list[Tensor]]:
    """Return the class of each token, the number of classes with transitions, and the transitions
    of these classes.

    Tokens without transitions have the class behind the last. The partition is refined state by
    state: tokens stay together while they have the same next state.

    Args:
        sources: (n,) states of the transitions.
        tokens: (n,) their tokens.
        targets: (n,) their next states.
        vocab_size: number of tokens V.

    Returns:
        (V,) int64, the number of classes, and sources, classes and targets of the transitions.
    """
    classes = np.zeros(vocab_size, np.int64)
    count = 1
    order = np.argsort(sources, kind="stable")
    for some in np.split(order, np.flatnonzero(np.diff(sources[order])) + 1) if len(order) else []:
        pairs = classes[tokens[some]] * (int(targets.max()) + 1) + targets[some]
        distinct, which = np.unique(pairs, return_inverse=True)
        classes[tokens[some]] = count + which
        count += len(distinct)
    used = np.zeros(vocab_size, bool)
    used[tokens] = True
    distinct, members, which = np.unique(classes[used], return_index=True, return_inverse=True)
    numbers = np.full(vocab_size, len(distinct), np.int64)
    numbers[used] = which
    first = np.zeros(vocab_size, bool)
    first[np.flatnonzero(used)[members]] = True
    selected = first[tokens]  # the transitions of one member of each class
    parts = [torch.from_numpy(part[selected]) for part in (sources, numbers[tokens], targets)]
    return torch.from_numpy(numbers), len(distinct), parts

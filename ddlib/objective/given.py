"""Given tokens: context that is never noised and has no loss (theory section 21)."""

import torch

from ddlib.typing import GivenTokens, PaddingMask, Times, Tokens
from ddlib.utils.validation import check_given, check_padding, due, refuse, require


def hold_given(
    x: Tokens, z: Tokens, t: Times, given: GivenTokens | None, block: int | None = None
) -> tuple[Tokens, Times]:
    r"""Return the states and the times of a network that sees given tokens.

    A sequence is split into given tokens G and the rest R. The chain lives on R alone, with the
    given tokens as a parameter of the network:

    .. math:: -\log p(x_R \mid x_G) \le
        E[\sum_{l \in R} \mathrm{nelbo}_l] + \text{the ends of time},
        \qquad z_R \sim q_t(\cdot \mid x_R),\ z_G = x_G

    Args:
        x: (B, L) clean tokens, for a product ``process.tokens_as_states(x)``.
        z: (B, L) noisy states, drawn for all positions.
        t: (B,) times, or (B, L), one for each position.
        given: (B, L) bool, True at given tokens; None for none.
        block: number of positions of a block, if blocks also take the clean sequence; else None.

    Returns:
        ``z`` with the tokens themselves where they are given, and ``t``; with a time per position
        it is 0 there, as it is in ``sample`` at a prompt.

    Raises:
        TypeError, ValueError: ``given`` not bool or of another shape; with a ``block``, a token
            given in a later block than one that is not.

    Example:
        >>> x, z, t = torch.tensor([[3, 1]]), torch.tensor([[4, 4]]), torch.tensor([0.5])
        >>> hold_given(x, z, t, torch.tensor([[True, False]]))
        (tensor([[3, 4]]), tensor([0.5000]))
    """
    if given is None:
        return z, t
    check_given(x, None, given)
    if block is not None:
        check_given_blocks(given, block)
    return torch.where(given, x, z), t if t.ndim == 1 else torch.where(given, 0.0, t)


def free_positions(
    x: Tokens, mask: PaddingMask | None, given: GivenTokens | None
) -> PaddingMask | None:
    """Return True at the tokens that have a loss: real and not given; None if all have.

    Raises:
        TypeError, ValueError: a bad mask; ``given`` not bool, of another shape, True at padding or
            at all tokens.
    """
    check_padding(x, mask)
    check_given(x, mask, given)
    if given is None:
        return mask
    free = ~given if mask is None else mask & ~given
    if due(free):
        require(
            bool(free.any()),
            "given is True at all tokens, must be False at one: nothing else has a loss",
        )
    return free


def check_held(x: Tokens, z: Tokens, given: GivenTokens | None) -> None:
    """Raise ValueError unless the states of given tokens are the tokens themselves."""
    if given is None or not due(z):
        return
    noised = given & (z != x)
    if bool(noised.any()):
        row, position = (int(i) for i in noised.nonzero()[0])
        refuse(
            f"z[{row}, {position}] = {int(z[row, position])} at a given token, must be "
            f"x[{row}, {position}] = {int(x[row, position])}: use dd.hold_given"
        )


def check_given_blocks(given: GivenTokens, block: int) -> None:
    """Raise ValueError where a token is given in a later block than one that is not.

    The features of such a token in the clean sequence have attended to all tokens before it. A
    block that attended to them would read its own tokens.
    """
    if not due(given):
        return
    blocks = torch.arange(given.shape[1], device=given.device) // block
    first = torch.where(given, given.shape[1], blocks).amin(1)
    later = given & (blocks > first[:, None])
    if bool(later.any()):
        row, position = (int(i) for i in later.nonzero()[0])
        refuse(
            f"given[{row}, {position}] is True in block {position // block}, must be False behind "
            f"block {int(first[row])}, the first with a token to predict: blocks take the clean "
            "sequence, in which the features of a later token depend on the tokens between"
        )

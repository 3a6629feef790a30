"""The exact likelihood of a text: what an order that chooses by the states alone would draw, read off instead."""

from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.parameterization.logits import Parameterization, stated
from ddlib.processes import ForwardProcess, LevelProcess, unchanged
from ddlib.samplers import Confidence, OrderedSampler, Sampler, SamplingContext, State
from ddlib.samplers.base import level_process
from ddlib.samplers.ordered import levels, model_time
from ddlib.samplers.runtime.model import ModelWrapper
from ddlib.samplers.runtime.reverse_step import transition_log_prob
from ddlib.typing import Denoiser, PaddingMask, Tokens
from ddlib.utils.validation import check_count, check_devices, check_mask, check_shape, require

_INSTEAD = "ddlib.bound has an upper bound of -log p(x) for every process"


class Likelihood(NamedTuple):
    """log p(x) of every text, and what it took."""

    log_likelihood: Float64[Tensor, "B"]
    """(B,) in nats per text."""
    calls: int
    """Network calls of the batch."""
    per_position: Float64[Tensor, "B L"]
    """(B, L) the share of each position in nats, given what came before it in the order; 0 where given or padding."""


@torch.no_grad()
def likelihood(
    process: ForwardProcess,
    denoiser: Denoiser,
    x: Tokens,
    order: Sampler | None = None,
    *,
    steps: int | None = None,
    mask: PaddingMask | None = None,
    given: Tensor | None = None,
    parameterization: Parameterization | None = None,
    compact: bool = True,
) -> Likelihood:
    r"""The log-probability with which ``sample`` draws each text by this order, in as many steps: no bound, no noise.

    .. math:: \log p(x) = \sum_{k} \sum_{l \in A_k} \log \pi(a(x_l) \mid z_l, p(\cdot | z^k))

    A_k are the positions that step k lets down, a(x_l) the ancestor of a word where its position lands, and pi the law
    of the states below. The order decides by the states, as in a draw, before x has a say: so these numbers sum to one
    over all texts (DUEL, arXiv 2603.01367, for masks; here for every tree, theory section 10).

    One edge at a time is one call of the network for each of the n L edges of a text. Fewer ``steps``, and orders that
    let several positions go, draw these independently of each other: another model of texts, whose likelihood is exact
    too.

    Args:
        process: masks, or levels that keep a word in its cluster.
        denoiser: ``(z, t) -> logits`` as ``sample`` takes it; put a module into ``eval()`` first.
        x: (B, L) words.
        order: a sampler that chooses without chance, such as ``LeftToRight()``; default ``Confidence()``.
        steps: at most so many calls; default as many as a text has edges.
        mask: (B, L) bool, True at real tokens, False at padding. Padding counts nothing and stands from the beginning,
            as words that are ``given`` do: the result is log p(real tokens | padding), where the denoiser ignores
            padding that of the real tokens alone. 0 for a text without a real token.
        given: (B, L) bool, True at words that stand from the beginning, as a prompt does: then it is log p(x | given).
        parameterization: what the logits mean, as in ``nelbo``; by default the denoiser's attribute of that name, and
            "cavity" where it has none.
        compact: as in ``sample``.

    Raises:
        TypeError, ValueError: before the network runs, bad x, mask, given or steps, and what has no exact likelihood:
            another sampler than an order, or one that chooses by chance; a process without levels, or one in which
            tokens leave their cluster (xi < 1), or one that does not start at the mask alone. Logits as in ``nelbo``.

    Example:
        >>> import ddlib as dd
        >>> process, knows_nothing = dd.presets.mdlm(4), lambda z, t: torch.zeros(*z.shape, 4)
        >>> found = likelihood(process, knows_nothing, torch.tensor([[0, 3, 1]]))
        >>> found.log_likelihood.exp(), found.calls  # one text of 4^3
        (tensor([0.0156], dtype=torch.float64), 3)
    """
    order = Confidence() if order is None else order
    check_likelihood(process, order)
    assert isinstance(order, OrderedSampler)
    process.check_inputs(x=x)
    if given is None:
        free = torch.ones_like(x, dtype=torch.bool)
    else:
        if not isinstance(given, Tensor) or given.dtype != torch.bool:
            got = given.dtype if isinstance(given, Tensor) else type(given).__name__
            raise TypeError(f"given has dtype {got}, must be a torch.bool tensor, True at words that stand")
        check_shape("given", given, x.shape, f"that of x, {tuple(x.shape)}")
        check_devices(x=x, given=given)
        free = ~given
    if mask is not None:
        check_devices(x=x, mask=mask)
        check_mask("mask", mask, x.shape)
        free = free & mask
    edges = len(process.levels) - 1
    count = max(1, edges * int(free.sum(-1).max())) if steps is None else check_count("steps", steps)

    network = ModelWrapper(process, denoiser, stated(denoiser, parameterization), compact)
    times = torch.linspace(1, 0, count + 1, dtype=torch.float64, device=x.device)
    # the prior is drawn from though it is certain: not at the cost of the caller's randomness
    run = SamplingContext(process, network, unchanged, times, free, torch.Generator(x.device))
    ways = torch.stack([level_process(run).ascend(x, torch.full_like(x, level)) for level in range(edges + 1)])
    state, calls, found = order.init(run), 0, torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    state = state._replace(z=torch.where(free, state.z, x))
    while calls < count and bool(levels(run, state.z).any()):
        said, target = order.plan_step(run, state, calls)
        z = ways.gather(0, target[None])[0]
        for some in said:
            found[some.b, some.i] += transition_log_prob(run, some, z[some.b, some.i], order.force_transition)
        state, calls = State(z, model_time(run, z, state.memo), state.memo), calls + 1
    return Likelihood(found.sum(-1), calls, found)


def check_likelihood(process: ForwardProcess, order: Sampler) -> None:
    """Raises unless texts drawn by this order have a likelihood that can be computed.

    It takes an order without chance, a start at the mask, levels that move on their own, and one way only from the mask
    down to each word: with xi < 1 a word comes from several clusters, and the sum over all ways of a text is
    exponentially long.

    Raises:
        TypeError: a sampler that is no order; a process that has no such levels, or several ways to a word.
        ValueError: an order with chance; a process that does not start at the mask.
    """
    if not isinstance(order, OrderedSampler):
        raise TypeError(
            f"order is {order!r}, must be a sampler that chooses by the states alone which position goes next, such as "
            f"Confidence() or LeftToRight(): of others a text has no likelihood in closed form; {_INSTEAD}"
        )
    require(
        order.deterministic,
        f"order is {order!r}, must choose without chance: a likelihood would be the mean over all its choices; "
        f"{_INSTEAD}",
    )
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64, device=process.device)
    if not isinstance(process, LevelProcess):
        raise TypeError(
            f"an exact likelihood needs a process with levels, {process!r} has none: its words may be wrong and drawn "
            f"again, so that many ways lead to a text; {_INSTEAD}"
        )
    chances = process.level_transition(*ends[:, None])
    top = len(process.levels) - 1
    crossed = [j for j in range(1, top + 1) if not process.subtree_logits_suffice(j, j - 1)]
    if crossed:
        raise TypeError(
            f"an exact likelihood needs one way down to each word, in {process!r} tokens may leave their cluster, as "
            f"where xi < 1: what is in level {crossed[0] - 1} may come from several states of level {crossed[0]}; "
            f"{_INSTEAD}"
        )
    late = 1 - float(chances[0, 0, -1])
    require(
        process.levels[-1] == 1 and (process.exact_ends or late <= 0),
        f"an exact likelihood needs a process that starts at the mask alone, {process!r} has {late:.3g} of its tokens "
        f"below it at t = 1; {_INSTEAD}",
    )

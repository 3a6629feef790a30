"""Exact likelihood of sequences under ordered samplers whose order is a function of the states."""

from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from ddlib.parameterization.logits import Parameterization
from ddlib.processes import ForwardProcess, LevelProcess, unchanged
from ddlib.samplers import Confidence, OrderedSampler, Sampler, SamplingContext, State
from ddlib.samplers.base import level_process
from ddlib.samplers.ordered import levels, model_time
from ddlib.samplers.runtime.model import ModelWrapper
from ddlib.samplers.runtime.reverse_step import transition_log_prob
from ddlib.typing import Denoiser, PaddingMask, Tokens
from ddlib.utils.validation import check_count, check_devices, check_padding, check_shape, require

_INSTEAD = "ddlib.bound has an upper bound of -log p(x) for every process"


class Likelihood(NamedTuple):
    """Log-likelihood of every sequence, and its cost."""

    log_likelihood: Float64[Tensor, "B"]
    """(B,) in nats per sequence."""
    calls: int
    """Number of network calls for the batch."""
    per_position: Float64[Tensor, "B L"]
    """(B, L) term of each position in nats, given the earlier ones in the order; 0 at given positions and padding."""


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
    r"""Compute the exact log-probability of each sequence under ``sample`` with this order and number of steps.

    .. math:: \log p(x) = \sum_{k} \sum_{l \in A_k} \log \pi(a(x_l) \mid z_l, p(\cdot | z^k))

    A_k are the positions that descend in step k, a(x_l) is the ancestor of the token in the level that its position
    descends to, and pi the distribution over the states of that level. The order chooses positions from the current
    states, as in sampling, independently of x. The probabilities thus sum to one over all sequences (DUEL, arXiv
    2603.01367, for masks; here for every tree, theory section 10).

    One edge at a time takes one network call for each of the n L edges of a sequence. With fewer ``steps``, or orders
    that select several positions, these are drawn independently. This is another model of sequences, and its likelihood
    is exact too.

    Args:
        process: masks, or levels whose tokens stay in their cluster.
        denoiser: ``(z, t) -> logits`` as ``sample`` takes it; put a module into ``eval()`` first.
        x: (B, L) tokens.
        order: a sampler with a deterministic order, such as ``LeftToRight()``; default ``Confidence()``.
        steps: maximal number of network calls; default the number of edges of a sequence.
        mask: (B, L) bool, True at real tokens, False at padding. Padding has no term and is fixed from the
            beginning, like tokens that are ``given``. The result is log p(real tokens | padding), and log p(real
            tokens) if the denoiser ignores padding. 0 for a sequence without real tokens.
        given: (B, L) bool, True at tokens that are fixed from the beginning, as a prompt; the result is log p(x |
            given).
        parameterization: meaning of the logits, as in ``nelbo``; by default the denoiser's attribute of that name, or
            "cavity" without one.
        compact: as in ``sample``.

    Raises:
        TypeError, ValueError: before the network runs: invalid x, mask, given or steps; a sampler without an order, or
            with a random one; a process without levels, with tokens that leave their cluster (xi < 1), or that does not
            start at the mask alone. Logits as in ``nelbo``.

    Example:
        >>> import ddlib as dd
        >>> process, uniform = dd.presets.mdlm(4), lambda z, t: torch.zeros(*z.shape, 4)
        >>> result = likelihood(process, uniform, torch.tensor([[0, 3, 1]]))
        >>> result.log_likelihood.exp(), result.calls  # one of 4^3 sequences
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
    check_padding(x, mask)
    if mask is not None:
        free = free & mask
    edges = len(process.levels) - 1
    count = max(1, edges * int(free.sum(-1).max())) if steps is None else check_count("steps", steps)

    network = ModelWrapper(process, denoiser, parameterization, compact)
    times = torch.linspace(1, 0, count + 1, dtype=torch.float64, device=x.device)
    # the prior is deterministic, but init draws from it: a separate generator leaves the caller's unchanged
    run = SamplingContext(process, network, unchanged, times, free, torch.Generator(x.device))
    ancestors = torch.stack([level_process(run).ascend(x, torch.full_like(x, level)) for level in range(edges + 1)])
    state, calls, terms = order.init(run), 0, torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    state = state._replace(z=torch.where(free, state.z, x))
    while calls < count and bool(levels(run, state.z).any()):
        predictions, target = order.plan_step(run, state, calls)
        z = ancestors.gather(0, target[None])[0]
        for part in predictions:
            terms[part.b, part.i] += transition_log_prob(run, part, z[part.b, part.i], order.force_transition)
        state, calls = State(z, model_time(run, z, state.memo), state.memo), calls + 1
    return Likelihood(terms.sum(-1), calls, terms)


def check_likelihood(process: ForwardProcess, order: Sampler) -> None:
    """Raise unless sequences drawn in this order have a likelihood that can be computed.

    This requires a deterministic order, a start at the mask, levels that do not depend on the network, and a single
    path from the mask to each token. With xi < 1 a token has several paths through different clusters, and the sum over
    all paths of a sequence has exponentially many terms.

    Raises:
        TypeError: a sampler without an order; a process without such levels, or with several paths to a token.
        ValueError: a random order; a process that does not start at the mask.
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

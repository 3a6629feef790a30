"""Exact likelihood of sequences under ordered samplers whose order is a function of the states."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, cast

import torch
from jaxtyping import Bool, Float64, Int64
from torch import Tensor

from ddlib.paces import Pace, Together
from ddlib.parameterization.logits import Parameterization
from ddlib.processes import ForwardProcess, LevelProcess, identity
from ddlib.processes.base import Component
from ddlib.samplers import Confidence, Ordered, Sampler, SamplingContext, State
from ddlib.samplers.base import level_process
from ddlib.samplers.control import NetworkControl, SamplingCall
from ddlib.samplers.ordered import levels, model_time
from ddlib.samplers.runtime.context import unknown_state
from ddlib.samplers.sampling import plan
from ddlib.samplers.state_draws import transition_log_prob
from ddlib.typing import Denoiser, GivenTokens, PaddingMask, Tokens
from ddlib.utils.validation import check_count, check_given, check_padding, require

_INSTEAD = "ddlib.bound computes an upper bound of -log p(x) for every process"


class Likelihood(NamedTuple):
    """Log-likelihood of every sequence, and its cost."""

    log_likelihood: Float64[Tensor, "B"]
    """(B,) in nats per sequence."""
    calls: int
    """Number of network calls for the batch."""
    per_position: Float64[Tensor, "B L"]
    """(B, L) term of each position in nats, given the earlier ones in the order; 0 at given
    positions and padding.
    """

    @staticmethod
    def check(process: ForwardProcess, order: Sampler) -> None:
        """Raise TypeError or ValueError unless ``likelihood`` has a closed form for this order."""
        check_likelihood(process, order)


@torch.no_grad()
def likelihood(
    process: ForwardProcess,
    denoiser: Denoiser,
    x: Tokens,
    order: Sampler | None = None,
    *,
    steps: int | None = None,
    group: int | None = None,
    pace: Pace | None = None,
    mask: PaddingMask | None = None,
    given: GivenTokens | None = None,
    parameterization: Parameterization | None = None,
    controls: Sequence[NetworkControl] = (),
) -> Likelihood:
    r"""Compute the exact log-probability of each sequence under ``sample`` with this order and
    number of steps.

    .. math:: \log p(x) = \sum_{k} \sum_{l \in A_k} \log \pi(a(x_l) \mid z_l, p(\cdot | z^k))

    A_k are the positions that descend in step k, a(x_l) is the ancestor of the token in the level
    that its position descends to, and pi the distribution over the states of that level. The order
    chooses positions from the current states, as in sampling, independently of x. The probabilities
    thus sum to one over all sequences (DUEL, arXiv 2603.01367, for masks; here for every tree,
    theory section 10).

    One edge at a time takes one network call for each of the n L edges of a sequence. With fewer
    ``steps``, a ``group``, or orders that select several positions, these are drawn independently.
    This is another model of sequences, and its likelihood is exact too;
    ``ddlib.contrib.order_costs`` measures what it loses.

    Args:
        process: masks, or levels whose tokens stay in their cluster.
        denoiser: ``(z, t) -> logits`` as ``sample`` takes it; put a module into ``eval()`` first.
        x: (B, L) tokens.
        order: a sampler with a deterministic order, such as ``LeftToRight()``; default
            ``Confidence()``.
        steps: maximal number of network calls; default the number of edges of a sequence, which
            must be equal for all sequences if the order depends on the times of the steps. Along a
            pace, for each block.
        group: number of positions that descend an edge per network call, in place of ``steps``;
            more where the order selects more. If it divides the number of positions, this is the
            model of ``sample`` with fewer steps.
        pace: ``Blocks`` for sequences drawn block by block, each in this order, as in ``sample``;
            the denoiser then takes times (B, L). None for the whole sequence.
        mask: (B, L) bool, True at real tokens, False at padding. Padding has no term and is fixed
            from the beginning, like tokens that are ``given``. The result is log p(real tokens |
            padding), and log p(real tokens) if the denoiser ignores padding. 0 for a sequence
            without real tokens.
        given: (B, L) bool, True at tokens that are fixed from the beginning, as a prompt; the
            result is log p(x | given).
        parameterization: meaning of the logits, as in ``nelbo``; by default the denoiser's
            attribute of that name, or "cavity" without one.
        controls: of the network alone, such as ``Cache`` and ``WholeBatch``. With an approximate
            cache the result is the exact likelihood under ``sample`` with this cache.

    Raises:
        TypeError, ValueError: before the network runs: invalid x, mask, given, steps or group; a
            sampler without an order, or with a random one; a process without levels, with tokens
            that leave their cluster (xi < 1), or that does not start at the mask alone; a pace that
            does not go block by block, or that the length or the denoiser does not support. Logits
            as in ``nelbo``.

    Example:
        >>> import ddlib as dd
        >>> process, uniform = dd.presets.mdlm(4), lambda z, t: torch.zeros(*z.shape, 4)
        >>> result = likelihood(process, uniform, torch.tensor([[0, 3, 1]]))
        >>> result.log_likelihood.exp(), result.calls  # one of 4^3 sequences
        (tensor([0.0156], dtype=torch.float64), 3)
    """
    order = Confidence() if order is None else order
    require(
        steps is None or group is None,
        f"steps is {steps} and group is {group}, only one may be given",
    )
    free = free_positions(process, x, order, mask, given)
    call = plan_reading(process, denoiser, x, order, pace, parameterization, controls)
    x = process.tokens_as_states(x)
    calls = 0
    terms = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
    for here, run in block_runs(call, x, free, steps, group):
        for step in read_steps(cast(Ordered, order), run, x[:, here], group):
            terms[:, here] += step.log_probs
            calls += 1
    return Likelihood(terms.sum(-1), calls, terms)


class Step(NamedTuple):
    """A step of an order along given tokens."""

    state: State
    target: Int64[Tensor, "B L"]
    """Levels after the step."""
    preference: Float64[Tensor, "B L"]
    log_probs: Float64[Tensor, "B L"]
    """Terms of the positions that descend, 0 at others."""


def read_steps(
    order: Ordered, run: SamplingContext, x: Tokens, group: int | None
) -> Iterator[Step]:
    """Evaluate the order along given tokens, step by step, until all positions are tokens."""
    ancestors = ancestors_of(run, x)
    state = order.init(run)
    state = state._replace(z=torch.where(run.free, state.z, x))
    for k in range(run.steps):
        if not bool(levels(run, state.z).any()):
            return
        predictions, target, preference = order.plan_step(run, state, k, group=group)
        z = ancestors.gather(0, target[None])[0]
        terms = torch.zeros(x.shape, dtype=torch.float64, device=x.device)
        for part in predictions:
            terms[part.b, part.i] = transition_log_prob(
                part, z[part.b, part.i], order.force_transition
            )
        yield Step(state, target, preference, terms)
        state = State(z, model_time(run, z, state.memo), state.memo)


def free_positions(
    process: ForwardProcess,
    x: Tokens,
    order: Sampler,
    mask: PaddingMask | None,
    given: GivenTokens | None,
) -> Bool[Tensor, "B L"]:
    """Check the arguments and return True at the tokens that have a term."""
    check_likelihood(process, order)
    process.check_inputs(x=x)
    check_padding(x, mask)
    check_given(x, mask, given)
    free = torch.ones_like(x, dtype=torch.bool) if given is None else ~given
    return free if mask is None else free & mask


def plan_reading(
    process: ForwardProcess,
    denoiser: Denoiser,
    x: Tokens,
    order: Sampler,
    pace: Pace | None,
    parameterization: Parameterization | None,
    controls: Sequence[NetworkControl],
) -> SamplingCall:
    """Return the checked call of ``sample`` whose sequences are read, prepared by its controls."""
    if isinstance(pace, Pace) and pace.block is None and not isinstance(pace, Together):
        raise TypeError(
            f"pace is {pace!r}, must be block by block from left to right, such as Blocks(32), or "
            "None: use the sampler InOrder(pace) for another order of positions"
        )
    for each in controls:
        if not isinstance(each, NetworkControl):
            raise TypeError(
                f"controls holds {each!r}, must hold Cache or WholeBatch objects: others change "
                "the distribution of the sequences"
            )
    call: SamplingCall = plan(
        process,
        denoiser,
        tuple(x.shape),
        order,
        pace=pace,
        parameterization=parameterization,
        controls=controls,
    )
    for control in call.controls:
        call = control.prepare(call)
    return call


def block_runs(
    call: SamplingCall,
    x: Tokens,
    free: Bool[Tensor, "B L"],
    steps: int | None,
    group: int | None,
) -> Iterator[tuple[slice, SamplingContext]]:
    """Yield the positions of each block in which a token has a term, with the context of its
    steps.
    """
    process = call.process
    order = call.sampler
    length = x.shape[1]
    size = call.pace.block or length
    if group is not None:
        what = "sequence" if size == length else "block"
        require(
            check_count("group", group) <= size,
            f"group is {group}, must be at most {size}, the length of a {what}",
        )
    contexts = call.block_contexts(call.network, size)
    # the mask of each position, whatever is drawn
    noise = process.sample_prior(x.shape, torch.Generator(x.device), x.device)
    for start in range(0, length, size):
        here = slice(start, start + size)
        later = slice(start + size, None)
        free_here = free[:, here]
        fewest, most = (int(end) for end in free_here.sum(-1).aminmax())
        require(
            not order.guarantees.by_times
            or steps is not None
            or group is not None
            or fewest == most,
            f"steps is None, must be given: {order!r} depends on the times of the steps, and the "
            "sequences have from "
            f"{fewest} to {most} positions to draw",
        )
        edges = max(1, (len(process.levels) - 1) * most)
        times = torch.linspace(
            1, 0, (check_count("steps", edges if steps is None else steps)) + 1, dtype=torch.float64
        )
        if call.pace.block is None:
            block = call.network
        elif not bool(free_here.any()):
            continue
        else:  # as sample draws them: noise at time 1 behind a block, and given tokens at time 0
            behind, after = (
                torch.where(free[:, later], v, x[:, later])
                for v in (noise[:, later], unknown_state(process))
            )
            block = call.network.within(
                contexts.at(
                    x[:, :start], ~free_here, after, behind, free[:, later].to(torch.float64)
                )
            )
        # init consumes random numbers although the prior is deterministic: a separate generator for
        # them
        generator = torch.Generator(x.device)
        yield (
            here,
            SamplingContext(
                process.at_positions(here),
                block,
                identity,
                times.to(x.device),
                free_here,
                generator,
            ),
        )


def ancestors_of(run: SamplingContext, x: Tokens) -> Int64[Tensor, "n B L"]:
    """Return the ancestor of each token in every level, starting with the token itself."""
    process = level_process(run)
    return torch.stack(
        [process.ascend(x, torch.full_like(x, level)) for level in range(len(process.levels))]
    )


def check_likelihood(process: ForwardProcess, order: Sampler) -> None:
    """Raise unless sequences drawn in this order have a likelihood that can be computed.

    This requires a deterministic order, a start at the mask, levels that do not depend on the
    network, and a single path from the mask to each token. With xi < 1 a token has several paths
    through different clusters, and the sum over all paths of a sequence has exponentially many
    terms.

    Raises:
        TypeError: a sampler without an order; a process without such levels, or with several paths
            to a token.
        ValueError: a random order, or one that edits tokens; a process that does not start at the
            mask.
    """
    if not isinstance(order, Ordered):
        raise TypeError(
            f"order is {order!r}, must be a sampler that chooses the next position by the states "
            "only, such as "
            "Confidence() or LeftToRight(): with others the likelihood of a sequence has no "
            f"closed form; {_INSTEAD}"
        )
    require(
        order.deterministic,
        f"order is {order!r}, must choose positions deterministically: otherwise a likelihood is "
        "the mean over all "
        f"choices; {_INSTEAD}",
    )
    require(
        order.guarantees.keeps_tokens,
        f"order is {order!r}, must keep drawn tokens: where edit replaces some, many paths end at "
        "the same sequence; "
        f"{_INSTEAD}",
    )
    for component in process.components:
        _check_component(component)


def _check_component(component: Component) -> None:
    """Raise unless a process has a closed-form likelihood."""
    process = component.process
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64, device=process.device)
    if not isinstance(process, LevelProcess):
        raise TypeError(
            f"an exact likelihood needs a process with levels, {component!r} has none: its tokens "
            "may be wrong and "
            f"drawn again, so many paths end at the same sequence; {_INSTEAD}"
        )
    chances = process.level_transition(*ends[:, None])
    top = len(process.levels) - 1
    crossed = [j for j in range(1, top + 1) if not process.subtree_logits_suffice(j, j - 1)]
    if crossed:
        raise TypeError(
            f"an exact likelihood needs one path from the mask to each token, in {component!r} "
            "tokens may leave their "
            f"cluster, as with xi < 1: a state in level {crossed[0] - 1} may have several parents "
            "in level "
            f"{crossed[0]}; {_INSTEAD}"
        )
    late = 1 - float(chances[0, 0, -1])
    require(
        process.levels[-1] == 1,
        f"an exact likelihood needs a process with one mask, {component!r} has "
        f"{process.levels[-1]}: which of them each "
        f"position starts at is random; {_INSTEAD}",
    )
    require(
        process.exact_ends or late <= 0,
        f"an exact likelihood needs a process with only masks at t = 1, {component!r} has a share "
        f"of {late:.3g} of its "
        f"tokens below the mask; {_INSTEAD}",
    )

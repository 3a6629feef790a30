"""States that a step draws, given the network's output and the uniforms of the step."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self, cast

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from ddlib.hierarchies.base import descendant_logits
from ddlib.processes import LevelProcess, identity
from ddlib.samplers.runtime.model import Model, Predictions
from ddlib.samplers.runtime.output_layer import distinct_pairs
from ddlib.typing import Sharpen, Tokens
from ddlib.utils.categorical import draw_logits
from ddlib.utils.validation import check_finite

_ROWS = 64
"""Number of token distributions that are computed at a time."""


class Noise(NamedTuple):
    """Uniforms of the states that a step draws, for all positions of the batch.

    They are drawn before the network is evaluated, and in every step. So those of a position depend
    neither on the other positions nor on the number of jumps.
    """

    state: Float64[Tensor, "*n"]
    """For a state that is drawn at once, and for the first child below the mask."""
    children: Float64[Tensor, "*n K"]
    """For the children below that one; K = 0 where no position descends several edges by them."""

    def take(self, *index: Tensor) -> Self:
        """Select the uniforms of some positions."""
        return type(self)(self.state[index], self.children[index])


class Draws(ABC):
    """Distribution of the states that a step draws, given the network's output.

    Reverse steps and ``Ordered`` draw by ``SamplingContext.draws``; a control that replaces it in
    ``prepare`` draws the positions of a sequence jointly.
    """

    def num_child_draws(self, network: Model, force: bool) -> int:
        """Return the number of uniforms of a position besides the first, 0 by default."""
        return 0

    @abstractmethod
    def states(
        self,
        predictions: Iterable[Predictions],
        z: Tokens,
        target: Int64[Tensor, "B L"],
        noise: Noise,
        force: bool,
        sharpen: Sharpen,
    ) -> Iterator[tuple[Predictions, Int64[Tensor, "N"]]]:
        """Draw the states at the positions of the predictions.

        Args:
            predictions: model output at the positions that descend; to be iterated once.
            z: (B, L) states before the step.
            target: (B, L) new levels.
            noise: uniforms at all positions, (B, L).
            force: see ``ForwardProcess.sample_given_level``.
            sharpen: temperature and truncation.

        Yields:
            the predictions of N positions, and the states (N,) that are drawn there.
        """

    @abstractmethod
    def log_probs(
        self,
        predictions: Sequence[Predictions],
        z: Tokens,
        target: Int64[Tensor, "B L"],
        force: bool,
    ) -> Iterator[tuple[Int64[Tensor, "n"], Int64[Tensor, "n"], Float[Tensor, "n K"]]]:
        """Compute the distribution of the state at each position, given the states of the others,
        without temperature and truncation.

        Yields:
            some of the positions of the predictions, as rows and columns (n,) each, and their
            normalised log-probabilities (n, K).
        """


@dataclass(frozen=True)
class Independent(Draws):
    """Draws that are independent given the network's output."""

    def num_child_draws(self, network: Model, force: bool) -> int:
        return network.num_child_draws(force)

    def states(
        self,
        predictions: Iterable[Predictions],
        z: Tokens,
        target: Int64[Tensor, "B L"],
        noise: Noise,
        force: bool,
        sharpen: Sharpen,
    ) -> Iterator[tuple[Predictions, Int64[Tensor, "N"]]]:
        for part in predictions:
            to = target[part.b, part.i]
            own = _draw(part, to, noise.take(part.b, part.i), force, sharpen)
            yield part, part.as_states(own)

    def log_probs(
        self,
        predictions: Sequence[Predictions],
        z: Tokens,
        target: Int64[Tensor, "B L"],
        force: bool,
    ) -> Iterator[tuple[Int64[Tensor, "n"], Int64[Tensor, "n"], Float[Tensor, "n K"]]]:
        for part in predictions:
            for rows, _, _, log_probs in child_log_probs(part, target[part.b, part.i], force):
                yield part.b[rows], part.i[rows], log_probs


def child_log_probs(
    predictions: Predictions,
    target: Int64[Tensor, "N"],
    force: bool,
    sharpen: Sharpen = identity,
) -> Iterator[tuple[Int64[Tensor, "n"], int, Int64[Tensor, "n K"], Float[Tensor, "n K"]]]:
    """Compute the distributions over states in lower levels.

    Args:
        predictions: model output at N positions.
        target: (N,) level to which each position descends, below its own.
        force: see ``ForwardProcess.sample_given_level``.
        sharpen: temperature and truncation, by default none.

    Yields:
        chunks of positions with the same levels, small enough for the processor's cache: their
        indices among the N (n,), the first state of the target level, the reachable members of that
        level (n, K), and their normalised log-probabilities (n, K). Child logits alone are used for
        descents by one level of the output's tree.
    """
    process = predictions.network.process
    by_tree = predictions.network.can_descend_tree(force, single=True)
    level = process.level_of(predictions.z[:, None])[:, 0]
    for j, i in distinct_pairs(level, target)[0]:
        rows = ((level == j) & (target == i)).nonzero()[:, 0]
        some = predictions if len(rows) == len(level) else predictions.take(rows)
        first = sum(process.levels[:i])
        members, scores = _descents(some, j, i, by_tree, force)
        for part in (slice(start, start + _ROWS) for start in range(0, len(rows), _ROWS)):
            yield rows[part], first, members[part], sharpen(scores(part)).log_softmax(-1)


def _descents(
    predictions: Predictions,
    level: int,
    target: int,
    by_tree: Tensor,
    force: bool,
) -> tuple[Int64[Tensor, "n K"], Callable[[slice], Float[Tensor, "n K"]]]:
    """Return the reachable members, and the function of a chunk that computes their logits."""
    network = predictions.network
    levels = network.process.levels
    if bool(by_tree[level, target]):
        parent = predictions.z - sum(levels[:level])
        logits, members = predictions.family(network.tree_levels[target], parent)
    elif target == 0 and network.can_restrict_columns(level, force):
        logits, members = predictions.under()
    else:
        z = predictions.z
        tokens = predictions.token_logits(torch.full_like(predictions.z, target), force)[:, 0]
        whole = torch.arange(levels[target], device=z.device).expand(len(z), -1)
        hierarchy = _process(predictions).hierarchy
        return whole, lambda part: descendant_logits(
            hierarchy, tokens[part], z[part], level, target, force
        )
    check_finite(logits)
    return members, logits.__getitem__


def transition_log_prob(
    predictions: Predictions,
    states: Int64[Tensor, "N"],
    force: bool,
    sharpen: Sharpen = identity,
) -> Float64[Tensor, "N"]:
    """Compute the log-probability of descending to the given states in lower levels.

    Args:
        predictions: model output at N positions.
        states: (N,) states in lower levels.
        force: see ``ForwardProcess.sample_given_level``.
        sharpen: temperature and truncation, by default none.

    Returns:
        (N,) in nats, -inf at unreachable states.
    """
    result = torch.zeros(len(states), dtype=torch.float64, device=states.device)
    states = states - predictions.network.first_state
    target = predictions.network.process.level_of(states[:, None])[:, 0]
    for rows, first, members, log_probs in child_log_probs(predictions, target, force, sharpen):
        drawn = members == states[rows, None] - first
        result[rows] = torch.where(drawn, log_probs.to(torch.float64), -torch.inf).amax(-1)
    return result


def _process(predictions: Predictions) -> LevelProcess:
    """Return the process of the network, typed as one with levels."""
    return cast(LevelProcess, predictions.network.process)


def _draw(
    part: Predictions, target: Int64[Tensor, "N"], noise: Noise, force: bool, sharpen: Sharpen
) -> Int64[Tensor, "N"]:
    """Draw states from child to child where child logits suffice, else from token
    distributions.
    """
    by_tree = part.network.can_descend_tree(force, single=not noise.children.shape[-1])
    if not bool(by_tree.any()):
        return _by_tokens(part, target, noise, force, sharpen)
    children = by_tree[part.network.process.level_of(part.z), target]
    result = part.z.clone()
    if bool(children.any()):
        result[children] = _by_children(
            part.take(children), target[children], noise.take(children), sharpen
        )
    others = ~children
    if bool(others.any()):
        result[others] = _by_tokens(
            part.take(others), target[others], noise.take(others), force, sharpen
        )
    return result


def _by_tokens(
    part: Predictions, target: Int64[Tensor, "N"], noise: Noise, force: bool, sharpen: Sharpen
) -> Int64[Tensor, "N"]:
    """Draw states from token distributions."""
    return _process(part).descend(
        part.token_logits(target, force)[:, 0],
        part.z,
        target,
        noise.state,
        force=force,
        sharpen=sharpen,
    )


def _by_children(
    part: Predictions, target: Int64[Tensor, "N"], noise: Noise, sharpen: Sharpen
) -> Int64[Tensor, "N"]:
    """Draw states from child to child down the output's tree.

    Only the children on the path are evaluated.
    """
    hierarchy = _process(part).hierarchy
    tree_levels = torch.tensor(part.network.tree_levels, device=part.z.device)
    level = hierarchy.level_of(part.z)
    member = part.z - hierarchy.starts[level]
    top = tree_levels[level]
    bottom = tree_levels[target]
    below = noise.children.shape[-1]
    for at in range(int(top.max()) - 1, int(bottom.min()) - 1, -1):
        moving = (at < top) & (at >= bottom)
        if not bool(moving.any()):
            continue
        logits, members = part.take(moving).family(at, member[moving])
        check_finite(logits)
        u = noise.state
        if below:  # the first child below a state has the first uniform, at every level
            u = torch.where(top - 1 == at, u, noise.children[:, min(at, below - 1)])
        child = draw_logits(sharpen(logits), u[moving])
        member[moving] = members.gather(1, child[:, None])[:, 0]
    return member + hierarchy.starts[target]

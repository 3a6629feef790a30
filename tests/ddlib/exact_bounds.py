"""The exact bound of a few tokens as a function of the speeds, for networks without a time."""

import torch

from ddlib.testing.oracle import tanh_sinh

F64 = torch.float64
PAIR = torch.tensor(
    [
        [0.24, 0.01, 0.02, 0.03],
        [0.02, 0.16, 0.03, 0.01],
        [0.03, 0.05, 0.20, 0.02],
        [0.01, 0.02, 0.03, 0.12],
    ],
    dtype=F64,
)
PAIR = PAIR / PAIR.sum()


def costs(process, probs, network):
    """Mean cost of each position where the positions are in given levels, (levels,) * L + (L,).

    The divergence of a position depends neither on the time nor on the speeds: these numbers are
    computed once.
    """
    length = probs.ndim
    half = torch.tensor([0.5], dtype=F64)
    states = torch.cartesian_prod(*[torch.arange(process.num_states)] * length).view(-1, length)
    words = torch.cartesian_prod(*[torch.arange(process.vocab_size)] * length).view(-1, length)
    x = words.repeat_interleave(len(states), 0)
    z = states.repeat(len(words), 1)
    t = half.expand(len(x))
    with torch.no_grad():
        level = process.level_of(z)
        reached = process.likelihood(z, x, t) / process.occupancies(t).gather(1, level)
        mass = probs.flatten().repeat_interleave(len(states)) * reached.prod(1)
        kept = mass > 0
        x, z, t, level, mass = (each[kept] for each in (x, z, t, level, mass))
        divergence = process.weighted_divergence(network(z, t), x, z, t)[1]
        count = process.hierarchy.depth + 1
        pattern = (level * count ** torch.arange(length - 1, -1, -1)).sum(1)
        found = torch.zeros(count**length, length, dtype=F64).index_add_(
            0, pattern, mass[:, None] * divergence
        )
    return found.view(*[count] * length, length)


def exact(process, found, points=90):
    """The bound in nats per token by what ``costs`` found, with gradients by the speeds."""
    nodes, weights = tanh_sinh(points)
    length = found.shape[-1]
    occupancies = process.occupancies(nodes)
    paid = process.weights(nodes)
    paid = torch.where(torch.arange(paid.shape[1]) > 0, paid, 0.0)
    total = torch.zeros((), dtype=F64)
    for place in range(length):
        mean = found[..., place].expand(len(nodes), *found.shape[:-1])
        for other in reversed(range(length)):
            by = occupancies * paid if other == place else occupancies
            mean = (mean * by.view(len(nodes), *[1] * (mean.ndim - 2), -1)).sum(-1)
        total = total + (weights * mean).sum()
    return total / length


def entropy(probs):
    """Entropy of a sequence, in nats per token."""
    return float(-torch.xlogy(probs, probs).sum()) / probs.ndim


def texts(probs, number, generator):
    """Sequences drawn from a joint distribution, (number, L)."""
    flat = torch.multinomial(probs.flatten(), number, replacement=True, generator=generator)
    return torch.stack(torch.unravel_index(flat, probs.shape), 1)


def poor_fit():
    """Joint distribution of three tokens out of three, and a network that adds the contributions of
    its neighbours.
    """
    probs = (
        torch.randn(27, generator=torch.Generator().manual_seed(6), dtype=F64)
        .softmax(0)
        .view(3, 3, 3)
    )
    before, after = torch.randn(2, 6, 3, generator=torch.Generator().manual_seed(106), dtype=F64)
    return probs, lambda z, t: before[z.roll(1, 1)] + after[z.roll(-1, 1)]

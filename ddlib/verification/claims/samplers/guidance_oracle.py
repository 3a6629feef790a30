"""The distributions that a guidance steers, told by what it says and by what it is held to: dense, for sequences of two states."""

import torch
from torch import Tensor

from ddlib.guidance import Guidance
from ddlib.parameterization.logits import Parameterization, cavity_logits
from ddlib.processes import ForwardProcess
from ddlib.typing import Denoiser
from ddlib.verification.framework.inputs import at, marginals

LATE, EARLY = 0.5, 0.25
"""A step: exact in float32, which is what networks are told."""
SMALL = 16
"""States of a process all of whose sequences of two are listed."""


def kind(guided: Guidance) -> str:
    """Which distribution is held against another: of a token, of the next jump, or of the state after a step."""
    if guided.step_distribution is not None:
        return "step"
    return "word" if guided.on == "words" else "jump"


def texts(process: ForwardProcess) -> Tensor:
    """All sequences of two states, (N, 2), or some of them."""
    if process.num_states <= SMALL:
        states = torch.arange(process.num_states)
        found = torch.cartesian_prod(states, states)
    else:
        words = torch.randint(process.vocab_size, (64, 2), generator=torch.Generator().manual_seed(0))
        found = process.sample(words, at(LATE, 64), torch.Generator().manual_seed(1))
    return found[(process.token_likelihood(found, at(LATE, len(found))) > 0).any(-1).all(-1)]


def by_level(process: ForwardProcess, law: Tensor, what: str) -> Tensor:
    """Distributions in proportion to these, (N, L, K): within each level where levels at s are not the network's to say."""
    apart = process.level_transition(at(EARLY), at(LATE)) is not None
    if what != "step" or not apart:
        return law / law.sum(-1, keepdim=True).clamp_min(1e-300)
    level = process.level_of(torch.arange(process.num_states)[None])[0]
    total = torch.zeros_like(law)
    for i in range(len(process.levels)):
        total = torch.where(level == i, law[..., level == i].sum(-1, keepdim=True), total)
    return law / total.clamp_min(1e-300)


def told(process: ForwardProcess, denoiser: Denoiser, meaning: Parameterization, z: Tensor, what: str) -> Tensor:
    """The distribution of this kind by what a denoiser says, (N, L, K)."""
    t, s = at(LATE, len(z)), at(EARLY, len(z))
    cavity = cavity_logits(process, denoiser(z, t), z, t, meaning).to(torch.float64).log_softmax(-1)
    if what == "word":
        return (cavity + process.token_likelihood(z, t).log()).softmax(-1)
    law = cavity.exp()
    found = process.reverse_rate(law, z, t) if what == "jump" else process.posterior(law, z, t, s)
    return by_level(process, found, what)


def steered(guided: Guidance, z: Tensor) -> Tensor:
    """The distribution by what a guidance says, (N, L, K)."""
    process, tell = guided.process, guided.step_distribution
    if tell is None:
        return told(process, guided, guided.parameterization, z, kind(guided))
    law = tell(z, at(LATE, len(z)), at(EARLY, len(z)))
    highest = law.amax(-1, keepdim=True)
    return by_level(process, (law - highest).exp(), "step")


def tempered(process: ForwardProcess, conditional: Tensor, unconditional: Tensor, gamma: float, what: str) -> Tensor:
    """In proportion to the one to the power gamma and the other to the power 1 - gamma."""
    law = conditional**gamma * torch.where(unconditional > 0, unconditional, 1.0) ** (1 - gamma)
    return by_level(process, torch.where((conditional > 0) & (unconditional > 0), law, 0.0), what)


def dense(process: ForwardProcess, joint: Tensor, what: str) -> Tensor:
    """The distribution of this kind for sequences of two tokens with a ``joint`` distribution, from all sequences of
    states, (S * S, 2, K).

    From the marginals, the rates and the transition alone: ``reverse_rate`` and ``posterior`` have no part in it.
    """
    noised, size = marginals(process, LATE), process.num_states
    laws = []
    for law in (joint, joint.T):  # what holds for the first position holds for the other
        beside = law @ noised  # p(x) together with the other's state, (V, S)
        if what == "word":
            found = torch.einsum("xz,xo->zox", noised, beside)
        elif what == "jump":
            rates = process.rate_matrix(LATE).fill_diagonal_(0)
            found = torch.einsum("yz,xy,xo->zoy", rates, noised, beside)
        else:
            early = marginals(process, EARLY)
            found = torch.einsum("yz,xy,xo->zoy", process.transition(EARLY, LATE), early, beside)
        laws.append(found)
    first, second = laws
    found = torch.stack([first, second.transpose(0, 1)], 2).reshape(size * size, 2, -1)
    return by_level(process, found, what)

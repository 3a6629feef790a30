"""Test whether a checkpoint's logits are the posterior p(x given z) or the leave-one-out
distribution (cavity).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from ddlib.parameterization.logits import cavity_logits
from ddlib.processes import ForwardProcess
from ddlib.typing import Denoiser, Times, Tokens
from ddlib.utils.categorical import draw
from ddlib.utils.random import Generator, rand
from ddlib.utils.validation import check_count, check_shape, require


@dataclass(frozen=True, repr=False)
class Probe:
    """Change of a token's distribution when the state at its position changes: total variations in
    [0, 1].

    ``cavity`` is 0 for a network that returns the cavity, ``posterior`` for one that returns the
    posterior. A network that is not well trained has neither at 0; the smaller one is the better
    description.
    """

    cavity: Float[Tensor, "B n"]
    """Between the two distributions as returned by the network."""
    posterior: Float[Tensor, "B n"]
    """Between the two distributions without the evidence of the state, if the network returns
    posteriors.
    """

    @property
    def parameterization(self) -> str:
        """The better description of the network, "cavity" or "posterior"."""
        return (
            "cavity" if float(self.cavity.mean()) <= float(self.posterior.mean()) else "posterior"
        )

    def __repr__(self) -> str:
        moved = ", ".join(
            f"read as {name} it moves by {float(value.mean()):.4f}"
            for name, value in vars(self).items()
        )
        return f"Probe({self.parameterization}: {moved})"


@torch.no_grad()
def leave_one_out_probe(
    process: ForwardProcess,
    denoiser: Denoiser,
    x: Tokens,
    t: Times,
    positions: int = 4,
    generator: Generator = None,
) -> Probe:
    r"""Change the states of noisy sequences one at a time and compare the network's outputs at that
    position.

    The cavity :math:`p(x_i | z_j, j \ne i)` does not depend on :math:`z_i`. The posterior is
    :math:`\mathrm{cavity}(x_i)\, q_t(z_i | x_i)`, normalised, so that taking out the evidence gives
    the cavity again. (It is the leave-one-out distribution of arXiv:2605.22765.) The result decides
    which ``parameterization`` makes the bound and the samples of a checkpoint exact.

    Args:
        process: the noise. Under masks the test has no result, as both are the same distribution.
        denoiser: ``(z, t) -> logits`` over tokens.
        x: (B, L) clean tokens.
        t: (B,) times, inside of (0, 1).
        positions: n, number of positions of each sequence, drawn with repetition among those whose
            process has two states that every token can reach; costs n + 1 network calls.
        generator: source of noise.

    Raises:
        TypeError, ValueError: bad tokens or times; a process with fewer than two states that every
            token can reach, in a product at all positions of a sequence.
    """
    process.check_inputs(x=x, t=t)
    check_shape("t", t, (len(x),), "(B,), one time per sequence")
    check_count("positions", positions)
    states = torch.arange(process.num_states, device=x.device)
    possible = states[process.reachable_from_all_tokens(states[None])[0]]
    z = process.sample(x, t, generator)
    component = process.component_of(z)
    own = process.component_of(possible)
    choices = torch.bincount(own, minlength=len(process.components))[component]
    fewest = int(choices.amax(1).min())
    require(
        fewest > 1,
        f"process has {fewest} states that every token can reach, must have at least two, in a "
        "product at a position of each sequence: at a mask the cavity and the posterior are the "
        "same distribution",
    )
    u = rand((len(x), positions), generator, x.device)
    changeable = (choices > 1).to(torch.float64)
    where = draw(changeable[:, None].expand(-1, positions, -1), u)
    others = possible != z.gather(1, where)[..., None]
    inside = own == component.gather(1, where)[..., None]
    alternatives = (others & inside).to(torch.float64)
    instead = possible[draw(alternatives, rand(where.shape, generator, x.device))]
    times = t.to(torch.get_default_dtype())
    before = denoiser(z.clone(), times)  # a copy, since a denoiser may write into its input
    moved = []
    for i, token in zip(where.T, instead.T, strict=True):
        changed = z.scatter(1, i[:, None], token[:, None])
        pairs = (_at(before, i), z), (_at(denoiser(changed.clone(), times), i), changed)
        moved.append(
            torch.stack(
                [
                    _apart(
                        *(
                            cavity_logits(process, out, at.gather(1, i[:, None]), t, kind)
                            for out, at in pairs
                        )
                    )
                    for kind in ("cavity", "posterior")
                ]
            )
        )
    return Probe(*torch.stack(moved, -1))


def _at(logits: Float[Tensor, "B L V"], i: Int64[Tensor, " B"]) -> Float[Tensor, "B 1 V"]:
    return logits[torch.arange(len(i), device=i.device), i][:, None]


def _apart(a: Float[Tensor, "B 1 V"], b: Float[Tensor, "B 1 V"]) -> Float[Tensor, " B"]:
    """Return the total variation between two distributions."""
    return (a.softmax(-1) - b.softmax(-1)).abs().sum(-1)[:, 0] / 2

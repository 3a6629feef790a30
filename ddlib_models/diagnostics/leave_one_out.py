"""Whether a network says what a word is with the evidence of the position's own token, or without it."""

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
    """How far the law of a word moves when the token at its own place changes: total variations in [0, 1].

    Of a network that says the cavity ``cavity`` is 0, of one that says the posterior ``posterior`` is. Neither is of a
    network that is not well trained; the smaller tells what it is nearer to.
    """

    cavity: Float[Tensor, "B n"]
    """Between the two laws as the network says them."""
    posterior: Float[Tensor, "B n"]
    """Between the two laws without the evidence of the token, as if the network had said posteriors."""

    @property
    def parameterization(self) -> str:
        """What the network is nearer to, "cavity" or "posterior"."""
        return "cavity" if float(self.cavity.mean()) <= float(self.posterior.mean()) else "posterior"

    def __repr__(self) -> str:
        moved = ", ".join(f"read as {name} it moves by {float(value.mean()):.4f}" for name, value in vars(self).items())
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
    r"""Changes the tokens of noisy texts one at a time and asks the network again about the same place.

    The cavity :math:`p(x_i | z_j, j \ne i)` does not know :math:`z_i`. The posterior is
    :math:`\mathrm{cavity}(x_i)\, q_t(z_i | x_i)`, normalised, so that it is the cavity again once the evidence is taken
    out. (It is the leave-one-out law of arXiv:2605.22765.) Which of the two a checkpoint says decides the
    ``parameterization`` that its bound and samples are exact with.

    Args:
        process: the noise; of masks there is nothing to tell, where both are the same law.
        denoiser: ``(z, t) -> logits`` over words.
        x: (B, L) clean words.
        t: (B,) times, inside of (0, 1).
        positions: n, how many places of each text are asked about, drawn with repetition; as many calls, and one.
        generator: source of noise.

    Raises:
        TypeError, ValueError: bad words or times; a process with fewer than two states that every word may become.
    """
    process.check_inputs(x=x, t=t)
    check_shape("t", t, (len(x),), "(B,), one time per text")
    check_count("positions", positions)
    states = torch.arange(process.num_states, device=x.device)
    possible = states[process.reachable_from_all_tokens(states[None])[0]]
    require(
        len(possible) > 1,
        f"process has {len(possible)} states that every word may have become, must have two to compare: at a mask the "
        "cavity and the posterior are the same law",
    )
    z = process.sample(x, t, generator)
    where = (rand((len(x), positions), generator, x.device) * x.shape[1]).long()
    others = (possible[None, None] != z.gather(1, where)[..., None]).to(torch.float64)
    instead = possible[draw(others, rand(where.shape, generator, x.device))]
    told = t.to(torch.get_default_dtype())
    before, moved = denoiser(z, told), []
    for i, token in zip(where.T, instead.T, strict=True):
        other = z.scatter(1, i[:, None], token[:, None])
        pairs = (_at(before, i), z), (_at(denoiser(other, told), i), other)
        moved.append(
            torch.stack(
                [
                    _apart(*(cavity_logits(process, said, text.gather(1, i[:, None]), t, law) for said, text in pairs))
                    for law in ("cavity", "posterior")
                ]
            )
        )
    return Probe(*torch.stack(moved, -1))


def _at(logits: Float[Tensor, "B L V"], i: Int64[Tensor, " B"]) -> Float[Tensor, "B 1 V"]:
    return logits[torch.arange(len(i), device=i.device), i][:, None]


def _apart(a: Float[Tensor, "B 1 V"], b: Float[Tensor, "B 1 V"]) -> Float[Tensor, " B"]:
    """The total variation between two laws."""
    return (a.softmax(-1) - b.softmax(-1)).abs().sum(-1)[:, 0] / 2

"""The loops that LLaDA and Dream publish, word for word, by ddlib's sampler: how many come down
when, and which.

Both loops are written anew here from their descriptions, over masks, at temperature 0.
"""

from itertools import pairwise

import pytest
import torch

import ddlib as dd
from ddlib.testing import check
from ddlib_models import hub

V = 7
L = 12


class Table(torch.nn.Module):
    """A network whose logits at a position depend on the position and on all other states.

    It may stand to the left.
    """

    def __init__(self, shift: int = 0):
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.place, self.mix = (
            2 * torch.randn(L, V, generator=generator),
            torch.randn(V + 1, V, generator=generator),
        )
        self.shift = shift

    def forward(self, z, t):
        context = self.mix[z].sum(1, keepdim=True) - self.mix[z]
        logits = self.place + 0.5 * context
        return torch.cat([logits[:, self.shift :], logits[:, : self.shift]], 1)


class Unshifted(torch.nn.Module):
    """The same without an attribute for its shift, as a third-party network."""

    def __init__(self, shift):
        super().__init__()
        self.table = Table(shift)

    def forward(self, z, t):
        return self.table(z, t)


def denoiser(shift=0):
    return hub.Adapted(
        Unshifted(shift), hub.Special(V, None, None, None, None, None, (), ()), shift
    )


def llada(x, prompt, block, steps):
    """In each block an even split over its steps, first those whose likeliest word is likeliest."""
    x = x.clone()
    network = Table()
    blocks = (L - prompt) // block
    for start in range(prompt, L, block):
        end = start + block
        each = steps // blocks
        masks = (x[:, start:end] == V).sum(1)
        for i in range(each):
            sure, token = network(x, None).softmax(-1).max(-1)
            sure[:, end:] = -1
            sure[x != V] = -1
            for row in range(len(x)):
                number = int(masks[row]) // each + (i < int(masks[row]) % each)
                best = sure[row].topk(number).indices
                x[row, best] = token[row, best]
    return x


@pytest.mark.parametrize(
    ("prompt", "block", "steps"),
    [(0, L, 5), (0, L, L), (0, L, 20), (0, 4, 6), (4, 4, 4)],
)
def test_lladas_loop(prompt, block, steps):
    x = torch.full((3, L), V)
    x[:, :prompt] = torch.randint(V, (3, prompt), generator=torch.Generator().manual_seed(0))
    pace = None if block == L else dd.paces.Blocks(block)
    tokens = dd.sample(
        dd.presets.mdlm(V),
        denoiser(),
        (3, L),
        dd.samplers.Confidence("probability"),
        steps=steps * block // (L - prompt),
        prompt=x[:, :prompt],
        temperature=0.0,
        pace=pace,
    )
    assert torch.equal(tokens, llada(x, prompt, block, steps))


SCORES = {
    "maskgit_plus": ("probability", lambda p: p.amax(-1)),
    "topk_margin": ("margin", lambda p: p.topk(2).values[..., 0] - p.topk(2).values[..., 1]),
    "entropy": ("entropy", lambda p: (p * (p + 1e-10).log()).sum(-1)),
}


def dream(x, steps, score, eps=1e-3):
    """A share 1 - s / t of the remaining masks, rounded down, at the times from 1 to eps.

    All in the last step.
    """
    x = x.clone()
    network = Table(1)
    times = torch.linspace(1, eps, steps + 1)
    came = []
    for i in range(steps):
        masks = (x == V).nonzero()[:, 1]
        logits = network(x, None)
        probs = torch.cat([logits[:, :1], logits[:, :-1]], 1)[0, masks].softmax(-1)
        share = float(1 - times[i + 1] / times[i]) if i < steps - 1 else 1
        best = score(probs).topk(int(len(masks) * share)).indices
        x[0, masks[best]] = probs[best].argmax(-1)
        came.append(len(best))
    return x, came


@pytest.mark.parametrize("name", SCORES)
@pytest.mark.parametrize(("prompt", "steps"), [(0, 4), (3, 5), (0, L), (2, 30)])
def test_dreams_loop(name, prompt, steps):
    x = torch.full((1, L), V)
    x[:, :prompt] = torch.randint(V, (1, prompt), generator=torch.Generator().manual_seed(0))
    ours, theirs = SCORES[name]
    want, came = dream(x, steps, theirs)
    times = torch.cat(
        [torch.linspace(1, 1e-3, steps + 1, dtype=torch.float64)[:-1], torch.zeros(1)]
    )
    seen = []
    tokens = dd.sample(
        dd.presets.mdlm(V),
        denoiser(1),
        (1, L),
        dd.samplers.Confidence(ours, per_step="expected"),
        steps=times,
        prompt=x[:, :prompt],
        temperature=0.0,
        on_step=lambda k, t, z: seen.append(int((z == V).sum())),
    )
    assert [a - b for a, b in pairwise(seen)] == came
    assert torch.equal(tokens, want)


def test_an_even_split_is_not_dreams():
    assert dream(torch.full((1, L), V), 4, SCORES["entropy"][1])[1] == [2, 3, 3, 4]


def test_expected_numbers_in_a_hierarchy():
    """Edges come down as fast as the process lets them, on average, and all end as words."""
    process = dd.presets.hdlm([0, 0, 1, 1, 2, 2])
    left = []
    network = lambda z, t: torch.zeros(*z.shape, 6)  # noqa: E731
    tokens = dd.sample(
        process,
        network,
        (1, 40),
        dd.samplers.Confidence(per_step="expected"),
        steps=4,
        on_step=lambda k, t, z: left.append(int(process.level_of(z).sum())),
    )
    times = torch.linspace(1, 0, 5, dtype=torch.float64)
    mean = (
        process.level_transition(torch.zeros_like(times), times)[:, 0]
        @ torch.arange(3.0).double()
        * 40
    )
    assert int(tokens.max()) < 6 and left[0] == 80
    assert all(0 <= found - float(want) < 4 for found, want in zip(left, mean, strict=True))


def test_expected_numbers_are_verified():
    check(dd.samplers.Confidence("probability", per_step="expected"))


@pytest.mark.parametrize("per_step", ["even", 1.5, 0])
def test_other_numbers_are_refused(per_step, as_users_call):
    with pytest.raises((TypeError, ValueError), match=f"per_step is .*{per_step}"):
        dd.samplers.Confidence(per_step=per_step)

"""A DiT small enough for every test, as it is born and as training leaves it."""

import torch

from ddlib_models import DiT

STATES = 14
WORDS = 11


def build(**changes) -> DiT:
    torch.manual_seed(0)
    sizes = (
        dict(num_states=STATES, vocab_size=WORDS, dim=16, depth=2, heads=2, cond_dim=8) | changes
    )
    return DiT(**sizes)


def trained(**changes) -> DiT:
    """A model in which nothing is zero any more, as after training."""
    model = build(**changes)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return model


def count(module: torch.nn.Module) -> int:
    """Number of parameters."""
    return sum(parameter.numel() for parameter in module.parameters())


def inputs(batch: int = 3, length: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(STATES, (batch, length), generator=generator), torch.rand(
        batch, generator=generator
    )


def features_of(model: DiT, case: str) -> torch.Tensor:
    """Features of two sequences: by a time per position, beside clean tokens, packed, with labels
    or at some positions, if the case says so.
    """
    z, t = inputs(2, 4)
    if case == "some_positions":
        return model.features_at(z, t, torch.tensor([[1, 0], [3, 2]]))
    options = {
        "beside": dict(clean=z.clamp(max=WORDS - 1)),
        "packed": dict(cu_seqlens=torch.tensor([0, 3, 8])),
        "labels": dict(label=torch.tensor([0, 2])),
    }.get(case, {})
    if case == "own_times":
        t = torch.linspace(0.1, 0.9, 8).view(2, 4)
    if case == "packed":
        z = z.view(1, 8)
    return model.features(z, t, **options)

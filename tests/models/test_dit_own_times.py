"""DiT with a time per position."""

import pytest
import torch
from tiny import inputs, trained

from ddlib.paces import Blocks
from ddlib.typing import OwnTimes
from recipes.engine.model_protocols import able, supported_pace


def own(t, length=5):
    return t[:, None].expand(-1, length)


@pytest.mark.parametrize("options", [{}, {"num_clusters": 2}, {"time_conditioned": False}], ids=str)
def test_equal_times_give_the_logits_of_one_time_per_sequence(options):
    model = trained(**options)
    (z, t) = inputs()
    torch.testing.assert_close(model(z, own(t)), model(z, t), atol=1e-6, rtol=1e-6)
    if "num_clusters" in options:
        for ours, expected in zip(
            model.with_clusters(z, own(t)), model.with_clusters(z, t), strict=True
        ):
            torch.testing.assert_close(ours, expected, atol=1e-6, rtol=1e-6)


def test_each_position_takes_its_own_time():
    """Packed into one row, sequences of different times are positions of different times."""
    model = trained().double()
    (z, t) = inputs()
    t = t.double()
    offsets = torch.tensor([0, 2, 5])
    times = torch.cat([t[:1].expand(2), t[1:2].expand(3)])[None]
    expected = model(z[:1], t[:2], offsets)
    torch.testing.assert_close(model(z[:1], times, offsets), expected, atol=1e-12, rtol=1e-12)
    later = times.clone()
    later[0, 1] = 1 - later[0, 1]
    moved = ((model(z[:1], later, offsets) - expected).abs() > 1e-9).any(-1)[0]
    assert moved[:2].all() and not moved[2:].any()


@pytest.mark.parametrize("positions", [[[3], [0], [4]], [[4, 0], [1, 1], [2, 3]], [[]] * 3])
def test_features_of_some_positions_are_those_of_all(positions):
    model = trained().double()
    where = torch.tensor(positions, dtype=torch.int64)
    z, _ = inputs()
    t = torch.rand(z.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = model.features(z, t).take_along_dim(where[..., None], 1)
    torch.testing.assert_close(model.features_at(z, t, where), expected, atol=1e-12, rtol=1e-12)


def test_gradients_are_those_of_one_time_per_sequence():
    z, t = inputs()
    found = []
    for times in (t, own(t)):
        model = trained().double()
        model(z, times.double()).square().sum().backward()
        found.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for name, expected in found[0].items():
        torch.testing.assert_close(found[1][name], expected, atol=1e-9, rtol=1e-9)


def test_networks_without_times_per_position_are_refused_by_name():
    model = trained()
    assert able(model, OwnTimes, "pace: blocks", "own_times") is model
    with pytest.raises(ValueError, match=r"pace: blocks: not with Linear, which has no own_times"):
        able(torch.nn.Linear(2, 2), OwnTimes, "pace: blocks", "own_times")
    model.own_times = False
    with pytest.raises(ValueError, match=r"not with DiT, whose own_times is False"):
        supported_pace(Blocks(2), 4, model)


@pytest.mark.parametrize("shape", [(2,), (3, 4), (2, 5), (3, 5, 1), ()], ids=str)
@pytest.mark.usefixtures("as_users_call")
def test_other_times_are_refused(shape):
    with pytest.raises(ValueError, match=r"t \(.*expected \(B, L\) and \(B,\) or \(B, L\)"):
        trained()(inputs()[0], torch.full(shape, 0.5))

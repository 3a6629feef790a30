"""A network in train mode, or one that keeps its graph, is warned of where it matters, once, and
nowhere else.
"""

import functools

import pytest
import torch
from torch import nn

import ddlib as dd
from ddlib.utils.validation import UsageWarning

PROCESS = dd.presets.mdlm(6)
X = torch.zeros(3, 4, dtype=torch.int64)


class Net(nn.Module):
    """An embedding, something between, an output layer."""

    def __init__(self, between=None):
        super().__init__()
        self.table, self.between, self.out = (
            nn.Embedding(7, 8),
            between or nn.Identity(),
            nn.Linear(8, 6),
        )

    def forward(self, z, t):
        return self.out(self.between(self.table(z)))

    def logits(self, z, t):
        return self(z, t)


class Functional(Net):
    """Dropout by a function: no module shows it."""

    def forward(self, z, t):
        return self.out(nn.functional.dropout(self.table(z), 0.3, self.training))


class Flat(nn.BatchNorm1d):
    def forward(self, h):
        return super().forward(h.flatten(0, 1)).view_as(h)


ACTIVE = {
    "dropout": lambda: Net(nn.Dropout(0.1)),
    "a dropout of one's own": lambda: Net(nn.Sequential(nn.Linear(8, 8), nn.AlphaDropout(0.2))),
    "dropout by a function": Functional,
    "attention's own": lambda: Net(
        nn.TransformerEncoderLayer(8, 2, 8, dropout=0.1, batch_first=True)
    ),
    "batch normalisation": lambda: Net(Flat(8)),
    "one part alone": lambda: part_in_train_mode(Net(nn.Dropout(0.1)).eval()),
}
IDLE = {
    "without dropout": Net,
    "dropout of nothing": lambda: Net(nn.Dropout(0.0)),
    "layer normalisation": lambda: Net(nn.LayerNorm(8)),
    "dropout in eval mode": lambda: Net(nn.Dropout(0.5)).eval(),
    "batch normalisation in eval mode": lambda: Net(Flat(8)).eval(),
}
WRAPPED = {
    "the module": lambda net: net,
    "a method": lambda net: net.logits,
    "a partial": lambda net: functools.partial(net.logits),
    "a lambda": lambda net: lambda z, t: net(z, t),
    "an object that holds it": lambda net: Holding(net),
    "guidance": lambda net: dd.guidance.ClassifierFree(PROCESS, net, Net().eval(), 0.5),
}


class Holding:
    def __init__(self, net):
        self.parts = [net]

    def __call__(self, z, t):
        return self.parts[0](z, t)


def part_in_train_mode(net):
    net.between.train()
    return net


def bound(denoiser):
    return dd.bound(PROCESS, denoiser, X)


def sample(denoiser):
    return dd.sample(PROCESS, denoiser, (3, 4), steps=5)


def likelihood(denoiser):
    return dd.likelihood(PROCESS, denoiser, X)


calls = pytest.mark.parametrize("call", [bound, sample, likelihood])


@calls
@pytest.mark.parametrize("make", ACTIVE.values(), ids=ACTIVE)
def test_modules_in_train_mode_are_warned_of_once(call, make):
    net = make()
    message = r"dd\..*is in train mode and .*call model.eval\(\)"
    with torch.no_grad(), pytest.warns(UsageWarning, match=message) as found:
        for _ in range(3):
            call(net)
    assert len(found) == 1


def test_each_model_is_warned_of():
    nets = [Net(nn.Dropout(0.1)) for _ in range(2)]
    with torch.no_grad(), pytest.warns(UsageWarning, match="train mode") as found:
        for net in nets * 2:
            sample(net)
    assert len(found) == 2


@calls
@pytest.mark.parametrize("make", IDLE.values(), ids=IDLE)
def test_modules_with_equal_modes_are_not_warned_of(call, make):
    """Warnings are errors here; without a graph, which is another matter."""
    with torch.no_grad():
        call(make())


@calls
@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_modules_inside_callables_are_found(call, wrap):
    with pytest.warns(UsageWarning, match="train mode"):
        call(wrap(Net(nn.Dropout(0.5))))


@calls
def test_a_split_network_and_one_along_a_pace_are_seen_too(call):
    from ddlib_models import DiT

    net = DiT(7, 6, dim=16, depth=1, heads=2, cond_dim=8, dropout=0.3)
    nn.init.normal_(net.output_weights()[0])
    with pytest.warns(UsageWarning, match="train mode"):
        call(net)
    with torch.no_grad():
        call(net.eval())


@calls
def test_random_numbers_outside_modules_are_not_checked(call):
    call(lambda z, t: torch.randn(*z.shape, 6))


def test_draws_of_ddlib_from_the_global_state_are_not_those_of_the_network():
    with torch.no_grad():
        for sampler in (dd.samplers.Ancestral(), dd.samplers.FirstHitting()):
            dd.sample(PROCESS, Net(), (3, 4), sampler, steps=4)


# the graph


def test_a_graph_is_warned_of_where_nothing_is_trained():
    net = Net().eval()
    with pytest.warns(
        UsageWarning, match=r"eval mode and its result keeps the autograd graph.*torch.no_grad"
    ) as found:
        for _ in range(2):
            bound(net)
    assert len(found) == 1


@pytest.mark.parametrize("call", [sample, likelihood])
def test_samples_and_likelihoods_keep_no_graph(call):
    assert not (result := call(Net().eval()))[0].requires_grad and result is not None


def test_training_on_a_bound_is_not_warned_of():
    net = Net()
    bound(net).total.mean().backward()
    assert net.out.weight.grad is not None
    table = torch.zeros(7, 6, requires_grad=True)
    bound(lambda z, t: table[z]).total.mean().backward()  # no module
    bound(Net().eval().requires_grad_(False))
    with torch.inference_mode():
        bound(Net(Flat(8)).eval())
        bound(Net())

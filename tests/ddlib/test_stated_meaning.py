"""A denoiser that states what its logits mean is read so by every function that calls it."""

from dataclasses import FrozenInstanceError

import pytest
import torch
from zoo.calls import seeded

import ddlib as dd
from ddlib.parameterization.capabilities import Capabilities
from ddlib.utils.validation import UsageWarning
from ddlib.verification.framework.reference import exact_posterior

UNIFORM = dd.processes.Uniform(5, dd.schedules.Linear())
TRUTH = torch.tensor([0.5, 0.3, 0.1, 0.05, 0.05], dtype=torch.float64)


class Posterior:
    """The exact denoiser of one token, in posterior form."""

    parameterization = "posterior"

    def __init__(self, process):
        self.logits = exact_posterior(process, TRUTH)

    def __call__(self, z, t):
        return self.logits(z, t)


def mean(denoiser, **meaning):
    x = torch.multinomial(TRUTH, 4000, replacement=True, generator=seeded())[:, None]
    return dd.bound(UNIFORM, denoiser, x, seeded(1), **meaning).per_token.value


def test_a_bound_uses_the_parameterization_of_the_denoiser():
    """Its attribute suffices: logits of a posterior are not taken for those of a cavity."""
    stating = Posterior(UNIFORM)
    assert (
        len(
            {
                mean(stating),
                *(mean(one, parameterization="posterior") for one in (stating, stating.logits)),
            }
        )
        == 1
    )
    assert abs(mean(stating) - mean(stating.logits)) > 0.1
    with pytest.raises(ValueError, match="Posterior states 'posterior', must be the same"):
        mean(stating, parameterization="cavity")


class Sized(torch.nn.Module):
    """A network that states the number of its states."""

    def __init__(self, num_states):
        super().__init__()
        self.num_states = num_states

    def forward(self, z, t):
        return torch.zeros(*z.shape, 5)


def guided(process):
    return dd.guidance.ClassifierFree(process, Sized(process.num_states), Sized(8), 1.5)


TREE = dd.presets.hdlm([0, 0, 1, 1, 1])
OTHER_TREE = dd.presets.hdlm([0, 1, 0, 1, 1])
WORDS = torch.zeros(2, 3).long()


@pytest.mark.parametrize(
    "call",
    [
        lambda process, denoiser: dd.bound(process, denoiser, WORDS),
        lambda process, denoiser: dd.sample(process, denoiser, (2, 3), steps=2),
        lambda process, denoiser: dd.likelihood(process, denoiser, WORDS),
    ],
    ids=["bound", "sample", "likelihood"],
)
def test_a_network_for_another_process_is_refused(call):
    call(TREE, Sized(8))
    call(TREE, guided(TREE))
    call(TREE, guided(dd.presets.hdlm([0, 0, 1, 1, 1])))
    with pytest.raises(ValueError, match=r"Sized has num_states=6, the process 8: must be equal"):
        call(TREE, Sized(6))
    with pytest.raises(
        ValueError, match=r"ClassifierFree is made for Hierarchical.*, must be made"
    ):
        call(TREE, guided(OTHER_TREE))
    with pytest.raises(ValueError, match=r"Sized has num_states=8, the process 6"):
        call(dd.presets.mdlm(5), guided(dd.presets.mdlm(5)))


@pytest.mark.parametrize("rows", [None, torch.arange(7)])
def test_an_equal_meaning_may_be_passed_as_well(rows):
    stating = Sized(8)
    stating.parameterization = dd.Children(TREE.hierarchy)
    able = Capabilities.of(stating)
    able.meaning(dd.Children(dd.hierarchies.Tree([[0, 0, 1, 1, 1]]), rows=rows))
    for other in (
        dd.Children(OTHER_TREE.hierarchy),
        dd.Children(TREE.hierarchy, "posterior"),
        dd.Children(TREE.hierarchy, rows=torch.arange(7).flip(0)),
        "cavity",
    ):
        with pytest.raises(ValueError, match="must be the same"):
            able.meaning(other)


def test_samples_use_the_parameterization_of_the_denoiser():
    stating = Posterior(UNIFORM)

    def drawn(denoiser, **meaning):
        return dd.sample(UNIFORM, denoiser, (50, 1), steps=4, generator=seeded(2), **meaning)

    assert torch.equal(drawn(stating), drawn(stating.logits, parameterization="posterior"))
    assert not torch.equal(drawn(stating), drawn(stating.logits))


class Watched(Posterior):
    """Records which of its attributes are read after its first call."""

    own_times = True
    block_size = 2
    called = False
    later = ()

    def __getattribute__(self, name):
        if object.__getattribute__(self, "called") and name not in (
            "logits",
            "later",
            "called",
            "__class__",
        ):
            self.later = (*self.later, name)
        return object.__getattribute__(self, name)

    def __call__(self, z, t):
        object.__setattr__(self, "called", True)
        return self.logits(z, t[:, :1].flatten() if t.ndim == 2 else t)


@pytest.mark.parametrize("pace", [None, dd.paces.Blocks(1), dd.paces.RandomOrder()])
def test_capabilities_are_read_once_before_the_first_call(pace):
    watched = Watched(UNIFORM)
    dd.sample(UNIFORM, watched, (3, 2), steps=2, pace=pace, generator=seeded())
    able = Capabilities.of(Watched(UNIFORM))
    assert watched.called and not watched.later
    assert (able.parameterization, able.own_times, able.block_size) == ("posterior", True, 2)
    assert not any(
        (
            able.is_split,
            able.caches_blocks,
            able.tree is not None,
            able.has_step_distribution,
            able.modules,
        )
    )
    with pytest.raises(FrozenInstanceError):
        able.own_times = False


class Children:
    """A network with a logit for every state but the mask."""

    parameterization = "children"

    def __call__(self, z, t):
        return torch.linspace(0, 1, 7).expand(*z.shape, -1)


def test_an_exact_likelihood_uses_the_parameterization_of_the_denoiser():
    process = dd.processes.Hierarchical(
        dd.hierarchies.Tree([[0, 0, 1, 1, 1]]), dd.schedules.Linear()
    )
    x = torch.arange(5)[:, None]
    function = Children().__call__
    found = dd.likelihood(process, Children(), x).log_likelihood
    assert torch.equal(found, dd.likelihood(process, function, x, parameterization="children")[0])
    assert float(found.exp().sum()) == pytest.approx(1)
    with pytest.raises(ValueError, match="logits has 7 columns"):
        dd.likelihood(process, function, x)


def probabilities(z, t):
    return torch.randn(*z.shape, 5, generator=seeded(3)).softmax(-1)


@pytest.mark.parametrize(
    "call",
    [
        lambda x, z, t: dd.bound(UNIFORM, probabilities, x),
        lambda x, z, t: dd.training_loss(UNIFORM, probabilities(z, t), x, z, t),
        lambda x, z, t: dd.training_loss(UNIFORM, probabilities(z, t).bfloat16(), x, z, t),
        lambda x, z, t: dd.sample(UNIFORM, probabilities, x.shape, steps=2),
    ],
    ids=["bound", "loss", "loss in bfloat16", "sample"],
)
def test_probabilities_in_place_of_logits_are_warned_of(call):
    x = torch.randint(5, (8, 6), generator=seeded(1))
    t = dd.sample_times(8)
    z = UNIFORM.sample(x, t)
    with pytest.warns(UsageWarning, match="sums to 1, as probabilities do: .* leave out its soft"):
        call(x, z, t)

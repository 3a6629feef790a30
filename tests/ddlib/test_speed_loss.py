"""The gradient by speeds is that of the exact bound, on average.

And following it finds the best speeds.
"""

import math
from itertools import pairwise, product

import pytest
import torch
from exact_bounds import F64, PAIR, costs, entropy, exact, poor_fit, texts
from fixtures import never, seeded
from refusals import refuses

import ddlib as dd
from ddlib.objective import learned_speeds as speeds
from ddlib.processes import Hierarchical, PerWord
from ddlib.schedules import Cosine, Geometric, Linear
from ddlib.testing.oracle import exact_cavity, exact_posterior, integrate_bound, states
from ddlib.verification.claims.samplers.likelihood import opinionated

DEEP = [[0, 0, 1, 2], [0, 1, 1]]
DEEPER = [[0, 1, 2, 2], [0, 0, 1], [0, 0]]

pytestmark = pytest.mark.usefixtures("as_users_call")


def tree(parents, xi=1.0, speed=None, schedule=None):
    hierarchy = dd.hierarchies.Tree(parents, xi=xi, speed=speed, learn_speeds=True)
    return Hierarchical(hierarchy, Linear() if schedule is None else schedule)


PROCESSES = {
    "two levels": lambda: tree([[0, 0, 1, 1]], speed=[2.0, 1.0]),
    "two levels, xi": lambda: tree([[0, 0, 1, 1]], xi=0.7, speed=[1.0, 1.0], schedule=Cosine()),
    "three levels, xi": lambda: tree(DEEP, xi=[0.8, 0.9], speed=[0.7, 2.0, 1.0]),
    "four levels": lambda: tree(DEEPER, speed=[1.0, 1.0 + 1e-9, 2.0, 0.5], schedule=Cosine()),
    "powers": lambda: PerWord(Linear(), [0.5, 2.0, 1.0, 1.0], learn_speeds=True),
}


def parameter(process):
    (found,) = process.parameters()
    return found


def integrated(process, network, kind="cavity", points=50):
    """The exact bound in nats per token, differentiable."""
    return integrate_bound(process, PAIR, network, parameterization=kind, points=points) / 2


def estimates(process, network, calls, number=150, seed=0, kind="cavity", draws=2):
    """Values and gradients of calls with their own texts, times and noise."""
    generator = seeded(seed)
    values = []
    slopes = []
    for _ in range(calls):
        x = texts(PAIR, number, generator)
        loss = dd.speed_loss(process, network, x, generator, draws=draws, parameterization=kind)
        values.append(loss.detach())
        slopes.append(torch.autograd.grad(loss, parameter(process))[0])
    return torch.stack(values), torch.stack(slopes)


def agree(found, expected, sigmas=4.5):
    error = found.std(0) / math.sqrt(len(found))
    return bool(((found.mean(0) - expected).abs() <= sigmas * error + 1e-9).all())


@pytest.mark.parametrize("name", PROCESSES)
def test_the_exact_bound_is_differentiable(name):
    process = PROCESSES[name]()
    network = opinionated(process)
    step = 1e-4
    (slope,) = torch.autograd.grad(integrated(process, network, points=20), parameter(process))
    for entry in range(len(slope)):
        ends = []
        for sign in (1, -1):
            with torch.no_grad():
                parameter(process)[entry] += sign * step
                ends.append(integrated(process, network, points=20))
                parameter(process)[entry] -= sign * step
        assert ((ends[0] - ends[1]) / (2 * step)).item() == pytest.approx(
            float(slope[entry]), rel=1e-5, abs=1e-8
        )


CASES = list(product(PROCESSES, ["cavity", "posterior"]))


@pytest.mark.statistical
@pytest.mark.parametrize(("name", "kind"), CASES)
def test_the_estimate_and_its_gradient_are_unbiased(name, kind):
    """Within 4.5 standard errors of 30 calls; the bound that it is compared with is exact."""
    process = PROCESSES[name]()
    network = opinionated(process)
    expected = integrated(process, network, kind)
    (slope,) = torch.autograd.grad(expected, parameter(process))
    values, slopes = estimates(process, network, 30, number=1000, kind=kind)
    assert agree(values, expected.detach()) and agree(slopes, slope)
    if name in ("two levels, xi", "powers"):  # it is not just that all is noise
        assert float(slope.norm()) > 2 * float(slopes.std(0).max()) / math.sqrt(30)


@pytest.mark.statistical
@pytest.mark.parametrize("draws", [2, 5])
def test_ends_of_a_schedule_that_is_not_exact(draws):
    process = tree([[0, 0, 1, 1]], xi=0.7, speed=[1.0, 2.0], schedule=Geometric(0.3, 3.0))
    network = opinionated(process)
    words = torch.cartesian_prod(*[torch.arange(4)] * 2)
    ends = torch.tensor([0.0, 1.0])
    grid = torch.cartesian_prod(*[states(process)[0]] * 2)
    x = words.repeat_interleave(len(grid), 0)
    z = grid.repeat(len(words), 1)
    start = ends[:1].double().expand(len(x))
    mass = PAIR.flatten().repeat_interleave(len(grid)) * process.likelihood(z, x, start).prod(1)
    kept = mass > 0
    x, z, start, mass = (each[kept] for each in (x, z, start, mass))
    left = (mass[:, None] * dd.reconstruction(process, network(z, start), x, z, start)).sum() / 2
    last = (PAIR.flatten()[:, None] * process.prior_kl(words)).sum() / 2
    expected = integrated(process, network, points=120) + left + last
    (slope,) = torch.autograd.grad(expected, parameter(process))
    values, slopes = estimates(process, network, 80, draws=draws)
    assert agree(values, expected.detach()) and agree(slopes, slope)


@pytest.mark.statistical
def test_an_estimate_of_the_loss_reduces_the_variance(monkeypatch):
    """Standard deviations of the gradient by the first speed, of 16 tokens at a time."""
    process = tree([[0, 0, 1, 1]], speed=[2.0, 1.0])
    table = torch.randn(7, 4, dtype=F64, generator=seeded(1))
    generator = torch.Generator()

    def network(z, t):
        return table[z.roll(1, 1)]

    def deviation():
        slopes = []
        for seed in range(60):
            x = torch.randint(4, (32, 16), generator=generator.manual_seed(seed))
            loss = dd.speed_loss(process, network, x, generator)
            slopes.append(float(torch.autograd.grad(loss, parameter(process))[0][0]))
        return torch.tensor(slopes).std()

    whole = deviation()

    monkeypatch.setattr(speeds, "_by_level", speeds._with_score_gradient)
    assert whole < 0.8 * deviation()


SPEEDS = list(product([(1.0, 1.0), (5.0, 1.0), (1.0, 6.0)], [1.0, 0.7]))


@pytest.mark.parametrize(("speed", "xi"), SPEEDS)
def test_with_the_best_network_no_speed_is_better(speed, xi):
    """The bound is the entropy then, whatever the speeds: its slope is nothing."""
    process = tree([[0, 0, 1, 1]], xi=xi, speed=speed)
    for kind, oracle in {"cavity": exact_cavity, "posterior": exact_posterior}.items():
        network = torch.no_grad()(oracle(process, PAIR))
        value = integrated(process, network, kind, points=60)
        (slope,) = torch.autograd.grad(value, parameter(process))
        assert value.item() == pytest.approx(entropy(PAIR), abs=1e-5) and slope.abs().max() < 1e-5


class TestDescent:
    """Three words of a network that looks at its neighbours, badly.

    Its best speeds lie at neither end.
    """

    grid = torch.linspace(-2, 2, 33, dtype=F64)

    def begun(self):
        probs, network = poor_fit()
        process = tree([[0, 0, 1]], speed=[1.0, math.exp(2)])
        found = costs(process, probs, network)
        bounds = [
            exact(
                tree([[0, 0, 1]], speed=[math.exp(max(ratio, 0)), math.exp(max(-ratio, 0))]), found
            )
            for ratio in self.grid.tolist()
        ]
        return probs, network, process, found, torch.stack(bounds).detach()

    @staticmethod
    def ratio(process):
        first, second = process.hierarchy.speeds
        return math.log(first / second)

    def test_the_loss_falls_to_the_minimum_of_a_grid(self):
        probs, network, process, found, bounds = self.begun()
        whole = integrate_bound(process, probs, network, points=40) / 3
        assert whole.item() == pytest.approx(exact(process, found, points=40).item(), rel=1e-12)
        seen = []
        for _ in range(60):
            value = exact(process, found)
            seen.append(value.item())
            (slope,) = torch.autograd.grad(value, parameter(process))
            with torch.no_grad():
                parameter(process).sub_(6.0 * slope)
        assert (
            all(later <= before + 1e-12 for before, later in pairwise(seen))
            and seen[-1] < seen[0] - 0.03
        )
        assert seen[-1] == pytest.approx(bounds.min().item(), abs=2e-4)
        assert self.ratio(process) == pytest.approx(self.grid[bounds.argmin()].item(), abs=0.13)
        assert seen[-1] > entropy(
            probs
        )  # speeds that avoid what the network is bad at: a bound all the same

    @pytest.mark.statistical
    def test_the_loss_falls_by_estimates(self):
        probs, network, process, found, bounds = self.begun()
        start = exact(process, found).item()
        generator = seeded()
        optimizer = torch.optim.Adam(process.parameters(), lr=0.1)
        for step in range(150):
            optimizer.param_groups[0]["lr"] = 0.08 * (1 - step / 150)
            optimizer.zero_grad()
            dd.speed_loss(process, network, texts(probs, 2000, generator), generator).backward()
            optimizer.step()
        end = exact(process, found).item()
        assert end < start - 0.03 and end < bounds.min() + 2e-3
        assert self.ratio(process) == pytest.approx(self.grid[bounds.argmin()].item(), abs=0.6)


class TestBatches:
    process = staticmethod(lambda: tree(DEEP, xi=[0.8, 0.9]))

    def seen(self, x, index, mask=None):
        shown = []

        def network(z, t):
            shown.append((z, t))
            return torch.zeros(*z.shape, 4)

        noise = dd.KeyedGenerator(3, 4, index)
        dd.speed_loss(self.process(), network, x, noise, draws=3, mask=mask)
        return shown

    def test_the_draws_of_a_text_do_not_depend_on_its_batch(self):
        x = torch.randint(4, (5, 6), generator=seeded())
        ((whole, t),) = self.seen(x, torch.arange(5))
        ((part, s),) = self.seen(x[3:], torch.arange(3, 5))
        assert torch.equal(whole[9:], part) and torch.equal(t[9:], s)
        assert len(t.unique()) == 5 and not torch.equal(
            whole[0], whole[1]
        )  # one time for each, separate draws

    def test_padding_is_seen_and_does_not_count(self):
        process = self.process()
        x = torch.randint(4, (6, 5), generator=seeded())
        mask = torch.arange(5).expand(6, 5) < 3

        def loss(z_counts):
            def network(z, t):  # a text's padding gets another answer; its words see nothing
                scores = torch.zeros(*z.shape, 4)
                scores[:, 3:, 0] = z_counts
                return scores

            return dd.speed_loss(
                process, network, x, dd.KeyedGenerator(0, 0, torch.arange(6)), mask=mask
            )

        one = loss(0.0)
        other = loss(5.0)
        assert one == other
        slopes = [torch.autograd.grad(each, parameter(process))[0] for each in (one, other)]
        assert torch.equal(*slopes)

    def test_one_text_will_do(self):
        process = self.process()
        dd.speed_loss(
            process, lambda z, t: torch.zeros(*z.shape, 4), torch.zeros(1, 2, dtype=torch.int64)
        ).backward()
        assert parameter(process).grad.isfinite().all()

    def test_networks_learn_by_it_as_by_the_bound(self):
        process = self.process()
        scores = torch.randn(4, dtype=F64, requires_grad=True)
        x = torch.randint(4, (6, 5))
        index = torch.arange(6)

        def network(z, t):
            return scores.expand(*z.shape, 4)

        loss = dd.speed_loss(process, network, x, dd.KeyedGenerator(1, 2, index))
        noise = dd.KeyedGenerator(1, 2, index)
        t = dd.sample_times(6, generator=noise, dtype=F64).repeat_interleave(2)
        x = x.repeat_interleave(2, 0)
        z = process.sample(x, t, noise.split(2))
        plain = dd.nelbo(process, network(z, t), x, z, t).mean()
        ours, theirs = (torch.autograd.grad(each, scores)[0] for each in (loss, plain))
        assert torch.allclose(ours, theirs, rtol=1e-9)


X = torch.zeros(1, 3, dtype=torch.int64)


def loss_of(process=None, x=X, **options):
    """The loss with a network that must not be called."""
    return dd.speed_loss(process or tree(DEEP), never, x, **options)


def learned_to_infinity():
    process = tree(DEEP)
    with torch.no_grad():
        parameter(process)[1] = 25.0
    return process


test_bad_input_is_refused_before_the_network_runs = refuses(r"""
    loss_of(dd.presets.mdlm(4)) | ValueError | has no learned parameters: create the process or its tree with
    loss_of(draws=1) | ValueError | draws is 1, must be at least 2
    loss_of(draws=2.5) | TypeError | draws is 2.5, must be an int
    loss_of(x=torch.tensor([[4]])) | ValueError | x holds 4, must be tokens in \[0, 4\)
    loss_of(mask=torch.zeros(1, 3, dtype=torch.bool)) | ValueError | mask is False everywhere
    loss_of(mask=torch.ones(1, 2, dtype=torch.bool)) | ValueError | mask has shape \(1, 2\)
    loss_of(learned_to_infinity())
        | ValueError | speed\[1\] has the learned value 7.*e\+10, must stay in \[0.001, 1000\]
""")


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_the_fused_loss_has_the_gradient_of_the_speeds_that_its_values_have(reduction):
    generator = seeded()
    x = torch.randint(4, (8, 3), generator=generator)
    hidden = torch.randn(8, 3, 5, generator=generator)
    weight = torch.randn(4, 5, generator=generator)
    t = torch.rand(8, generator=generator)
    slopes = []
    for way in (reduction, "none"):
        process = PROCESSES["two levels"]()
        z = process.sample(x, t, generator=seeded(1))
        loss = dd.linear_training_loss(process, hidden, weight, x, z, t, reduction=way)
        loss = {"none": {"mean": loss.mean, "sum": loss.sum}[reduction]}.get(
            way, lambda loss=loss: loss
        )()
        slopes.append(torch.autograd.grad(2 * loss, parameter(process))[0])
    assert torch.allclose(*slopes, rtol=1e-6) and float(slopes[0].abs().max()) > 1e-3


def test_the_meaning_that_the_denoiser_states_is_used():
    process = PROCESSES["two levels, xi"]()
    inner = opinionated(process)

    class Stated:
        parameterization = "posterior"

        def __call__(self, z, t):
            return inner(z, t)

    x = texts(PAIR, 8, seeded())
    stated, passed, plain = (
        dd.speed_loss(process, network, x, seeded(1), parameterization=meaning)
        for network, meaning in ((Stated(), None), (inner, "posterior"), (inner, None))
    )
    assert stated == passed != plain

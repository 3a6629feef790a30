"""Speeds as parameters: what follows from them is differentiable, at equal speeds too, and all else
goes on working.
"""

import copy
import math

import mpmath
import pytest
import torch
from fixtures import F64, seeded
from refusals import refused_with, refuses

import ddlib as dd
from ddlib.processes.level_chain import PowerChain
from ddlib.utils.positive import PositiveParameter
from ddlib.verification.claims.objective import learned

WORDS = [0, 0, 1, 1, 2, 3]
ABOVE = [0, 1, 1, 0]
SPEEDS = [
    [1.0, 1.0],
    [1.0 + 1e-9, 1.0, 2.0],
    [0.5, 4.0],
    [1.0, 1.0, 1.0, 1.0],
    [4.0, 3.0, 1.0, 0.5],
]
TIMES = [1e-6, 0.5, 1 - 2.0**-24]


def tree(**options):
    return dd.hierarchies.Tree(
        [WORDS, ABOVE], xi=[0.8, 1.0], speed=[2.0, 0.7, 1.0], learn_speeds=True, **options
    )


def process(**options):
    return dd.processes.Hierarchical(tree(**options), dd.schedules.Cosine())


def level_probs(speeds, sigma):
    """Occupancies, and speed times occupancy below over occupancy, by mpmath."""
    matrix = mpmath.zeros(len(speeds) + 1)
    for i, speed in enumerate(speeds):
        matrix[i, i] = -speed * sigma
        matrix[i, i + 1] = speed * sigma
    a = mpmath.expm(matrix, method="taylor")[0, :]
    return [*a] + [speeds[i] * a[i] / a[i + 1] for i in range(len(speeds))]


@pytest.mark.parametrize("speeds", SPEEDS, ids=str)
def test_slopes_of_occupancies_and_weights(speeds):
    """Against differences in sixty digits: equal and nearly equal speeds are not a special case."""
    for t in TIMES:
        sigma = -math.log1p(-t)

        def ours(v, t=t):
            at = torch.tensor([t], dtype=F64)
            chain = PowerChain(dd.schedules.Linear(), v)
            return torch.cat([chain.occupancies(at)[0], (1 - t) * chain.weights(at)[0, 1:]])

        slopes = torch.autograd.functional.jacobian(ours, torch.tensor(speeds, dtype=F64))
        for edge in range(len(speeds)):
            with mpmath.workdps(60):
                step = mpmath.mpf(10) ** -20
                given = [mpmath.mpf(speed) for speed in speeds]
                ends = []
                for sign in (1, -1):
                    moved = [v + sign * step * (i == edge) for i, v in enumerate(given)]
                    ends.append(level_probs(moved, mpmath.mpf(sigma)))
                exact = [(up - down) / (2 * step) for up, down in zip(*ends, strict=True)]
                size = [abs(v) / given[edge] for v in level_probs(given, mpmath.mpf(sigma))]
            for got, want, unit in zip(slopes[:, edge].tolist(), exact, size, strict=True):
                assert abs(got - float(want)) <= 1e-8 * float(abs(want) + unit)


def test_constants_stay_constants():
    plain = dd.hierarchies.Tree([WORDS], speed=[2.0, 1.0])
    held = dd.processes.Hierarchical(plain, dd.schedules.Linear())
    assert plain.learned is None and not list(held.parameters()) and held.chain is held.chain
    assert list(held.state_dict()) == ["_extra_state", "hierarchy._extra_state"]
    assert plain.speeds == (2.0, 1.0)


def test_the_speeds_are_parameters_and_start_as_given():
    one = process()
    assert [name for name, _ in one.named_parameters()] == ["hierarchy.learned.log"]
    assert one.hierarchy.speeds == pytest.approx((2.0, 0.7, 1.0), rel=1e-14)
    fixed = dd.processes.Hierarchical(
        dd.hierarchies.Tree([WORDS, ABOVE], [0.8, 1.0], [2.0, 0.7, 1.0]), one.schedule
    )
    t = torch.tensor([0.0, 1e-8, 0.3, 1.0], dtype=F64)
    assert torch.allclose(one.occupancies(t), fixed.occupancies(t), rtol=1e-12, atol=0)
    assert torch.allclose(one.weights(t), fixed.weights(t), rtol=1e-12, atol=0)


def test_a_common_factor_moves_nothing():
    """It would be another schedule."""
    one = process()
    with torch.no_grad():
        one.hierarchy.learned.log += 3.0
    assert one.hierarchy.speeds == pytest.approx((2.0, 0.7, 1.0), rel=1e-12)


def test_state_is_saved_moved_and_copied():
    one = process()
    other = process()
    with torch.no_grad():
        one.hierarchy.learned.log += torch.tensor([0.5, -0.3, 0.1])
    other.load_state_dict(one.state_dict())
    assert other.hierarchy.speeds == one.hierarchy.speeds != process().hierarchy.speeds
    dd.speed_loss(
        one, lambda z, t: torch.zeros(*z.shape, 6), torch.zeros(4, 3, dtype=torch.int64)
    ).backward()
    log = one.to(torch.bfloat16).hierarchy.learned.log
    assert log.dtype == log.grad.dtype == F64 and torch.equal(log, other.hierarchy.learned.log)
    assert copy.deepcopy(one).to("meta").hierarchy.learned.log.is_meta
    assert "meta" not in repr(one) and "learned" in repr(copy.deepcopy(one).to("meta").hierarchy)


def test_repr_and_properties():
    assert "speed=learned(2, 0.7, 1)" in repr(tree())
    assert tree(fingerprint="abc").fingerprint == "abc"
    reduced = process().small_copy(5)
    assert reduced.hierarchy.learned is not None
    assert reduced.hierarchy.speeds == pytest.approx((2.0, 0.7, 1.0), rel=1e-12)


@pytest.mark.parametrize(
    "one",
    [process(), dd.processes.PerWord(dd.schedules.Linear(), [0.5, 2.0, 1.0], learn_speeds=True)],
    ids=["tree", "words"],
)
def test_gradients_are_slopes(one):
    with torch.no_grad():
        check = learned.CLAIMS[0].check(one, full=False)
    assert check.ok and check.compared > 20, check.counterexample
    assert not learned.parameters(dd.presets.mdlm(3))


def test_it_is_verified_slopes_and_all():
    report = dd.verify(process())
    assert report.ok, report.refutation
    assert any(check.topic == "learned" and check.name == "slopes" for check in report.checks)


def test_draws_and_samples_carry_no_gradient():
    one = process()
    generator = seeded()
    x = torch.randint(6, (3, 4))
    t = torch.tensor([0.2, 0.5, 0.9])
    entries, _ = one.sample_jump_times((3, 4), generator, torch.device("cpu"))
    assert not entries.requires_grad and not one.sample(x, t, generator).is_floating_point()
    for sampler in (dd.samplers.Ancestral(), dd.samplers.FirstHitting(), dd.samplers.Remask(0.5)):
        words = dd.sample(
            one,
            lambda z, t: torch.zeros(*z.shape, 6),
            (2, 4),
            sampler,
            steps=4,
            generator=generator,
        )
        assert words.max() < 6
    assert float(dd.bound(one, lambda z, t: torch.zeros(*z.shape, 6), x).per_token.value) > 0


@pytest.mark.parametrize("ends", [0.0, 1.0])
def test_gradients_are_finite_at_the_ends_of_time(ends):
    for one in (
        process(),
        dd.processes.PerWord(dd.schedules.Cosine(), [0.5, 2.0, 1.0], learn_speeds=True),
    ):
        t = torch.tensor([ends], dtype=F64)
        mask = torch.full((1, 1), one.num_states - 1)
        scores = torch.zeros(1, 1, one.vocab_size, dtype=F64)
        value = dd.training_loss(one, scores, torch.zeros_like(mask), mask, t) if ends else None
        value = one.loss_weight(torch.zeros_like(mask), mask, t).sum() if value is None else value
        slopes = torch.autograd.grad(value, list(one.parameters()))
        assert all(slope.isfinite().all() for slope in slopes)


@pytest.mark.parametrize("learn", [False, True])
@pytest.mark.usefixtures("as_users_call")
def test_bad_speeds_are_named(learn):
    refused_with(
        tree=lambda *speed: dd.hierarchies.Tree([WORDS], speed=speed, learn_speeds=learn)
    )(r"""
        tree(1.0, 0.0) | ValueError | speed\[1\] is 0.0, must be in \[0.001, 1000\]
        tree(1.0, -2.0) | ValueError | speed\[1\] is -2.0, must be
        tree(inf, 1.0) | ValueError | speed\[0\] is inf, must be
        tree(1.0) | ValueError | speed has 1 entries, must have 2: one per edge
        tree("fast", 1.0) | TypeError | speed\[0\] is 'fast', must be a number
    """)


def learned_speeds(log):
    learned = PositiveParameter("speed", [1.0, 1.0, 1.0])
    with torch.no_grad():
        learned.log.copy_(torch.tensor(log))
    return learned()


test_a_speed_learned_to_nothing_or_to_infinity_stops = refuses(r"""
    learned_speeds([10.0, 0.0, 0.0]) | ValueError | speed\[0\] has the learned value 21.*, must stay in \[0.001, 1000\]
    learned_speeds([0.0, -15.0, 0.0]) | ValueError | speed\[0\] has the learned value 3.*e\+06, must stay
    learned_speeds([0.0, math.nan, 0.0]) | ValueError | speed\[1\] has the learned value nan
    learned_speeds([0.0, 0.0, math.inf]) | ValueError | speed\[2\] has the learned value inf
    learned_speeds([-math.inf, 0.0, 0.0]) | ValueError | speed\[0\] has the learned value 0, must stay
""")


def test_a_start_at_the_limit_is_within_it():
    assert PositiveParameter("speed", [1e-3, 1e3])().tolist() == pytest.approx([1e-3, 1e3])

"""Guidance: what it reduces to, and what it tempers or weighs."""

import itertools
import sys

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from zoo.calls import at, seeded
from zoo.guidances import FOUR, draw, free, guided
from zoo.networks import Counted, constant
from zoo.processes import F64

import ddlib as dd
from ddlib.contrib import Psi
from ddlib.guidance import ClassifierBased, ClassifierFree
from ddlib.guidance.small_networks import Lookup, Scale
from ddlib.processes import Hierarchical
from ddlib.samplers import Ancestral, FirstHitting
from ddlib.schedules import Linear
from ddlib.testing import strategies
from ddlib.verification.claims.samplers.guidance_oracle import (
    pairs_of_states,
    steer,
    target_probs,
    temper,
)

MANY = [*ClassifierFree.examples(), *ClassifierBased.examples()]
FIRST = FirstHitting()


# distributions


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("guidance", MANY, ids=lambda one: repr(one)[:60])
def test_examples_are_verified(guidance):
    report = dd.verify(guidance)
    assert report.ok, report
    assert sum(check.ok is True for check in report.checks) >= 3


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("guidance", MANY, ids=lambda one: repr(one)[:60])
def test_examples_are_verified_at_full_level(guidance):
    report = dd.verify(guidance, "full")
    assert report.ok, report


@settings(max_examples=examples(60))
@given(strategies.hierarchies(max_depth=4, max_words=6), st.floats(0.0, 6.0), st.integers(0, 2**31))
def test_the_next_distribution_is_tempered_in_any_hierarchy(tree, gamma, seed):
    process = Hierarchical(tree, Linear())
    one = Lookup(process, seed)
    other = Lookup(process, seed + 1)
    guidance = ClassifierFree(process, one, other, lambda t: gamma, "states")
    straying = any(edge.spread is not None for edge in tree.maps)
    assert guidance.has_step_distribution == straying
    assert guidance.parameterization == (
        "children" if tree.depth > 1 and not straying else "cavity"
    )
    z = pairs_of_states(process)
    what = "step" if straying else "jump"
    laws = (target_probs(process, part, "cavity", z, what) for part in (one, other))
    assert (steer(guidance, z) - temper(process, *laws, gamma, what)).abs().max() < 1e-10


@pytest.mark.parametrize("name", ["tree", "levels"])
def test_child_logits_of_the_parts_are_tempered_as_they_are(name):
    process = FOUR[name]
    rows = torch.randn(2, process.num_states - 1, generator=seeded(), dtype=F64)
    children = [constant(row) for row in rows]
    tokens = [constant(dd.token_logits(process.hierarchy, row)) for row in rows]
    z = pairs_of_states(process)
    distributions = []
    posterior = dd.Children(process.hierarchy, "posterior")
    for own, meaning in ((children, "children"), (tokens, "cavity"), (children, posterior)):
        distributions.append(
            steer(ClassifierFree(process, *own, 3.0, "states", parameterization=meaning), z)
        )
    assert all((probs - distributions[0]).abs().max() < 1e-12 for probs in distributions)
    raw = ClassifierFree(process, *children, 3.0, "states", parameterization="children")(
        z, at(0.5, len(z))
    )
    assert torch.allclose(raw[0, 0], 3 * rows[0] - 2 * rows[1])


def test_tokens_and_states_are_one_for_masks_and_two_in_a_tree():
    for name, same in (("masked", True), ("tree", False), ("levels", False)):
        on_words, on_states = (free(name, on=on) for on in ("tokens", "states"))
        z = pairs_of_states(FOUR[name])
        t = at(0.5, len(z))
        laws = [
            target_probs(FOUR[name], one, one.parameterization, z, "jump")
            for one in (on_words, on_states)
        ]
        gap = (laws[0] - laws[1]).abs().max()
        assert torch.equal(on_words(z, t), on_states(z, t)) if same else gap > 0.01


def test_the_power_of_a_sum_is_no_sum_of_powers():
    """Two clusters of two tokens; by hand.

    pi_c = (3/4, 1/4), pi_u = (1/2, 1/2) over the clusters.
    """
    process = FOUR["tree"]
    both = [
        torch.tensor(probs, dtype=F64).log()
        for probs in ([0.7, 0.05, 0.125, 0.125], [0.25, 0.25, 0.25, 0.25])
    ]
    one, other = map(constant, both)
    z = torch.tensor([[process.num_states - 1]])
    clusters = {}
    for on in ("states", "tokens"):
        guidance = ClassifierFree(process, one, other, 2.0, on)
        clusters[on] = target_probs(process, guidance, guidance.parameterization, z, "jump")[
            0, 0, 4:6
        ]
    assert clusters["states"].tolist() == pytest.approx([0.9, 0.1])
    squares = [0.7**2 + 0.05**2, 2 * 0.125**2]
    assert clusters["tokens"].tolist() == pytest.approx([share / sum(squares) for share in squares])


# limits


LIMITS = list(itertools.product(FOUR, ("tokens", "states"), (0, 1)))


@pytest.mark.parametrize(
    ("name", "on", "strength"),
    LIMITS,
)
def test_strength_0_and_1_are_the_parts_to_the_bit_and_call_no_other(name, on, strength):
    guidance = free(name, strength, on)
    mine, idle = (guidance.unconditional, guidance.conditional)[:: 1 - 2 * strength]
    for sampler in (Ancestral(), Psi(0.5)):
        assert torch.equal(guided(guidance, sampler), draw(guidance.process, mine.inner, sampler))
    assert mine.calls > 0 and idle.calls == 0


@pytest.mark.parametrize("meaning", ["posterior", "children"])
def test_limits_keep_the_parameterization_of_the_parts(meaning):
    process = FOUR["xi"]
    size = process.num_states - 1 if meaning == "children" else process.vocab_size
    part = lambda z, t: torch.sin(torch.arange(size) * (1 + z[..., None]))  # noqa: E731
    guidance = ClassifierFree(process, part, part, 1.0, parameterization=meaning)
    assert guidance.parameterization == meaning
    assert torch.equal(guided(guidance), draw(process, part, meaning=meaning))


@pytest.mark.parametrize(
    ("name", "how"),
    list(itertools.product(FOUR, ("exact", "first order"))),
)
def test_a_classifier_of_strength_0_is_not_called(name, how):
    process = FOUR[name]
    denoiser = Lookup(process, 1)
    label = Counted(Scale(process, 2))
    assert torch.equal(
        guided(ClassifierBased(process, denoiser, label, 0.0, how)), draw(process, denoiser)
    )
    for silent in ({"strength": 2.0, "interval": (0.6, 0.9)}, {"strength": lambda t: 0 * t}):
        grid = torch.tensor([1.0, 0.5, 0.0])
        one = ClassifierBased(process, denoiser, label, how=how, on="tokens", **silent)
        assert torch.equal(guided(one, steps=grid), draw(process, denoiser, steps=grid))
    assert label.calls == 0


def test_the_strength_may_be_a_function_of_the_time_of_each_row():
    guidance = free("masked", lambda t: 4 * t, interval=(0.2, 1.0))
    process = guidance.process
    t = torch.tensor([0.1, 0.25, 0.5], dtype=F64)
    z = torch.full((3, 2), process.vocab_size)
    assert guidance.strength_at(t).tolist() == [1.0, 1.0, 2.0]
    conditional, unconditional = (
        part(z, t) for part in (guidance.conditional, guidance.unconditional)
    )
    got = guidance(z, t)
    assert torch.equal(got[:2], conditional[:2])
    assert torch.allclose(got[2], 2 * conditional[2] - unconditional[2])
    calls = guidance.unconditional.calls
    guidance(z[:2], t[:2])
    assert guidance.unconditional.calls == calls


def test_outside_the_interval_only_the_conditional_is_called():
    guidance = free("masked", 3.0, "tokens", interval=(0.25, 0.75))
    times = []
    guidance.unconditional.inner = lambda z, t: (
        times.append(float(t[0])) or torch.zeros(*z.shape, 4)
    )
    guided(guidance, shape=(16, 8), steps=8)
    assert times and all(0.25 <= t <= 0.75 for t in times)
    assert guidance.conditional.calls > len(times)


def test_tokens_excluded_by_a_part_stay_excluded():
    process = FOUR["masked"]
    never = -torch.inf
    z = torch.tensor([[4]])
    t = at(0.5)

    def guided(conditional, unconditional, strength):
        one, other = (
            constant(torch.tensor(row, dtype=F64)) for row in (conditional, unconditional)
        )
        return ClassifierFree(process, one, other, strength)(z, t)[0, 0].tolist()

    assert guided([never, 0, 0, 0], [never, 1, 0, 0], 3.0) == [never, -2, 0, 0]
    assert guided([never, 0, 0, 0], [0, 1, 0, 0], 0.5) == [never, 0.5, 0, 0]
    assert guided([0, 0, 0, 0], [never, 1, 0, 0], 0.5) == [never, 0.5, 0, 0]
    with pytest.raises(
        ValueError, match=r"unconditional gives choice 0 at position \(0, 0\) .*strength 3 > 1"
    ):
        guided([0, 0, 0, 0], [never, 1, 0, 0], 3.0)


# classifiers


def test_a_classifier_is_called_for_children_only():
    process = FOUR["levels"]  # tokens 1-2-1 in 3 clusters, 2-1 in 2, the mask
    classifier = Counted(Scale(process, 2))
    guidance = ClassifierBased(process, Lookup(process, 1), classifier, 1.0)
    for states, changes in (
        ([9], 2),
        ([7], 2),
        ([8], 0),
        ([5], 2),
        ([4], 0),
        ([0], 0),
        ([9, 5], 4),
        ([9, 0], 2),
    ):
        rows = classifier.rows
        guidance(torch.tensor([states]), at(0.5))
        assert classifier.rows - rows == 1 + changes, states


def test_chunks_change_nothing(monkeypatch):
    process = FOUR["levels"]
    guidance = ClassifierBased(process, Lookup(process, 1), Counted(Scale(process, 2)), 1.0)
    z = pairs_of_states(process)
    whole = guidance(z, at(0.5, len(z)))
    calls = guidance.classifier.calls
    monkeypatch.setattr(sys.modules["ddlib.guidance.classifier_based"], "_HELD", 60)
    assert (
        torch.equal(guidance(z, at(0.5, len(z))), whole) and guidance.classifier.calls > 10 * calls
    )


def test_tokens_excluded_by_a_classifier_are_not_drawn():
    process = FOUR["levels"]
    for on, never, tokens in (
        ("states", [2, 8], {0, 1}),
        ("tokens", [2], {0, 1, 3}),
    ):  # of 8, a cluster, 3 is the token
        allowed = torch.ones(process.num_states, dtype=F64).index_fill(0, torch.tensor(never), 0.0)
        label = lambda states, t, allowed=allowed: (states.double() @ allowed).log().sum(1)  # noqa: E731
        guidance = ClassifierBased(process, Lookup(process, 1), label, on=on)
        assert set(guided(guidance, FIRST, shape=(64, 4), steps=12).flatten().tolist()) == tokens


def test_the_gradient_is_there_without_gradients():
    process = FOUR["tree"]
    guidance = ClassifierBased(process, Lookup(process, 1), Scale(process, 2), 2.0, "first order")
    z = pairs_of_states(process)
    with torch.enable_grad():
        seen = guidance(z, at(0.5, len(z)))
    for without in (torch.no_grad, torch.inference_mode):
        with without():
            assert torch.equal(guidance(z, at(0.5, len(z))), seen)
    assert not seen.requires_grad


MASKS = FOUR["masked"]
Z = torch.tensor([[4, 0]])


def flat(columns, value=0.0):
    return lambda z, t: torch.full((*z.shape, columns), value)


def classed(answer, how="exact", strength=1.0):
    def label(states, t):
        return answer(states) if callable(answer) else answer

    return lambda: ClassifierBased(MASKS, flat(4), label, strength, how)(Z, at(0.5))


def made(*given, **options):
    return lambda: ClassifierFree(MASKS, flat(4), flat(4), *given, **options)


test_refused_by_name_value_and_rule = refuses(r"""
    made("2")() | TypeError
        | strength is '2', must be a number between 0 and 1e\+06, or a function of t
    made(float("nan"))() | ValueError | strength is nan, must be between 0
    made(float("inf"))() | ValueError | strength is inf, must be between 0
    made(-1.0)() | ValueError | strength is -1.0, must be between 0
    made(2.0, "jumps")() | ValueError | on is 'jumps', must be one of 'tokens', 'states'
    made(2.0, interval=(0.5, 1.5))() | ValueError | interval\[1\] is 1.5, must be in \[0, 1\]
    made(2.0, interval=(0.7, 0.2))() | ValueError | interval is \(0.7, 0.2\).*the earlier first
    made(2.0, interval=(0.7,))() | ValueError | interval is \(0.7,\), must be two times
    made(2.0, parameterization="logits")() | ValueError | parameterization is 'logits'
    ClassifierFree(None, flat(4), flat(4), 2.0) | TypeError | process is None.*ForwardProcess
    ClassifierFree(MASKS, None, flat(4), 2.0) | TypeError | conditional is None, must be a denoiser
    ClassifierFree(MASKS, flat(4), 3, 2.0) | TypeError | unconditional is 3, must be a denoiser
    ClassifierFree(MASKS, flat(4), flat(5), 2.0)(Z, at(0.5))
        | ValueError
            | conditional has 4 columns and unconditional has 5 columns, must have the same number
    ClassifierFree(MASKS, flat(5), flat(5), 2.0)(Z, at(0.5))
        | ValueError | conditional: logits has 5 columns, the process has vocab_size 4
    ClassifierFree(MASKS, flat(4), flat(4, float("nan")), 2.0)(Z, at(0.5))
        | ValueError | unconditional: logits at position.*NaN
    made(lambda t: [t])()(Z, at(0.5)) | TypeError
        | strength\(0.5\) is \[0.5\], must be a number between 0
    made(lambda t: t - 1)()(Z, at(0.5)) | ValueError | strength\(0.5\) is -0.5, must be between 0
    made(lambda t: math.inf)()(Z, at(0.5)) | ValueError | strength\(0.5\) is inf, must be between 0
    ClassifierBased(MASKS, flat(4), None) | TypeError | classifier is None, must be a function
    ClassifierBased(MASKS, flat(4), flat(4), how="both") | ValueError
        | how is 'both', must be one of 'exact'
    ClassifierBased(MASKS, flat(4), flat(4), True) | TypeError | strength is True
    classed(torch.zeros(2, 2))() | ValueError
        | classifier's output has shape \(2, 2\), must be \(B,\) = \(1,\)
    classed(0.5)() | TypeError | classifier returns float, must be a floating-point tensor \(B,\)
    classed(lambda s: s.sum((1, 2)) * float("nan"))() | ValueError
        | classifier's output holds \[nan\]
    classed(lambda s: s.sum((1, 2)) + float("inf"))() | ValueError
        | classifier's output holds \[inf\]
    classed(lambda s: s.sum((1, 2)) - float("inf"))() | ValueError
        | classifier returns -inf for a current sequence
    classed(lambda s: s.detach().sum((1, 2)), "first order")() | ValueError
        | classifier has no gradient
    classed(lambda s: (0 * s).sum((1, 2)).sqrt(), "first order")() | ValueError
        | gradient with NaN or infinity
""")


def test_the_repr_of_a_guidance_omits_its_networks():
    assert repr(free("tree", 2.0)) == f"ClassifierFree({FOUR['tree']!r}, strength=2.0, on='states')"
    shown = repr(free("masked", 2.0, "tokens", interval=(0.0, 0.5)))
    assert (
        shown
        == f"ClassifierFree({FOUR['masked']!r}, strength=2.0, on='tokens', interval=(0.0, 0.5))"
    )


class Stated:
    """A denoiser that states the meaning of its logits."""

    def __init__(self, logits, parameterization="posterior"):
        self.logits = logits
        self.parameterization = parameterization

    def __call__(self, z, t):
        return self.logits[z]


def test_the_meaning_that_the_parts_state_is_used():
    process = FOUR["uniform"]
    logits = torch.randn(process.num_states, process.vocab_size, generator=seeded()) * 2
    part = Stated(logits)
    x = torch.zeros(64, 2, dtype=torch.int64)
    alone = dd.bound(process, part, x, seeded(1)).total
    for strength in (1.0, 2.0):
        assert torch.allclose(
            dd.bound(process, ClassifierFree(process, part, part, strength), x, seeded(1)).total,
            alone,
        )
    based = ClassifierBased(process, part, Scale(process, 2), 0.0, on="tokens")
    assert torch.equal(dd.bound(process, based, x, seeded(1)).total, alone)
    with pytest.raises(
        ValueError, match=r"must be given: conditional has 'posterior', unconditional has 'cavity'"
    ):
        ClassifierFree(process, part, Stated(logits, "cavity"), 2.0)


def test_a_gradient_of_the_classifier_is_available_in_inference_mode():
    process = FOUR["masked"]
    weights = torch.randn(FOUR["masked"].num_states)

    def label(states, t):
        return torch.nn.functional.logsigmoid((states @ weights).sum(1) * (1 + t))

    guidance = ClassifierBased(process, Lookup(process, 1), label, 2.0, "first order")
    expected = guided(guidance)
    with torch.inference_mode():
        assert torch.equal(guided(guidance), expected)


@pytest.mark.parametrize("sampler", [dd.samplers.LeftToRight(), dd.samplers.Confidence()])
def test_children_are_guided_at_times_at_which_their_edge_does_not_act(sampler):
    """Ordered samplers pass one time for the whole sequence, at which a state of another stage may
    occur.
    """
    process = dd.presets.staged([0, 0, 1, 1])

    def label(states, t):
        return (states[..., :4] @ torch.tensor([0.0, -3.0, 0.0, -3.0])).sum(1)

    guidance = ClassifierBased(process, lambda z, t: torch.zeros(*z.shape, 4), label)
    tokens = guided(guidance, sampler, shape=(300, 6), steps=12)
    assert bool(((tokens % 2 == 0).double().mean(0) > 0.88).all())  # 1 / (1 + exp(-3)) = 0.953


def test_a_right_classifier_guidance_with_windows_is_verified():
    weight = torch.tensor([0.0, -3.0, 0.0, -3.0], dtype=F64)

    def label(states, t):
        return torch.nn.functional.logsigmoid((states[..., :4].double() @ weight).sum(1))

    process = dd.presets.staged([0, 0, 1, 1])
    assert dd.verify(ClassifierBased(process, Lookup(process, 1), label)).ok

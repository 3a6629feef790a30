"""``dd.verify``: right objects are accepted, refutations are small and readable, large processes
are reduced.
"""

import json
import math
import time

import pytest
import torch
from cases import examples
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refuses
from zoo.calls import seeded

import ddlib as dd
from ddlib.__main__ import load, main
from ddlib.processes import (
    GIDD,
    ForwardProcess,
    Hierarchical,
    Masked,
    RateMatrix,
    Uniform,
    interior,
    scalar,
    span,
)
from ddlib.testing import strategies
from ddlib.verification.framework.claim import Claim, Comparison
from ddlib.verification.framework.inputs import frequencies, tally

WORDS = [0, 0, 1, 1, 2, 3]
ABOVE = [0, 1, 1, 0]
PRESETS = {
    "mdlm": dd.presets.mdlm(6),
    "gidd": dd.presets.gidd(6, 0.2),
    "hdlm": dd.presets.hdlm(WORDS),
    "hdlm-gamma-xi": dd.presets.hdlm(WORDS, gamma=2.0, xi=0.8),
    "hdlm-slow": dd.presets.hdlm(WORDS, gamma=0.5, xi=0.9),
    "levels": dd.presets.hdlm_levels([WORDS, ABOVE]),
    "levels-xi-speed": dd.presets.hdlm_levels([WORDS, ABOVE], xi=[0.8, 0.6], speed=[1.0, 2.0, 0.7]),
}
pytestmark = pytest.mark.usefixtures("as_users_call")
FULLY = PRESETS


@pytest.mark.parametrize("name", FULLY)
def test_every_preset_is_verified_at_full_level(name):
    report = dd.verify(PRESETS[name], "full")
    assert report.ok, report
    assert sum(check.ok is True for check in report.checks) >= 26


# a schedule per edge takes 20 s of quadrature; examples of every class are in test_contracts.py
@settings(max_examples=examples(8))
@given(strategies.processes(strategies.all_schedules()))
def test_right_processes_are_accepted(process):
    report = dd.verify(process)
    assert report.ok, report


@settings(max_examples=examples(40))
@given(strategies.processes(strategies.all_schedules()))
def test_right_processes_are_accepted_at_full_level(process):
    report = dd.verify(process, "full")
    assert report.ok, report


FIFTY = [
    dd.presets.mdlm(50),
    dd.presets.gidd(50, 0.2),
    dd.presets.hdlm_levels(
        [[i % 16 for i in range(50)], [i % 4 for i in range(16)]], xi=[0.9, 0.8]
    ),
    RateMatrix(
        torch.eye(50).roll(1, 1) + 0.5 * torch.eye(50).roll(-1, 1) - 1.5 * torch.eye(50),
        dd.schedules.Linear(),
    ),
]


@pytest.mark.parametrize("process", FIFTY, ids=repr)
def test_quick_takes_seconds_for_fifty_words(process):
    """On a slower processor, or a shared one, the better of two is compared with sums of fifty
    numbers.
    """
    most = 5 if process.closed_form else 8
    numbers = torch.ones(50)

    def sums():
        for _ in range(250_000):
            numbers + numbers

    def quick():
        assert dd.verify(process).ok

    def seconds(call):
        start = time.process_time()
        call()
        return time.process_time() - start

    spent = seconds(quick)
    assert spent < most or min(spent, seconds(quick)) < 3.2 * most * seconds(sums)


LARGE = {
    "mdlm": lambda: dd.presets.mdlm(50_257),
    "hdlm": lambda: dd.presets.hdlm([i % 64 for i in range(50_257)], xi=0.9),
    "gidd": lambda: dd.presets.gidd(50_257, 0.2),
    "uniform": lambda: Uniform(50_257, dd.schedules.Cosine()),
}


@pytest.mark.parametrize("name", LARGE)
def test_a_large_vocabulary_is_verified_on_a_small_copy_that_the_report_names(name):
    report = dd.verify(LARGE[name]())
    assert report.ok, report
    assert (
        "reduction" in report.note
        and ("levels=(24, 5, 1)" if name == "hdlm" else "24") in report.note
    )
    assert "50257" in report.subject and report.note in str(report)


def test_a_large_hierarchy_is_reduced_too():
    tree = dd.hierarchies.Tree([torch.arange(5000) % 70, torch.arange(70) % 6], xi=[0.9, 0.7])
    report = dd.verify(tree)
    assert report.ok and "levels=(24," in report.note


@given(strategies.hierarchies(), st.integers(2, 9))
def test_a_reduced_hierarchy_is_a_right_one_with_the_same_chance_of_the_right_parent(
    hierarchy, size
):
    reduced = hierarchy.small_copy(max(size, 2 ** (hierarchy.depth - 1)))
    assert type(reduced) is type(hierarchy) and reduced.speeds == hierarchy.speeds
    assert dd.verify(reduced).ok
    for small, large in zip(reduced.maps, hierarchy.maps, strict=True):
        assert small.num_children <= large.num_children and (small.spread is None) == (
            large.spread is None
        )
        if small.spread is not None:
            right = [float(edge.entry(torch.tensor(0), edge.parents[0])) for edge in (small, large)]
            assert right[0] == pytest.approx(right[1])


def test_a_process_that_offers_no_reduction_is_verified_as_it_is():
    generator = torch.full((60, 60), 1 / 60) - torch.eye(60)
    report = dd.verify(RateMatrix(generator, dd.schedules.Linear()))
    assert report.ok and report.note == ""


def test_a_reduction_must_be_of_the_same_class():
    class Other(Masked):
        def small_copy(self, vocab_size):
            return Masked(vocab_size, self.schedule)

    with pytest.raises(
        TypeError, match=r"Other\.small_copy returns a Masked, must return its own class"
    ):
        dd.verify(Other(100, dd.schedules.Linear()))


def test_a_state_that_noise_never_leads_to_is_refuted():
    class MaskFirst(ForwardProcess):
        """Masked diffusion whose mask is state 0, in front of the tokens."""

        def __init__(self, vocab_size):
            super().__init__(vocab_size, vocab_size + 1)

        def rate_matrix(self, t):
            return self.masked(1.0) / (1 - interior(scalar(t, "t", self.device)))

        def transition(self, s, t):
            s, t = span(s, t, self.device)
            return torch.eye(self.num_states, dtype=torch.float64) + self.masked((t - s) / (1 - s))

        def masked(self, share):
            matrix = -share * torch.eye(self.num_states, dtype=torch.float64)
            matrix[:, 0] += share
            return matrix

    report = dd.verify(MaskFirst(4))
    assert "states [4] have probability 0 given every token" in report.text()


@pytest.mark.parametrize("what", ["sample", "likelihood", "marginal", "weighted_divergence"])
def test_a_fault_that_the_reduction_does_not_have_is_found_on_the_process_as_given(what):
    class Broken(Masked):
        """Right for small vocabularies."""

        def sample(self, x, t, generator=None):
            z = super().sample(x, t, generator)
            return (z + 1) % self.num_states if what == "sample" and self.vocab_size > 60 else z

        def likelihood(self, z, x, t):
            return super().likelihood(z, x, t) * (
                0.99 if what == "likelihood" and self.vocab_size > 60 else 1
            )

        def marginal(self, x, t):
            return super().marginal(x, t) * (
                1.01 if what == "marginal" and self.vocab_size > 60 else 1
            )

        def weighted_divergence(self, logits, x, z, t):
            weight, divergence = super().weighted_divergence(logits, x, z, t)
            return weight, divergence - (
                50 if what == "weighted_divergence" and self.vocab_size > 60 else 0
            )

    report = dd.verify(Broken(3000, dd.schedules.Linear()))
    assert not report.ok and {check.topic for check in report.failures} == {"as given"}


def test_a_fault_of_a_large_process_is_found_on_its_reduction():
    class Broken(Masked):
        def prior_kl(self, x, t=None):
            return super().prior_kl(x, t) + 0.1

    assert not dd.verify(Broken(50_257, dd.schedules.Linear())).ok


def test_a_counterexample_is_shrunk_to_the_smallest_process_and_the_roundest_time():
    class Broken(Hierarchical):
        def marginal(self, x, t):
            probs = super().marginal(x, t)
            return torch.where(t[:, None, None] > 0.6, probs * 1.01, probs)

    tree = dd.hierarchies.Tree([[i % 4 for i in range(12)]])
    report = dd.verify(Broken(tree, dd.schedules.Linear()))
    (check,) = [c for c in report.failures if c.name == "marginals"]
    found = check.counterexample
    assert "levels=(1, 1, 1)" in found.subject
    assert found.where["t"] == 0.75 and found.where["x"] == 0 and found.where["z"] == 0
    assert found.expected == pytest.approx(0.25) and found.got == pytest.approx(0.2525)
    text = str(report)
    assert (
        "q_t(z|x) at t = 0.75, x = 0, z = 0: expected 0.25, got 0.2525" in text
        and "NOT VERIFIED" in text
    )


def test_an_object_that_raises_is_refuted_by_its_exception():
    class Broken(Masked):
        pass

    def transition(self, s, t):
        raise ZeroDivisionError("no transition today")

    Broken.transition = transition  # a class that overrides it alone is refused
    report = dd.verify(Broken(4, dd.schedules.Linear()))
    (check,) = [c for c in report.failures if c.name == "Chapman-Kolmogorov"]
    assert check.note == "raised ZeroDivisionError: no transition today"
    assert "no result at s = " in str(check) and check.note in str(check)


@pytest.mark.parametrize(
    "method",
    ["rate_matrix", "marginal", "weighted_divergence", "sample_jump_times", "sample", "prior"],
)
def test_verify_returns_a_report_for_any_exception(method):
    def broken(self, *arguments, **options):
        raise KeyError(method)

    Broken = type("Broken", (Masked,), {})
    setattr(Broken, method, broken)  # a class that overrides rate_matrix alone is refused
    report = dd.verify(Broken(4, dd.schedules.Linear()))
    assert any(f"KeyError: '{method}'" in check.note for check in report.failures)


class Heavy(Hierarchical):
    """The weight of every level, times 1.1."""

    def weights(self, t):
        return 1.1 * super().weights(t)


def test_a_wrong_weight_of_a_level_is_reported_as_such():
    first, *_ = dd.verify(Heavy(dd.hierarchies.Tree([WORDS]), dd.schedules.Linear())).failures
    assert first.label == "reverse: level weights" and first.counterexample.quantity == "weights"


class Halved(GIDD):
    """Its bound is right, and so is no weighted loss."""

    def weighted_divergence(self, logits, x, z, t):
        weight, divergence = super().weighted_divergence(logits, x, z, t)
        return 2 * weight, divergence / 2


def test_a_weight_of_the_closed_form_that_is_not_that_of_the_loss_is_reported():
    first, *_ = dd.verify(Halved(4, 0.3)).failures
    assert first.label == "objective: weights" and first.counterexample.quantity == "loss_weight"


class Bare(dd.samplers.Ancestral):
    """A step returns the states without their times."""

    def step(self, run, state, k):
        return super().step(run, state, k).z


def test_a_step_that_returns_a_tensor_is_named():
    message = (
        r"init and step of Bare must return a ddlib\.samplers\.State\(z, t\), one returned a Tensor"
    )
    with pytest.raises(TypeError, match=message):
        dd.sample(dd.presets.mdlm(4), lambda z, t: torch.zeros(*z.shape, 4), (2, 8), Bare(), 2)
    first, *_ = dd.verify(Bare(), on=dd.presets.mdlm(4)).failures
    assert "TypeError: init and step of Bare must return" in str(first)


def test_counterexamples_name_the_settings_of_the_quadrature():
    class Doubled(Masked):
        def weighted_divergence(self, *arguments, **options):
            return tuple(2 * term for term in super().weighted_divergence(*arguments, **options))

    failures = dd.verify(Doubled(4, dd.schedules.Linear())).failures
    [found] = [check.counterexample for check in failures if check.name == "telescopes"]
    assert {"largest log-odds of t", "most tokens"} <= set(found.where)


def test_the_report_prints_the_claim_and_tolerance_of_every_check():
    report = dd.verify(PRESETS["hdlm"])
    text = report.text(verbose=True)
    for check in report.checks:
        assert check.name in text and check.proves in text
        assert check.tolerance in text if check.ok else check.note in text
        assert check.ok is None or (check.compared > 0 and 0 <= check.worst <= 1)
    assert "verified: " in text and {"schedule", "hierarchy", "process", "objective"} <= set(
        text.splitlines()
    )


def test_the_report_is_json():
    class Broken(Masked):
        def prior_kl(self, x, t=None):
            return torch.full(x.shape, math.nan, dtype=torch.float64)

    data = json.loads(dd.verify(Broken(3, dd.schedules.Linear())).to_json())
    assert data["ok"] is False and data["level"] == "quick"
    (check,) = [c for c in data["checks"] if c["name"] == "prior"]
    assert (
        check["ok"] is False and check["worst"] == "inf" and check["counterexample"]["got"] == "nan"
    )


def test_a_verdict_does_not_change_and_disturbs_nothing():
    process = PRESETS["levels-xi-speed"]
    before = {name: buffer.clone() for name, buffer in process.named_buffers()}
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    threads = torch.get_num_threads()
    first = dd.verify(process)
    second = dd.verify(process)
    assert torch.equal(torch.rand(3), expected) and torch.get_num_threads() == threads
    assert [c.worst for c in first.checks] == [c.worst for c in second.checks]
    assert all(torch.equal(buffer, before[name]) for name, buffer in process.named_buffers())


test_only_objects_of_ddlib_and_known_levels_are_taken = refuses(r"""
    dd.verify(3) | TypeError | subject is 3, must be a process, schedule, hierarchy or sampler
    dd.verify(Linear(), "slow") | ValueError | level is 'slow', must be 'quick' or 'full'
""")


def test_a_sampler_without_supported_processes_is_refused():
    class Picky(dd.samplers.Ancestral):
        def init(self, run):
            raise TypeError("not with you")

    with pytest.raises(
        ValueError, match="raises TypeError for masked, hierarchical and uniform processes alike"
    ):
        dd.verify(Picky())


def test_skipped_claims_have_a_reason():
    report = dd.verify(GIDD(4, 0.3))
    (path,) = [c for c in report.checks if c.name == "path"]
    assert path.ok is None and "depend on the network" in path.note and report.ok
    torn = torch.block_diag(
        torch.tensor([[-1.0, 1.0], [1.0, -1.0]]), torch.tensor([[-2.0, 2.0], [1.0, -1.0]])
    )
    report = dd.verify(RateMatrix(torn, dd.schedules.Linear()))
    (forgets,) = [c for c in report.checks if c.name == "forgets"]
    assert report.ok and forgets.ok is None and "2 closed classes" in forgets.note


@pytest.mark.statistical
def test_bounds_on_counts_have_the_stated_false_alarm_rate():
    """Scaled up from 1e-6 per check, which no test could count: refused shares stay below what they
    promise.
    """
    probs = torch.tensor([[0.5, 0.3, 0.199, 0.001]], dtype=torch.float64)
    generator = seeded()
    drawn = torch.multinomial(probs[0], 2000 * 300, replacement=True, generator=generator).view(
        300, 2000
    )
    beyond = 0
    for sample in drawn:
        comparison = frequencies("draws", ("row", "z"), tally(sample[:, None], 4), probs, 2000)
        error = (comparison.got - comparison.expected).abs()
        assert (error <= comparison.allowed).all()
        beyond += int((error > comparison.allowed / 2).any())
    assert (
        1 < beyond < 60
    )  # bounds near five standard deviations: half of that is passed now and then
    biased = torch.multinomial(
        torch.tensor([0.4, 0.4, 0.199, 0.001]), 2000, replacement=True, generator=generator
    )
    comparison = frequencies("draws", ("row", "z"), tally(biased[:, None], 4), probs, 2000)
    assert ((comparison.got - comparison.expected).abs() > comparison.allowed).any()


def test_a_claim_reports_its_worst_case_and_refuses_another_shape():
    def compare(subject, point):
        t = torch.tensor([0.1, 0.4, 0.2]) * point["t"]
        yield Comparison("value", ("i",), t, torch.zeros(3), 1.0)

    check = Claim("room", "name", "proves", "1", compare, ({"t": 0.5}, {"t": 2.0})).check(
        object(), False
    )
    assert check.ok and check.worst == pytest.approx(0.8) and check.worst_at == " at t = 2, i = 1"
    assert check.compared == 6

    def misshapen(subject, point):
        yield Comparison("value", ("i",), torch.zeros(1), torch.zeros(3), 1.0)

    check = Claim("room", "name", "proves", "1", misshapen).check(object(), False)
    assert check.ok is False and "value has shape (1,), must be (3,)" in check.note


def test_the_exit_status_of_the_command_line_is_the_verdict(capsys, monkeypatch, tmp_path):
    (tmp_path / "two_of_mine.py").write_text(
        "import ddlib as dd\n"
        "process = dd.presets.mdlm(4)\n"
        "def factory():\n    return dd.presets.hdlm([0, 0, 1])\n"
        "class Broken(dd.schedules.Linear):\n    def rate(self, t):\n        return 2 / (1 - t)\n"
        "number = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["verify", "two_of_mine:process"]) == 0
    assert "verified: " in capsys.readouterr().out
    assert main(["verify", "two_of_mine:factory", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"] is True
    assert main(["verify", "two_of_mine:Broken", "--level", "full"]) == 1
    assert "FAIL rate" in capsys.readouterr().out
    for path in ("two_of_mine:nothing", "two_of_mine", "nowhere:process", "two_of_mine:number"):
        with pytest.raises(SystemExit) as stop:
            main(["verify", path])
        assert stop.value.code == 2
        assert path.split(":")[0] in capsys.readouterr().err or path == "two_of_mine:number"
    assert main([]) == 0
    assert "hierarchical" in capsys.readouterr().out


def test_load_finds_attributes_of_objects():
    assert load("ddlib.presets:mdlm.__name__") == "mdlm"

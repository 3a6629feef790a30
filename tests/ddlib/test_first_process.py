"""Reports of ``dd.verify`` for a wrong process or schedule: the mistake, its place, the code to
write.
"""

import inspect
import math
import re
from pathlib import Path

import pytest
import torch
from refusals import refused_with

import ddlib as dd
import ddlib.processes
from ddlib.__main__ import main
from ddlib.processes import ForwardProcess, elapsed, interior, scalar, span
from ddlib.processes.broadcasting import each_time, gather_columns
from ddlib.schedules import Linear, Schedule
from ddlib.verification import Check, Counterexample, Place
from ddlib.verification.claims import hierarchy, schedule
from ddlib.verification.claims.objective import bound as objective
from ddlib.verification.claims.processes import at_size, numerics, process, reverse, sampled_states
from ddlib.verification.claims.samplers import sampler
from ddlib.verification.framework.blame import locate_error
from ddlib.verification.framework.claim import Claim, Comparison
from ddlib.verification.framework.dependencies import explain

pytestmark = pytest.mark.usefixtures("as_users_call")
MODULES = (
    schedule,
    hierarchy,
    process,
    reverse,
    objective,
    numerics,
    sampled_states,
    at_size,
    sampler,
)
CLAIMS = {claim.name: claim for module in MODULES for claim in module.CLAIMS}


class Paced(ForwardProcess):
    """A right process: every token is masked at a separate speed."""

    def __init__(self, speed=(1.0, 3.0), schedule=None):
        super().__init__(len(speed), len(speed) + 1)
        self.schedule = schedule or Linear()
        self.speed = torch.tensor(speed, dtype=torch.float64)

    def marginal(self, x, t):
        self.check_inputs(x=x, t=t)
        return gather_columns(each_time(lambda time: self.transition(0.0, time), t).mT, x).to(
            t.dtype
        )

    def rate_matrix(self, t):
        rate = self.speed * self.schedule.rate(interior(scalar(t, "t", self.device)))
        return self.to_mask(-rate, rate, 0.0)

    def transition(self, s, t):
        gone = self.speed * elapsed(self.schedule, *span(s, t, self.device))
        return self.to_mask(torch.exp(-gone), -torch.expm1(-gone), 1.0)

    def to_mask(self, stay, leave, mask):
        matrix = torch.diag(torch.cat([stay, stay.new_tensor([mask])]))
        matrix[:-1, -1] = leave
        return matrix


def wrong(method, new, make=Paced):
    """An object of a class in which one method is another."""
    # ``marginal`` calls the other methods of the object
    return type("Mine", (make,), {"marginal": getattr(make, "marginal", None), method: new})()


def failed(subject, name):
    check = CLAIMS[name].check(subject, False)
    assert check.ok is False
    return str(check)


# one exception, one failure


def test_an_exception_is_one_failure_with_the_line_of_its_author():
    class Misspelt(Paced):
        marginal = Paced.marginal  # it calls the new method

        def transition(self, s, t):
            return self.to_mask(self.speeds, 1 - self.speeds, 1.0)  # the line

    report = dd.verify(Misspelt())
    (cause,) = [check for check in report.failures if not check.follows]
    lines, first = inspect.getsourcelines(Misspelt)
    (line,) = [first + i for i, text in enumerate(lines) if "# the line" in text]
    assert (cause.place.line, cause.place.method) == (line, "Misspelt.transition")
    assert Path(cause.place.file).name == Path(__file__).name
    assert cause.place.code.startswith("return self.to_mask(self.speeds")
    assert cause.note == "raised AttributeError: 'Misspelt' object has no attribute 'speeds'"
    text = str(report)
    assert text.count("AttributeError") == 1 and f"line {line}: return self.to_mask" in text
    followers = [check.name for check in report.failures[1:]]
    assert (
        len(followers) >= 9
        and f"{len(followers)} more checks fail at this line: distributions, Kolmogorov" in text
    )
    assert (
        "rates" not in followers
        and f"NOT VERIFIED: 1 failure, {len(followers)} that may follow" in text
    )


def test_the_authors_frame_is_the_last_one_that_is_no_librarys():
    class Helper(Paced):
        marginal = Paced.marginal

        def transition(self, s, t):
            return torch.zeros(2) @ torch.zeros(3)

    with pytest.raises(RuntimeError) as raised:
        Helper().sample(torch.tensor([[0]]), torch.tensor([0.5]))
    place, advice = locate_error(raised.value, Helper())
    assert (place.method, place.code) == (
        "Helper.transition",
        "return torch.zeros(2) @ torch.zeros(3)",
    ) and not advice


def test_in_a_class_of_ddlib_it_is_the_frame_in_its_module(monkeypatch):
    subject = dd.processes.GIDD(3, 0.2)
    monkeypatch.setattr(subject, "scale", "much")
    with pytest.raises(TypeError) as raised:
        subject.rate_matrix(0.5)
    place, _ = locate_error(
        raised.value.with_traceback(raised.value.__traceback__.tb_next), subject
    )  # without this frame
    assert place.method == "GIDD._c" and place.file.endswith("gidd.py")


def test_errors_inside_libraries_blame_no_caller():
    with pytest.raises(ValueError) as raised:
        scalar(2.0, "t", torch.device("cpu"))
    assert (
        locate_error(raised.value.with_traceback(raised.value.__traceback__.tb_next), 3)[0] is None
    )


def test_the_report_shows_the_code_to_write():
    times = wrong("rate_matrix", lambda self, t: self.to_mask(-self.speed, torch.tan(t), 0.0))
    advice = (
        "begin with this line, with the function of ddlib.processes: "
        't = scalar(t, "t", self.device)'
    )
    assert advice in failed(times, "rates")
    times = wrong("transition", lambda self, s, t: self.to_mask(self.speed, torch.exp(s - t), 1.0))
    assert "s, t = span(s, t, self.device)" in failed(times, "distributions")
    mine = wrong("alpha", lambda self, t, xp=torch: math.cos(math.pi * t / 2), Schedule)
    assert "xp is torch, sympy or mpmath: write xp. instead of math." in failed(mine, "ends")


def test_a_mistake_in_reduced_is_refuted_and_a_constructor_without_super_is_named():
    class Mine(Paced):
        def small_copy(self, vocab_size):
            return self.smaller(vocab_size)

    (check,) = dd.verify(Mine([1.0] * 60)).failures
    assert check.name == "reduced" and check.place.method == "Mine.small_copy"
    bare = wrong("__init__", lambda self: None)
    with pytest.raises(
        TypeError,
        match=r"Mine has no states: call super\(\).__init__\(vocab_size, num_states\) first",
    ):
        dd.verify(bare)


# what follows from what


def test_wrong_rates_are_one_failure_and_the_first():
    def rate_matrix(self, t):
        rate = torch.ones_like(self.speed) * self.schedule.rate(
            interior(scalar(t, "t", self.device))
        )
        return self.to_mask(-rate, rate, 0.0)

    report = dd.verify(wrong("rate_matrix", rate_matrix))
    names = [check.name for check in report.failures]
    assert names == ["Kolmogorov", "limit", "telescopes", "bound = entropy", "short steps"]
    assert [check.follows for check in report.failures] == ["", *["process: Kolmogorov"] * 4]
    assert "rate_matrix and transition disagree" in str(report.failures[0])
    text = str(report)
    assert (
        text.index("ok   draws: sample")
        < text.index("FAIL Kolmogorov")
        < text.index("bound = entropy: bound from")
    )
    assert text.count("FAIL") == 1 and text.splitlines()[-1].startswith(
        "NOT VERIFIED: 1 failure, 4 that may follow"
    )
    assert (
        "rows of transitions and marginals are distributions" not in text
    )  # what holds is named, no more
    full = report.text(verbose=True)
    end = text[text.index("  FAIL Kolmogorov") :]
    assert all(check.proves in full for check in report.checks) and full.endswith(end)


def test_every_claim_rests_on_claims_that_there_are_and_on_none_in_a_circle():
    def above(name, path=()):
        assert name in CLAIMS, f"{path[-1]} rests on {name}"
        assert name not in path, " > ".join((*path, name))
        for other in CLAIMS[name].rests_on:
            above(other, (*path, name))

    for name in CLAIMS:
        above(name)


def follows_of(*failures, rests, places):
    """Checks of claims a, b, c, ...: the ones named fail."""
    checks = []
    for name in "abcdef":
        claim = Claim(
            "room", name, "proves", "1", lambda subject, point: (), rests_on=rests.get(name, ())
        )
        place = places.get(name)
        note = "raised KeyError: 1" if place else ""
        checks.append(
            (
                claim,
                Check("room", name, "proves", "1", name not in failures, note=note, place=place),
            )
        )
    return {check.name: check.follows for check in explain(checks) if check.ok is False}


HERE = Place("f.py", 1, "A.b", "x")
THERE = Place("f.py", 2, "A.b", "y")
FOLLOWS = {
    "a failure follows through claims that hold": (
        "acd",
        {"c": ("b",), "b": ("a",)},
        {},
        {"a": "", "c": "room: a", "d": ""},
    ),
    "one exception at one line is one failure": (
        "abcd",
        {"a": ("b",)},
        {"a": HERE, "b": HERE, "c": THERE, "d": HERE},
        {"a": "", "b": "room: a", "c": "", "d": "room: a"},
    ),
    "failures that rest on each other have a first": (
        "abcd",
        {"a": ("d",), "b": ("c",)},
        {"a": HERE, "b": THERE, "c": HERE, "d": THERE},
        {"a": "", "b": "room: a", "c": "room: a", "d": "room: a"},
    ),
}


@pytest.mark.parametrize("case", FOLLOWS)
def test_each_failure_names_the_first_that_it_rests_on(case):
    failures, rests, places, follows = FOLLOWS[case]
    assert follows_of(*failures, rests=rests, places=places) == follows


# counterexamples that can be read


@pytest.mark.parametrize(
    ("alpha", "name", "message"),
    [
        (
            lambda self, t, xp=torch: 1 - 1.4 * t,
            "ends",
            r"alpha\(1\) = -0\.4: must lie in \[0, 1\]",
        ),
        (
            lambda self, t, xp=torch: 1 - t - 2.4 * t**2 * (1 - t),
            "ends",
            r"alpha\(0\.83\d*\) = -0\.11\d*: must lie in \[0, 1\]",
        ),
        (
            lambda self, t, xp=torch: (1 - 1.2 * t) ** 0.5,
            "ends",
            r"alpha\(0\.8\d*\) = nan: must lie in \[0, 1\]",
        ),
        (
            lambda self, t, xp=torch: 1 + t - 2 * t**2,
            "ends",
            r"alpha\(0\.25\) = 1\.125: must lie in",
        ),
        (
            lambda self, t, xp=torch: (1 - t) ** 0,
            "decreasing",
            r"alpha\(t\) does not fall after t = 0: must decrease",
        ),
        (
            lambda self, t, xp=torch: 1 - t.double() if xp is torch else 1 - t,
            "elementwise",
            r"alpha of a float32 time is torch\.float64, must be torch\.float32",
        ),
        (
            lambda self, t, xp=torch: 1 - t.float() if xp is torch else 1 - t,
            "derivative",
            r"torch\.float32 against torch\.float64: compute functions of time in float64",
        ),
    ],
)
def test_the_report_explains_a_wrong_schedule(alpha, name, message):
    report = dd.verify(wrong("alpha", alpha, Schedule))
    (check,) = [check for check in report.failures if check.name == name]
    assert re.search(message, str(check)), check
    assert "mpc" not in report.text(verbose=True)
    assert name != "ends" or (
        report.failures[0] is check and all(other.follows for other in report.failures[1:])
    )


def test_a_negative_schedule_explains_the_failures_of_its_process():
    wrong_schedule = wrong(
        "alpha", lambda self, t, xp=torch: 1 - t - 2.4 * t**2 * (1 - t), Schedule
    )
    checks = [(claim, claim.check(wrong_schedule, False)) for claim in schedule.CLAIMS]
    mine = Paced(schedule=wrong_schedule)
    held = Check("process", "Kolmogorov", "", "", True)  # its solver takes long over infinite rates
    checks += [
        (claim, held if claim.name == held.name else claim.check(mine, False))
        for claim in process.CLAIMS
    ]
    causes = [check for check in explain(checks) if check.ok is False and not check.follows]
    assert [check.name for check in causes] == ["ends"]


def shown(got, expected=1.0, allowed=0.0, **words):
    return str(Counterexample("Mine()", {"t": 0.9, "z": 2}, "q", expected, got, allowed, **words))


def test_two_numbers_are_never_printed_alike():
    assert shown(0.5) == "q at t = 0.9, z = 2: expected 1, got 0.5"
    assert shown(1 + 2**-45).endswith(
        "expected 1, got 1.00000000000003 (off by 2.8e-14, allowed 0)"
    )
    assert shown(1 + 2**-52).endswith(
        "expected 1, got 1.0000000000000002 (off by 2.2e-16, allowed 0)"
    )
    assert shown(math.nan, math.nan).endswith("expected nan, got nan")
    assert shown(1.0, allowed=math.nan).endswith("1 as expected, but the tolerance is nan")
    assert shown(math.inf) == "q at t = 0.9, z = 2: expected 1, got inf"


@pytest.mark.parametrize(
    ("method", "new", "name", "message"),
    [
        (
            "rate_matrix",
            lambda self, t: Paced.rate_matrix(self, t).T,
            "rates",
            "its columns sum to 0: row = from, column = to, so return the transpose",
        ),
        (
            "transition",
            lambda self, s, t: Paced.transition(self, s, t).T,
            "distributions",
            "its columns sum to 1: row = from",
        ),
        (
            "rate_matrix",
            lambda self, t: Paced.rate_matrix(self, t).float(),
            "answers",
            "rate_matrix(t) is torch.float32 of shape (3, 3), must be torch.float64 of shape (3, "
            "3)",
        ),
        (
            "marginal",
            lambda self, x, t: Paced.marginal(self, x, t)[..., 1:],
            "answers",
            "marginal(x, t) is torch.float64 of shape (1, 2, 2), must be torch.float64 of shape "
            "(1, "
            "2, 3)",
        ),
        (
            "transition",
            lambda self, s, t: None,
            "answers",
            "transition(s, t) is NoneType, must be torch.float64",
        ),
        (
            "transition",
            lambda self, s, t: (
                Paced.transition(self, s, t + 0.1).float().double()
                if t < 0.6
                else Paced.transition(self, s, t)
            ),
            "distributions",
            "the error has the size of float32 rounding: compute",
        ),
        (
            "marginal",
            lambda self, x, t: Paced.marginal(
                self, x, t.double() * (1 + 1e-6 * (t.dtype != torch.float64))
            ).to(t.dtype),
            "float32",
            "torch.float32 against torch.float64: compute functions of time in float64",
        ),
        (
            "marginal",
            lambda self, x, t: Paced.marginal(self, x, t).double(),
            "dtypes and shapes",
            "marginal of torch.float32 arguments is torch.float64, must be torch.float32",
        ),
        (
            "marginal",
            lambda self, x, t: gather_columns(
                each_time(lambda u: self.transition(0.0, u), t).mT, x % 2
            ),
            "refusals",
            "marginal takes x = 2, where tokens are 0 to 1: must raise a ValueError or TypeError "
            "that "
            "describes it\n"
            "       write as the first line of marginal: self.check_inputs(x=x, t=t)",
        ),
        (
            "marginal",
            lambda self, x, t: gather_columns(
                each_time(lambda u: self.transition(0.0, u), t)[:, :2].mT, x
            ),
            "refusals",
            "marginal raises IndexError for x = 2",
        ),
        ("speed", torch.tensor([1.0, 3.0]).double(), "moves", "not moved by .to(device)"),
    ],
    ids=lambda value: value if isinstance(value, str) and " " not in value else "",
)
def test_the_report_explains_a_wrong_method(method, new, name, message):
    if method == "speed":
        mine = Paced()
        mine.within = torch.nn.Module()  # of torch, which moves no attribute
        mine.within.table = new
        assert "if it is an attribute of a ddlib.utils.precision.Float64Module" in failed(
            mine, name
        )
    else:
        mine = wrong(method, new)
    assert message in failed(mine, name)


def test_words_take_numbers_from_the_worst_place_and_leave_braces_alone():
    def compare(subject, point):
        yield Comparison(
            "q",
            ("i",),
            torch.tensor([0.0, 2.0, 5.0]),
            torch.zeros(3),
            1.0,
            message="q[{i}] = {got:g}",
        )

    assert failed_text(compare) == "q[2] = 5"


def failed_text(compare):
    return str(Claim("room", "name", "proves", "1", compare).check(object(), False).counterexample)


# the command


def test_the_command_is_short_without_v_and_full_with_it(capsys, monkeypatch, tmp_path):
    assert main(["verify", "ddlib.schedules:Linear"]) == 0
    short = capsys.readouterr().out.splitlines()
    assert short[:2] == [
        "Linear(), level quick",
        "  ok   schedule: ends, decreasing, derivative, rate, integral, inverse, elementwise",
    ]
    assert short[2] == "  ok   arguments: values"
    assert len(short) == 4 and short[3].startswith("verified: 8 of 8 checks pass")
    assert main(["verify", "ddlib.schedules:Linear", "-v"]) == 0
    full = capsys.readouterr().out
    assert "alpha decreases strictly" in full and "tolerance exactly; error at most" in full
    (tmp_path / "hasty.py").write_text("def process():\n    return 1 + 'a'\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(SystemExit):
        main(["verify", "hasty:process"])
    expected = r"unsupported operand .* \(in process, .*hasty.py, line 2: return 1 \+ 'a'\)"
    assert re.search(expected, capsys.readouterr().err)


# what a process of one's own needs


def test_helpers_of_processes_are_public_documented_and_checked():
    docs = Path(__file__).parents[2] / "docs"
    reference, page = (
        (docs / name).read_text() for name in ("reference/processes.md", "extending.md")
    )
    for name in ddlib.processes.__all__:
        found = getattr(ddlib.processes, name)
        if inspect.isfunction(found):
            assert f".. autofunction:: ddlib.processes.{name}\n" in reference, name
            assert name == "identity" or (f"`{name}(" in page and ">>> " in found.__doc__), name
    refused_with(cpu=torch.device("cpu"))(r"""
        scalar(1.5, "t", cpu) | ValueError | t holds 1\.5, must lie in \[0, 1\]
        span(torch.tensor([0.5]), 0.7, cpu) | ValueError | s has shape \(1,\), must be a scalar
        span(0.7, 0.5, cpu) | ValueError | s = 0\.7 must be at most t = 0\.5
    """)


def test_elapsed_is_additive_and_zero_after_the_end_of_the_schedule():
    s, u, t = torch.tensor([[0.0, 0.1, 1.0], [0.2, 0.4, 1.0], [0.9, 0.4, 1.0]], dtype=torch.float64)
    schedule = dd.schedules.Cosine()
    both = elapsed(schedule, s, u) + elapsed(schedule, u, t)
    assert torch.allclose(elapsed(schedule, s, t), both, rtol=1e-12) and (both[2] == 0)
    assert torch.allclose(
        torch.exp(-elapsed(schedule, s, t))[:2], (schedule.alpha(t) / schedule.alpha(s))[:2]
    )
    assert elapsed(schedule, s.float(), t.float()).dtype == torch.float64

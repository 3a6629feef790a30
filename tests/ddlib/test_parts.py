"""Parts from plain values: the object of the constructor, or an error that names place, value and
rule.
"""

import inspect
import math
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from refusals import refuses

import ddlib as dd
from ddlib import parts, registry

PARENTS = [[0, 0, 1, 1, 2, 2], [0, 1, 1]]


class Known:
    """Run context of six tokens."""

    def vocab_size(self) -> int:
        return 6

    def fingerprint(self) -> str:
        return "f" * 64

    def counts(self) -> list[int]:
        return [5, 1, 4, 2, 3, 9]

    def parents(self, clusters: int | list[int] | str = 3) -> list[list[int]]:
        return PARENTS[: len(clusters)] if isinstance(clusters, list) else PARENTS[:1]


class Strange(Known):
    def parents(self, clusters: int = 3) -> list[list[int]]:
        raise ValueError("no clusters today")


numbers = st.floats(0.1, 4.0, allow_nan=False).map(lambda v: round(v, 3))
schedules = st.one_of(
    st.sampled_from(["linear", "cosine", {"kind": "linear"}, "symbolic:(1 - t)**2 * exp(-t)"]),
    st.builds(lambda power: {"kind": "polynomial", "power": power}, numbers),
    st.builds(lambda power: f"polynomial:{power}", numbers),
    st.builds(lambda power: f"polynomial:power={power}", numbers),
)


@st.composite
def processes(draw):
    kind = draw(
        st.sampled_from(["mdlm", "masked", "uniform", "gidd", "hdlm", "hdlm-levels", "tree"])
    )
    share = draw(st.floats(0.05, 0.95))
    speed = draw(st.lists(numbers, min_size=3, max_size=3))
    values = {
        "mdlm": {},
        "masked": {"schedule": draw(schedules)},
        "uniform": {"schedule": draw(schedules)},
        "gidd": {"p_uniform": share},
        "hdlm": {"xi": share, "gamma": speed[0]},
        "hdlm-levels": {"clusters": [3, 2], "xi": [share, 1.0], "speed": speed},
        "tree": {
            "hierarchy": {"kind": "tree", "clusters": [3, 2], "xi": share},
            "schedule": draw(schedules),
        },
    }
    return {"kind": "hierarchical" if kind == "tree" else kind} | values[kind]


@given(processes())
def test_read_values_are_read_again_and_build_the_same(values):
    read = parts.read("processes", values, Known)
    assert parts.read("processes", read, Known) == read
    assert "-" not in read["kind"] and values.keys() <= read.keys()
    process = dd.build("processes", values, Known())
    assert repr(process) == repr(dd.build("processes", read, Known())) and process.vocab_size == 6
    x = torch.arange(6)[None]
    t = torch.tensor([0.4], dtype=torch.float64)
    assert torch.equal(process.marginal(x, t), dd.build("processes", read, Known()).marginal(x, t))


@given(numbers, numbers, st.floats(0.1, 1.0))
def test_values_build_the_object_of_the_constructor(power, speed, xi):
    schedule = {"kind": "polynomial", "power": power}
    tree = {"kind": "tree", "parents": PARENTS, "xi": [xi, 1.0], "speed": [speed, 1.0, 2.0]}
    built = dd.build("processes", {"kind": "hierarchical", "hierarchy": tree, "schedule": schedule})
    own = dd.processes.Hierarchical(
        dd.hierarchies.Tree(PARENTS, xi=[xi, 1.0], speed=[speed, 1.0, 2.0]),
        dd.schedules.Polynomial(power),
    )
    x = torch.arange(6)[None]
    t = torch.tensor([0.3], dtype=torch.float64)
    assert torch.equal(built.marginal(x, t), own.marginal(x, t)) and repr(built) == repr(own)


CORRECTED = (
    "Corrected(predictor=Ancestral(force_transition=False), corrector=Gibbs(positions=4, "
    "select='random'), "
    "steps=2, interval=(0.0, 1.0))"
)
BY_CONFIDENCE = {"kind": "ddlib.samplers:Confidence", "score": "entropy", "threshold": [-0.1, -0.2]}
PER_LEVEL = {"kind": "per_level", "factors": [1, 0.5], "weighting": "clip:high=3,low=0.5"}


@pytest.mark.parametrize(
    ("group", "values", "shown"),
    [
        (
            "samplers",
            BY_CONFIDENCE,
            "Confidence(score='entropy', per_step=None, threshold=(-0.1, -0.2), temperature=0.0, "
            "force_transition=False, "
            "edit=None, edit_steps=16)",
        ),
        (
            "samplers",
            {"kind": "ddlib.samplers:EntropyBounded", "gamma": 1},
            "EntropyBounded(gamma=1.0, ",
        ),
        (
            "samplers",
            {"kind": "ddlib.samplers:EntropyBounded", "gamma": "inf"},
            "EntropyBounded(gamma=inf, ",
        ),
        (
            "samplers",
            {"kind": "ddlib.samplers:Remask", "rule": "loop", "t_on": 0.6},
            "Remask(eta=0.02, rule='loop', lift=None, force_transition=False, t_on=0.6, "
            "t_off=0.05, "
            "plateau=0.1)",
        ),
        ("samplers", "corrected:predictor=ancestral,corrector=gibbs:4,steps=2", CORRECTED),
        (
            "samplers",
            'corrected:predictor=ancestral,corrector={"kind": "gibbs", "positions": 4},'
            "steps=2,interval=[0,1]",
            CORRECTED,
        ),
        (
            "samplers",
            {
                "kind": "corrected",
                "predictor": "ancestral",
                "corrector": {"kind": "gibbs", "positions": 4},
                "steps": 2,
            },
            CORRECTED,
        ),
        (
            "hierarchies",
            "tree:parents=[[0,0,1,1],[0,0]],speed=[1,2,1]",
            "Tree(levels=(4, 2, 1, 1), ",
        ),
        ("times", "beta:a=2,b=1", "Beta(a=2.0, b=1.0)"),
        ("times", {"kind": "bell", "spread": 2}, "Bell(mean=0.0, spread=2.0)"),
        ("weightings", "clip:2", repr(dd.weightings.Clip(2.0))),
        ("weightings", "clip", repr(dd.weightings.Clip(math.inf))),
        (
            "weightings",
            PER_LEVEL,
            repr(dd.weightings.PerLevel([1.0, 0.5], dd.weightings.Clip(3.0, low=0.5))),
        ),
    ],
)
def test_plain_values_build_the_object_of_the_same_repr(group, values, shown):
    assert repr(dd.build(group, values)).startswith(shown)
    read = parts.read(group, values)
    assert parts.read(group, read) == read


@pytest.mark.parametrize(
    ("group", "text", "values"),
    [
        ("schedules", "cosine", {"kind": "cosine"}),
        ("schedules", "polynomial:2", {"kind": "polynomial", "power": 2}),
        ("schedules", "symbolic:1 - t", {"kind": "symbolic", "formula": "1 - t"}),
        (
            "samplers",
            "ancestral:force_transition=true",
            {"kind": "ancestral", "force_transition": True},
        ),
        (
            "processes",
            "hdlm-levels:xi=[0.9,1],gamma=2",
            {"kind": "hdlm-levels", "xi": [0.9, 1], "gamma": 2},
        ),
        ("processes", "my_package.noise:make", {"kind": "my_package.noise:make"}),
    ],
)
def test_a_short_string_is_a_mapping(group, text, values):
    assert parts.expand(group, text, Known) == values


def test_words_of_a_command_line_are_values():
    words = ["2", "0.5", "true", "True", "None", "[1, 2]", "my/clusters", "(1 - t)**2"]
    assert [parts.parse(word) for word in words] == [
        2,
        0.5,
        True,
        True,
        None,
        [1, 2],
        "my/clusters",
        "(1 - t)**2",
    ]


def build(values):
    return dd.build("processes", values, Known(), "process")


test_an_error_names_the_place_the_value_and_the_rule = refuses(r"""
    build({"kind": "hdlm", "gama": 2}) | ValueError | process.gama: no such key; did you mean gamma?
    build({"kind": "hdlm", "zzz": 2}) | ValueError
        | process.zzz: no such key; hdlm has clusters, gamma, xi
    dd.build("samplers", "confidence:probability,threshold=0.9")
        | ValueError | 'probability' has no key, write score=probability beside other keys
    build("hdml:gamma=2") | ValueError
        | process.kind: nothing in processes is called 'hdml', did you mean 'hdlm'
    build("mdml:0.5") | ValueError
        | process.kind: nothing in processes is called 'mdml', did you mean 'mdlm'
    build({"kind": "hdml"}) | ValueError
        | process.kind: nothing in processes is called 'hdml', did you mean 'hdlm'
    build({"clusters": 3}) | ValueError | process.kind: is missing
    build("3") | ValueError | process.kind: nothing in processes is called '3'
    build(3) | ValueError | process: must be a name or a mapping with the key kind, got 3
    build({"kind": "hdlm", "gamma": "much"}) | ValueError
        | process.gamma: Input should be a valid number.*got 'much'
    build({"kind": "hdlm", "xi": 1.5}) | ValueError
        | process: xi of parents\[0\] is 1.5, must be in \(0, 1\]
    build({"kind": "masked"}) | ValueError | process.schedule: is missing
    build({"kind": "masked", "schedule": {"kind": "polynomial", "powr": 2}})
        | ValueError
            | process.schedule.powr: no such key; did you mean power.; process.schedule.power: is
            missing
    build({"kind": "masked", "schedule": {"kind": "polynomial", "power": True}}) | ValueError
        | should not be a boolean
    build({"kind": "masked", "schedule": "polynomial:-1"}) | ValueError
        | process.schedule: power is -1.0, must be
    build({"kind": "no_such_module:make"}) | ValueError
        | process.kind: 'no_such_module:make': No module .* PYTHONPATH
    build({"kind": "math:nothing"}) | ValueError | process.kind: 'math:nothing': .* has no 'nothing'
    build({"kind": "math:pi"}) | ValueError
        | process.kind: 'math:pi' is 3.14.*, must be a class or a function
    parts.read("processes", {"kind": "hdlm", "gama": 2, "xi": "much"}, Known)
        | ValueError | gama: no such key.*xi: Input should be
    build({"kind": "hdlm", "clusters": [3, 2]}) | ValueError
        | process: parents holds 2 levels of clusters, must hold
""")


MODULE = """
import ddlib as dd

class Power(dd.schedules.Schedule):
    def __init__(self, power: float = 2.0):
        self.power = power
    def alpha(self, t, xp=None):
        return (1 - t) ** self.power

def make(
    vocab_size, strength, schedule: dd.schedules.Schedule, counts=None, fingerprint: str = "none"
):
    made.append((vocab_size, strength, counts, fingerprint))
    return dd.processes.Masked(vocab_size, schedule)

made = []

def wrong(vocab_size: int):
    return "no process"

def optional(schedule: dd.schedules.Schedule | None = None, vocab_size: int | None = None):
    return dd.processes.Uniform(vocab_size, schedule or dd.schedules.Linear())

ready = dd.presets.mdlm(6)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "own_noise.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield
    sys.modules.pop("own_noise", None)


def test_a_function_of_a_module_is_as_good_as_a_name(module):
    values = {
        "kind": "own_noise:make",
        "strength": "much",
        "schedule": {"kind": "own_noise:Power", "power": 3},
    }
    process = dd.build("processes", values, Known())
    import own_noise

    assert repr(process.schedule).startswith("Power") and process.schedule.power == 3.0
    # without a default, with the default None: filled in; with another: not
    assert own_noise.made == [(6, "much", [5, 1, 4, 2, 3, 9], "none")]
    dd.build("processes", values | {"fingerprint": "run", "counts": [1]}, Known())
    assert own_noise.made[1] == (6, "much", [1], "f" * 64)


def test_optional_values_may_be_left_out_or_null(module):
    assert dd.build("processes", "own_noise:optional", Known()).vocab_size == 6
    values = {"kind": "own_noise:optional", "schedule": None}
    assert dd.build("processes", parts.read("processes", values, Known), Known()).vocab_size == 6


def test_the_error_names_a_preset_without_a_process(module):
    with pytest.raises(
        TypeError, match=r"process: own_noise:wrong returns 'no process', must be a ddlib.processes"
    ):
        dd.build("processes", "own_noise:wrong", Known(), "process")


def test_objects_may_stand_among_values():
    built = dd.schedules.Cosine()
    assert dd.build("schedules", built) is built
    process = dd.build("processes", {"kind": "masked", "schedule": built}, Known())
    assert process.schedule is built


def test_a_part_made_by_a_module_is_copied(module):
    made = dd.build("processes", "own_noise:ready")
    assert made.vocab_size == 6 and repr(made) == repr(dd.build("processes", "own_noise:ready"))
    assert made is not dd.build("processes", "own_noise:ready")  # no run changes another's
    with pytest.raises(
        ValueError, match=r"processes\.schedule: no such key; own_noise:ready has none"
    ):
        dd.build("processes", {"kind": "own_noise:ready", "schedule": "cosine"})


def test_filled_in_keys_stand_in_their_place():
    keys = parts.keys("processes", "hdlm", Known)
    assert (
        list(keys) == ["clusters", "gamma", "xi", "names"] and keys["clusters"].filled == "parents"
    )
    assert list(parts.keys("processes", "hdlm")) == [
        "parents",
        "gamma",
        "xi",
        "names",
    ]
    given = {"kind": "hdlm", "parents": PARENTS[0]}
    assert dd.build("processes", given, Strange()).num_states == 10
    with pytest.raises(ValueError, match="clusters: no such key"):
        parts.read("processes", given | {"clusters": 3}, Known)
    with pytest.raises(ValueError, match=r"process\.parents: no clusters today"):
        dd.build("processes", "hdlm", Strange(), "process")


def test_the_word_run_requires_optional_values():
    network = {"kind": "dit", "num_states": 9, "dim": 8, "depth": 1, "heads": 1}
    read = parts.read("backbones", network, Known)
    assert read["parents"] == [] and "vocab_size" not in read
    config = parts.read("backbones", network | {"parents": "run", "clusters": [3]}, Known)
    assert config["parents"] == "run" and parts.read("backbones", config, Known) == config
    model = dd.build("backbones", config | {"num_states": 10}, Known())
    assert model.num_states == 10 and model.saved_arguments()["parents"] == PARENTS[:1]


def test_third_party_models_import_nothing_untrusted(module):
    values = {"kind": "own_noise:make", "strength": 1, "schedule": "own_noise:Power"}
    with registry.trusting([]):
        assert (
            dd.build("schedules", "log_odds:2.0").steepness == 2.0
        )  # installed: its own user's doing
        with pytest.raises(
            PermissionError,
            match=r"own_noise:make.*importing a module executes it.*--trust own_noise",
        ):
            parts.read("processes", values, Known)
    assert "own_noise" not in sys.modules
    with registry.trusting(["own_noise"]):
        parts.read("processes", values, Known)


def test_origins_of_parts(module):
    values = parts.read("processes", {"kind": "masked", "schedule": "log_odds"}, Known)
    assert [tuple(one) for one in parts.origins("processes", values, Known)] == [
        ("log_odds", "ddlib-ragged", "0.1.0")
    ]
    values = parts.read(
        "processes", {"kind": "own_noise:make", "strength": 1, "schedule": "cosine"}, Known
    )
    assert [tuple(one) for one in parts.origins("processes", values, Known)] == [
        ("own_noise:make", "own_noise", None)
    ]


@pytest.mark.parametrize("kind", registry.GROUPS)
def test_every_registered_part_has_keys_of_plain_values(kind):
    for name in registry.available(kind):
        for key in parts.keys(kind, name).values():
            assert (
                key.default is inspect.Parameter.empty
                or key.default is None
                or not math.isnan(len(repr(key.default)))
            )
            assert key.annotation is not None

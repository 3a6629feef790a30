"""The registry: packages that lie, break or quarrel, as importlib.metadata finds them on disk."""

import os
import subprocess
import sys
from importlib.metadata import entry_points

import pytest
from refusals import refused_with, refuses

from ddlib import registry
from ddlib.__main__ import table
from ddlib.schedules import Linear, Schedule

RIGHT = """
from ddlib.schedules import Linear

class Mine(Linear):
    "A custom schedule."
"""
WRONG = {
    "no such module": ("absent_module:Mine", {}, "No module named 'absent_module'"),
    "no such attribute": ("empty_module:Mine", {"empty_module": ""}, "has no attribute 'Mine'"),
    "an error on import": (
        "raising_module:Mine",
        {"raising_module": "1 / 0"},
        "ZeroDivisionError: division by zero",
    ),
    "an exit on import": (
        "leaving_module:Mine",
        {"leaving_module": "import sys; sys.exit(3)"},
        "SystemExit: 3",
    ),
    "no entry point": ("not a reference", {}, "does not load"),
    "a function": (
        "function_module:make",
        {"function_module": "def make(): ..."},
        "ddlib.schedules.Schedule",
    ),
    "another kind": (
        "ddlib.samplers:Ancestral",
        {},
        "must be a subclass of ddlib.schedules.Schedule",
    ),
    "a whole module": (
        "plain_module",
        {"plain_module": ""},
        "must be a subclass of ddlib.schedules.Schedule",
    ),
}


@pytest.fixture
def install(tmp_path, monkeypatch):
    """Puts a package on the path as pip would: modules, and a dist-info that declares entry
    points.
    """

    def install(package, points, modules=(), kind="schedules"):
        site = tmp_path / package
        info = site / f"{package}-1.0.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        lines = [f"[ddlib.{kind}]", *(f"{name} = {value}" for name, value in points.items())]
        (info / "entry_points.txt").write_text("\n".join(lines))
        for module, source in dict(modules).items():
            (site / f"{module}.py").write_text(source)
        monkeypatch.syspath_prepend(site)
        return site

    yield install
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in (getattr(module, "__file__", None) or ""):
            del sys.modules[name]


def test_a_plug_in_is_found_by_name(install):
    install("good", {"mine": "good_module:Mine"}, {"good_module": RIGHT})
    mine = registry.get("schedules", "mine")
    assert issubclass(mine, Schedule) and mine.__module__ == "good_module"
    assert registry.available("schedules")["mine"].value == "good_module:Mine"
    assert "Mine()" in table() and "A custom schedule." in table()


def test_nothing_is_imported_before_its_name_is_used(install):
    site = install("good", {"mine": "good_module:Mine"}, {"good_module": RIGHT})
    script = """
import sys, ddlib
assert "mine" in ddlib.registry.available("schedules")
ddlib.registry.get("schedules", "linear")
assert "good_module" not in sys.modules
ddlib.registry.get("schedules", "mine")
assert "good_module" in sys.modules
print("lazy")
"""
    path = os.pathsep.join(filter(None, [str(site), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "JAXTYPING_DISABLE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "lazy", done.stderr[-2000:]


@pytest.mark.parametrize("kind", registry.GROUPS)
def test_the_off_switch_keeps_the_entry_points_of_ddlib(kind, install, monkeypatch):
    install("good", {"mine": "good_module:Mine"}, {"good_module": RIGHT}, kind)
    ours = {
        point.name for point in entry_points(group=f"ddlib.{kind}") if point.dist.name == "ddlib"
    }
    assert ours | {"mine"} <= set(registry.available(kind))
    monkeypatch.setenv("DDLIB_PLUGINS", "0")
    assert ours == set(registry.available(kind))
    with pytest.raises(
        ValueError, match=r"nothing in .* is called 'mine'.*DDLIB_PLUGINS=0 hides plug-ins"
    ):
        registry.get(kind, "mine")


test_a_missing_name_is_answered_with_the_nearest_or_with_all = refuses(r"""
    registry.get("samplers", "gibbs") | ValueError
        | nothing in samplers is called 'gibbs', which is one of correctors;
    registry.get("schedules", "liner") | ValueError
        | nothing in schedules is called 'liner', did you mean 'linear'
    registry.get("schedules", "xyzzy") | ValueError | called 'xyzzy', there are cosine, .*linear
    dd.build("process", "masked") | ValueError
        | kind is 'process', must be one of schedules, hierarchies
    registry.get("schedule", "linear") | ValueError
        | kind is 'schedule', must be one of schedules, hierarchies
""")


@pytest.mark.parametrize("case", WRONG)
def test_the_error_of_a_broken_plug_in_names_it_and_other_plug_ins_work(case, install):
    value, modules, reason = WRONG[case]
    install("broken", {"bad": value}, modules)
    install("good", {"mine": "good_module:Mine"}, {"good_module": RIGHT})
    with pytest.raises(ImportError) as caught:
        registry.get("schedules", "bad")
    message = str(caught.value)
    assert message.startswith(f"schedules 'bad' = {value}, from broken,") and reason in message
    assert registry.get("schedules", "linear") is Linear
    assert registry.get("schedules", "mine").__name__ == "Mine"
    assert f"broken: {message}" in table()


def test_a_name_of_two_packages_is_refused_and_both_are_named(install, monkeypatch):
    install(
        "first",
        {"mine": "first_module:Mine", "linear": "first_module:Mine"},
        {"first_module": RIGHT},
    )
    install(
        "second",
        {"mine": "second_module:Mine", "other": "second_module:Mine"},
        {"second_module": RIGHT},
    )
    refused_with()(r"""
        registry.get("schedules", "mine")
            | ImportError
                | registered by second \(second_module:Mine\) and first \(first_module:Mine\)
        registry.get("schedules", "linear")
            | ImportError | 'linear' is registered by .*ddlib \(ddlib.schedules:Linear\)
    """)
    assert registry.get("schedules", "other").__name__ == "Mine"
    assert "registered by" in table()
    monkeypatch.setenv("DDLIB_PLUGINS", "0")
    assert registry.get("schedules", "linear") is Linear


def test_two_packages_may_declare_the_same_class(install):
    install("first", {"mine": "first_module:Mine"}, {"first_module": RIGHT})
    install("alias", {"mine": "first_module:Mine"})
    assert registry.get("schedules", "mine").__name__ == "Mine"

"""Length of the README, links of all pages, examples in docstrings, and agreement of entry points
with public
classes.
"""

import doctest
import importlib
import pkgutil
import re
import tomllib
from pathlib import Path

import pytest
import torch

import ddlib

ROOT = Path(__file__).parent.parent
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
MODULES = [
    m.name
    for m in pkgutil.walk_packages(ddlib.__path__, "ddlib.")
    if not m.name.endswith("__main__")
]
HELPERS = {  # public classes that are not parts
    "Schedule",
    "Hierarchy",
    "Clusters",
    "Map",
    "Kernel",
    "Dense",
    "Sparse",
    "Banded",
    "Occupancies",
    "ForwardProcess",
    "LevelProcess",
    "MatrixExponential",
    "Run",
    "Sampler",
    "State",
    "Trajectory",
    "TimeDensity",
    "Corrector",
    "Guarantees",
    "Ordered",
    "SamplingContext",
    "Ending",
    "Automaton",
    "Constraint",
    "EndOfText",
    "Settled",
    "Length",
    "Weighting",
    "Draw",
    "Pace",
    "Canvas",
    "Event",
    "Film",
    "Filmed",
    "Frame",
    "Mark",
    "Probe",
    "OrderCosts",
    "TrainingRows",
    "UnsupportedError",
    "Cache",
    "Batcher",
    "Session",
    "Captured",
    "CaptureError",
    "FixedCapacity",
}
LONG = [
    f"ddlib.integrations.{name}" for name in ("lightning", "lightning_data", "transformers")
]  # slow to import


def test_readme_is_short_and_has_an_example_of_at_most_twenty_lines_and_the_two_commands():
    text = (ROOT / "README.md").read_text()
    code = [line for line in BLOCKS[0].splitlines() if line.strip()]
    assert len(text.splitlines()) <= 120 and len(code) <= 20
    assert 0 < text.index("make quickstart") < text.index("make test")


def anchors(page):
    """Anchors of the headings of a page, as GitHub and MyST generate them."""
    text = page.read_text()
    titles = re.findall(r"^#+ (.*)", text, re.M)
    labels = re.findall(r"^\((.+)\)=$", text, re.M)
    return {*labels, *(re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles)}


PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").rglob("[!_]*.md")),
    *sorted((ROOT / "studies").rglob("*.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_to_files_and_headings(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    for path, anchor in re.findall(r"\]\(([^)\s#:]*)(?:#([^)\s]+))?\)", text):
        target = page.parent / path if path else page
        assert target.exists(), path
        assert not anchor or anchor in anchors(target), f"{path}#{anchor}"


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize("name", MODULES)
def test_docstring_examples(name):
    module = importlib.import_module(name)
    assert doctest.testmod(module, extraglobs={"torch": torch}).failed == 0


def test_registered_names_are_the_declared_ones():
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    for kind in ddlib.registry.GROUPS:
        names = set(declared[f"ddlib.{kind}"])
        assert names <= set(ddlib.registry.available(kind))
        assert all(callable(ddlib.registry.get(kind, name)) for name in names)
    rooms = {}
    for kind in ddlib.registry.PROVED:
        for name, place in declared[f"ddlib.{kind}"].items():
            part = ddlib.registry.get(kind, name)
            assert isinstance(part, type)
            rooms.setdefault(place.partition(":")[0], set()).add(part.__name__)
    for room, loaded in rooms.items():
        module = importlib.import_module(room)
        public = {name for name in module.__all__ if isinstance(getattr(module, name), type)}
        assert loaded == public - HELPERS

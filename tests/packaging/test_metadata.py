"""Metadata of a release: one version everywhere, a citation, a lower bound of every dependency."""

import re
import tomllib
from datetime import date
from pathlib import Path

import yaml

import ddlib

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOOLS = {"dev", "docs"}  # extras of tools, whose exact versions are in constraints/cpu.txt


def test_the_version_is_one():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == ddlib.__version__
    heading = f"## [{ddlib.__version__}] - {citation['date-released']}"
    assert heading in (ROOT / "CHANGELOG.md").read_text().splitlines()
    assert date.fromisoformat(str(citation["date-released"]))


def test_the_citation_has_the_required_fields():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    paper = citation["preferred-citation"]
    assert citation["cff-version"] == "1.2.0" and citation["license"] == PROJECT["license"]
    assert all(citation[key] for key in ("message", "title", "authors"))
    assert all(paper[key] for key in ("type", "title", "authors", "year"))


def test_every_dependency_has_a_lower_bound():
    extras = PROJECT["optional-dependencies"]
    wanted = PROJECT["dependencies"] + [
        one for name in extras.keys() - TOOLS for one in extras[name]
    ]
    without = [one for one in wanted if not re.search(r"(>=|==)\s*\d", one)]
    assert wanted and not without


def test_the_tools_are_one_list():
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    assert groups["dev"] == PROJECT["optional-dependencies"]["dev"]


def test_no_entry_point_leads_out_of_the_wheel():
    for group, points in PROJECT["entry-points"].items():
        for name, target in points.items():
            # ddlib.config.registry hides these groups if the recipes are not installed
            in_recipes = group in ("ddlib.sources", "ddlib.metrics", "ddlib.objectives")
            packages = ("ddlib", "ddlib_models", *(("recipes",) if in_recipes else ()))
            assert target.split(":")[0].split(".")[0] in packages, (group, name)

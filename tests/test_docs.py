"""Pages of the documentation and the README: examples run with the output shown, and commands can
be parsed.
"""

import argparse
import importlib
import inspect
import json
import re
import shlex
import sys
from pathlib import Path

import figures_architecture
import pages
import pytest
import torch
import tyro
from PIL import Image

import ddlib as dd
from benchmarks import walks
from recipes.config import ModelContext, RunContext, recipe_yaml
from recipes.config import command as command_line
from recipes.owt import recipes

ROOT = Path(__file__).parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs").glob("[!_]*/*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
COMMAND = re.compile(r"(?:torchrun [-\w ]+? -m|\S*python -m) ((?:recipes|ddlib)\b.*)")


class Understood(BaseException):
    """Signal that a command line was parsed, raised before the command does anything."""


def commands(page):
    """Commands after `python -m` in the blocks of a page that are not executed, without
    comments.
    """
    text = re.sub(r"^% runs\n+```bash\n.*?^```", "", page.read_text(), flags=re.S | re.M)
    for block in re.findall(r"^ *```(?:bash|sh)\n(.*?)^ *```", text, re.S | re.M):
        for line in block.replace("\\\n", " ").splitlines():
            found = COMMAND.search(line)
            if found:
                yield shlex.split(found[1], comments=True)


ALL = {tuple(words): page.name for page in reversed(PAGES) for words in commands(page)}
"""Every command, and the first page that shows it."""


RUN_HERE = [
    page for page in PAGES if page not in pages.notebooks()
]  # test_notebooks.py runs the others


@pytest.mark.usefixtures("as_users_call")
@pytest.mark.parametrize(
    "page",
    RUN_HERE,
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_a_page_runs_as_it_is_written(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    pages.run(page)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n", "line 5 says"),
        ("```python\nassert 1 + 1 == 3, 'sum'\n```\n", "sum"),
        ("```python\n>>> 1 + 1\n3\n\n```\n", "Expected"),
        ("% runs\n\n```bash\nfalse\n```\n", "ends with status 1"),
        ("% runs\n\n```bash\necho two\n```\n\n```text\nthree\n```\n", "line 7 says"),
        ("![a picture](../images/tutorials/none.png)\n", "does not write"),
    ],
)
def test_a_page_that_is_wrong_fails(wrong, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "page.md").write_text(wrong)
    with pytest.raises(AssertionError, match=message):
        pages.run(tmp_path / "page.md")


def test_values_filled_in_by_a_run_are_documented():
    rows = re.findall(
        r"^\| `(\w+)` \| (yes|) ?\| (yes|) ?\|",
        (ROOT / "docs" / "recipes" / "train.md").read_text(),
        re.M,
    )
    for kind, names in (
        (RunContext, {row[0] for row in rows if row[1]}),
        (ModelContext, {row[0] for row in rows if row[2]}),
    ):
        assert names == {name for name in vars(kind) if not name.startswith("_")}


def test_every_argument_of_sample_is_in_one_group():
    page = (ROOT / "docs" / "reference" / "ddlib.md").read_text()
    (table,) = re.findall(
        r"^\| group \| arguments of `sample` \|\n\| --- \| --- \|\n(.*?)\n\n", page, re.M | re.S
    )
    assert sorted(re.findall(r"`(\w+)`", table)) == sorted(inspect.signature(dd.sample).parameters)


def test_commands_are_found():
    assert {name for name, *_ in ALL} >= {
        "ddlib",
        "recipes.owt",
        "recipes.prepare",
        "recipes.evaluate",
    }
    assert len(ALL) > 20


@pytest.mark.parametrize("command", sorted(ALL), ids=" ".join)
def test_a_command_is_understood(command, tmp_path, monkeypatch):
    def then_stop(parse):
        def parsed(*args, **options):
            parse(*args, **options)
            raise Understood

        return parsed

    name, *words = command
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        argparse.ArgumentParser, "parse_args", then_stop(argparse.ArgumentParser.parse_args)
    )
    monkeypatch.setattr(tyro, "cli", then_stop(tyro.cli))
    monkeypatch.setattr(command_line, "with_flags", then_stop(command_line.with_flags))
    monkeypatch.syspath_prepend(tmp_path)
    Path("mine.yaml").write_text(recipe_yaml(recipes()["hdlm"][1]))
    Path("person.json").write_text('{"type": "object", "properties": {"name": {"type": "string"}}}')
    Path("noise.py").write_text("import ddlib as dd\n\nprocess = dd.presets.hdlm([0, 0, 1, 1])\n")
    main = importlib.import_module("ddlib.__main__" if name == "ddlib" else name).main
    with pytest.raises(Understood):
        if name == "recipes.harness":
            monkeypatch.setattr(sys, "argv", [name, *words])
            main()
        else:
            main(words)


def prose(page):
    """Text of a page without blocks of code and formulas."""
    return re.sub(r"```.*?```|\$[^$]*\$", "", page.read_text(), flags=re.S)


PRIVATE = re.compile(r"\b(?:rooms?|leaf|laws?|clocks?|whoever|nobody|everybody)\b", re.I)
"""Earlier terms of this repository for package, subclass, distribution and schedule, and pronouns
of persons.
"""
AS_WRITTEN = (
    "errata.md",
    "draws.md",
)  # proofs and protocols, which are not edited


@pytest.mark.parametrize(
    "page",
    [ROOT / "CONTRIBUTING.md", *(page for page in PAGES if page.name not in AS_WRITTEN)],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_a_page_uses_the_terms_of_the_field(page):
    assert not PRIVATE.findall(
        re.sub(r"`[^`]*`|<!-- table.*?<!-- end of tables? -->", "", prose(page), flags=re.S)
    )


RESULTS = [
    *(f"studies/{page.stem}" for page in sorted((ROOT / "docs" / "studies").glob("*.md"))),
    "performance",
]


def test_each_study_has_a_row_of_the_findings():
    findings = (ROOT / "docs" / "findings.md").read_text()
    named = {name for name in RESULTS if f"| []({name}.md) |" in findings}
    assert named == {*RESULTS} - {"performance"}
    assert all(f"\n{name}\n" in findings for name in named), "add the page to the contents"


def test_sections_of_the_theory_that_docstrings_cite_exist():
    theory = (ROOT / "docs" / "concepts" / "theory.md").read_text()
    sections = set(re.findall(r"^## (\d+)\.", theory, re.M))
    missing = [
        f"{file.relative_to(ROOT)}: section {number}"
        for package in ("ddlib", "ddlib_models", "recipes", "benchmarks", "tests")
        for file in sorted((ROOT / package).rglob("*.py"))
        for cited in re.findall(
            r"theory,? sections? (\d+(?:(?:,| and|, and) \d+)*)", file.read_text()
        )
        for number in re.findall(r"\d+", cited)
        if number not in sections
    ]
    assert not missing, "\n".join(missing)


def test_the_picture_of_the_packages_is_that_of_the_code():
    drawn = json.loads(Image.open(figures_architecture.PICTURE).text["Description"])
    renew = "run python docs/figures_architecture.py"
    assert drawn == sorted(map(list, figures_architecture.imports().edges)), renew


@pytest.mark.parametrize("name", ["dd.training_loss", "dd.sample(Remask)"])
def test_a_walk_names_files_that_the_call_goes_through(name):
    text = (
        (ROOT / "docs" / "architecture.md").read_text().partition(f"## A token through `{name}`")[2]
    )
    named = re.findall(r"`(\w+/[\w/]+\.py)`", text.partition("\n## ")[0])
    assert len(named) > 5 and set(named) <= set(walks.walk(walks.calls()[name]).files)


def test_files_are_counted_in_the_order_in_which_they_are_entered():
    for name, call in walks.calls().items():
        walked = walks.walk(call)
        assert len(walked.files) <= walked.functions <= walked.calls, name
        assert len(set(walked.files)) == len(walked.files), name
        assert all((ROOT / "ddlib" / file).exists() for file in walked.files)


AS_IT_COMES = (
    "5_plugin.md",
    "README.md",
)  # a report of verify has long lines; GitHub renders the README
PRINTED = {
    page: found
    for page in PAGES
    if page.name not in AS_IT_COMES
    and (found := re.findall(r"^ *```text\n(.*?)^ *```", page.read_text(), re.S | re.M))
}
"""Blocks of output in each page."""


@pytest.mark.parametrize("page", PRINTED, ids=lambda page: str(page.relative_to(ROOT)))
def test_printed_output_fits_the_page(page):
    for block in PRINTED[page]:
        assert max(map(len, block.splitlines())) <= 128, (
            block
        )  # the style sheet wraps lines longer than 108


def test_no_line_of_code_scrolls_out_of_sight():
    assert re.search(
        r"\.highlight pre \{ white-space: pre-wrap;", (ROOT / "docs/_static/math.css").read_text()
    )
    assert "math.css" in (ROOT / "docs/conf.py").read_text()

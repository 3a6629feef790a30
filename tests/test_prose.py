"""Language of pages, docstrings and messages: plain English, in the terms of the field."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FINISHED = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["extend-exclude"]
"""Folders of finished studies, which are records."""
PACKAGES = [
    *sorted(
        f"ddlib/{folder.name}"
        for folder in (ROOT / "ddlib").iterdir()
        if (folder / "__init__.py").exists()
    ),
    *sorted(f"ddlib/{file.name}" for file in (ROOT / "ddlib").glob("*.py")),
    "ddlib_models",
    "recipes",
    "benchmarks",
    "studies",
    "tests",
]


def sources(package: str) -> list[Path]:
    """Return the Python files of a package, without those of finished studies."""
    root = ROOT / package
    files = sorted(root.rglob("*.py")) if root.is_dir() else [root]
    return [file for file in files if not any(file.is_relative_to(ROOT / one) for one in FINISHED)]


IDIOM = re.compile(
    r"\b(whoever|nobody|everybody|somebody|anybody|says?|said|told|tells?|ask(s|ed|ing)?|knows?|knew|hears?|heard"
    r"|(has|have|having) a say|of (its|their) own|held to|laws?|clocks?|leaf|rooms?)\b",
    re.IGNORECASE,
)
"""Idioms used in place of a term of the field.

``word`` and ``text`` are allowed: natural language has both.
"""
PERSON = re.compile(
    (
        r"\b(thinks?|thought|opinion|takes? (it|them) back|goes on|no way|wants?|gives? "
        r"up|nevertheless|the like)\b"
    ),
    re.IGNORECASE,
)
"""Further idioms that messages must not have: they ascribe opinions and intentions to objects."""
ODD = re.compile(
    r"\b((that|which) (is|are) no (?!more|less|longer|better|worse|later|slower)\w"
    r"|(?<!atrix )products (are )?in bfloat16|serves|served as|by far|as ever \d|drawn? "
    r"(\w+ )?together|goes on after"
    r"|(id|label)s? and one\b|have to call|leaves no sequence|counts? as one|whole "
    r"copies|neighbouring times)"
    r"|\| (less the|less \w+ in|take it)\b",
    re.IGNORECASE,
)
"""English that a native engineer does not write, in pages, docstrings and messages."""


def definitions(path: Path) -> Iterator[ast.AST]:
    """Yield the module of a file and all statements in it, without expressions, which define
    nothing.
    """
    nodes: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while nodes:
        yield (node := nodes.pop())
        nodes += [
            n
            for n in ast.iter_child_nodes(node)
            if isinstance(n, ast.stmt | ast.ExceptHandler | ast.match_case)
        ]


def docstrings(path: Path) -> Iterator[tuple[str, int, str]]:
    """Yield (kind of node, line, docstring without names in backticks and names of arguments) of a
    file.
    """
    for node in definitions(path):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = ast.get_docstring(node)
            if text:
                text = re.sub(r"(?m)^ {4}\w+:", "", re.sub(r"`+[^`]*`+", "``", text))
                yield type(node).__name__, getattr(node, "lineno", 1), text


def messages(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, text) of the strings of a file that have four or more words and are not
    docstrings.
    """
    tree = ast.parse(path.read_text(encoding="utf-8"))
    apart = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            apart.add(node.value)
        elif isinstance(node, ast.JoinedStr):
            apart.update(node.values)
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            text = "".join(
                one.value if isinstance(one, ast.Constant) else "{}" for one in node.values
            )
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and node not in apart:
            text = node.value
        else:
            continue
        if len(text.split()) > 3:
            yield node.lineno, text


@pytest.mark.parametrize("package", ["ddlib", "ddlib_models", "recipes", "benchmarks", "studies"])
def test_messages_use_the_terms_of_the_field(package):
    found = [
        f"{file.relative_to(ROOT)}:{line}: [{idiom[0]}] {text}"
        for file in sources(package)
        for line, text in messages(file)
        if (idiom := IDIOM.search(text) or PERSON.search(text))
    ]
    assert not found, "\n".join(["", *found])


def test_pages_docstrings_and_messages_are_plain_english():
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    texts = [
        (page, n, line)
        for page in pages
        for n, line in enumerate(page.read_text("utf-8").splitlines(), 1)
    ]
    for package in PACKAGES:
        for file in sources(package):
            found = [*messages(file), *((line, text) for _, line, text in docstrings(file))]
            texts += [(file, line, text) for line, text in found]
    assert len(pages) > 50
    texts = [(file, line, ODD.search(text)) for file, line, text in texts if file != Path(__file__)]
    odd = [f"{file.relative_to(ROOT)}:{line}: {found[0]}" for file, line, found in texts if found]
    assert not odd, "\n".join(["", *odd])

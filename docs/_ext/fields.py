"""Directive that lists the fields of a dataclass, named as on the command line, with their
docstrings.

    ```{fields} recipes.config.Optimizer
    :prefix: optimizer
    ```

autodoc is not used because napoleon parses the text before a colon in the docstring of a field as
its type.
"""

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from importlib import import_module
from typing import ClassVar, get_args

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.pycode import ModuleAnalyzer
from sphinx.util.docutils import SphinxDirective
from sphinx.util.typing import stringify_annotation


class Fields(SphinxDirective):
    """Definition list of names, types, defaults and docstrings, without fields whose type is a
    dataclass.
    """

    required_arguments = 1
    option_spec: ClassVar = {"prefix": str, "leave-out": str.split}

    def run(self) -> list[nodes.Node]:
        module, _, name = self.arguments[0].rpartition(".")
        kind = getattr(import_module(module), name)
        told = {}
        for base in filter(_nested, reversed(kind.__mro__)):  # fields may be inherited
            docs = ModuleAnalyzer.for_module(base.__module__).find_attr_docs()
            told |= {field: text for (owner, field), text in docs.items() if owner == base.__name__}
        prefix = f"{self.options['prefix']}." if "prefix" in self.options else ""
        self.env.note_dependency(import_module(kind.__module__).__file__)
        items = nodes.definition_list()
        for field in fields(kind):
            kinds = get_args(field.type)
            nested = any(
                map(
                    _nested,
                    (field.type, *kinds, *(inner for one in kinds for inner in get_args(one))),
                )
            )
            if nested or field.name in self.options.get("leave-out", ()):
                continue
            shown = re.sub(r"~?(?:\w+\.)+(?=\w)", "", stringify_annotation(field.type, "smart"))
            default = "" if field.default is MISSING else f" = {_plain(field.default)}"
            term = nodes.term(
                "", "", nodes.literal(text=prefix + field.name), nodes.Text(f" {shown}{default}")
            )
            text = " ".join(told.get(field.name, ()))
            items += nodes.definition_list_item(
                "", term, nodes.definition("", nodes.paragraph("", "", *_inline(text)))
            )
        return [nodes.paragraph("", "", *_inline(kind.__doc__.partition("\n")[0])), items]


def _nested(kind: object) -> bool:
    return hasattr(kind, "__dataclass_fields__")


def _plain(default: object) -> str:
    return "none" if default is None else str(default)


def _inline(text: str) -> Iterator[nodes.Node]:
    for number, part in enumerate(text.strip().split("``")):
        yield nodes.literal(text=part) if number % 2 else nodes.Text(part)


def _keep_colon(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Prepend a line without a colon, since napoleon parses the text before a colon as the type of
    an attribute.
    """
    if what in ("attribute", "data", "property") and lines:
        lines.insert(0, "\\ ")  # which renders as nothing


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_directive("fields", Fields)
    app.connect("autodoc-process-docstring", _keep_colon, priority=400)  # before napoleon, at 500
    return {"parallel_read_safe": True, "parallel_write_safe": True}

"""Sphinx extension that converts TeX to MathML at build time with docutils, so that pages need no
network.
"""

import re
from html import escape
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.util import logging

logger = logging.getLogger(__name__)

# TeX that docutils does not support, or renders wrongly: it sets a prime as an upright apostrophe.
ALIASES = [
    (r"\\dots\b", r"\\ldots"),
    (r"'+", lambda quotes: "^{" + r"\prime" * len(quotes[0]) + "}"),
]


def mathml(tex: str, node: nodes.Element, as_block: bool) -> str:
    if as_block and r"\\" in tex and r"\begin" not in tex:
        tex = rf"\begin{{aligned}}{tex}\end{{aligned}}"
    for pattern, replacement in ALIASES:
        tex = re.sub(pattern, replacement, tex)
    try:
        return tex2mathml(tex, as_block=as_block)
    except MathError as error:
        logger.warning("formula %r: %s", tex, error, location=node)
        return f"<code>{escape(tex)}</code>"


def visit_math(self: Any, node: nodes.math) -> None:
    self.body.append(mathml(node.astext(), node, as_block=False))
    raise nodes.SkipNode


def visit_math_block(self: Any, node: nodes.math_block) -> None:
    self.body.append('<div class="math">')  # the theme wraps it in an element that has the anchor
    if node["number"]:
        self.body.append(f'<span class="eqno">({node["number"]})')
        self.add_permalink_ref(node, "Permalink to this equation")
        self.body.append("</span>")
    self.body.append(mathml(node.astext(), node, as_block=True) + "</div>\n")
    raise nodes.SkipNode


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_html_math_renderer("mathml", (visit_math, None), (visit_math_block, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}

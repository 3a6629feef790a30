"""Tables of Markdown, for pages of studies in use."""

from collections.abc import Sequence

END = "<!-- end of tables -->"
MISSING = "not yet run"
"""Text of a cell that is not measured yet."""


def table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [heading, ["---"] * len(heading), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)

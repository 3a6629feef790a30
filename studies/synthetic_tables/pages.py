"""Page."""

from pathlib import Path

PAGE = Path("/tmp/tablepage.md")
IMAGES = Path("/tmp")
BEGIN = "<!-- tables: python -m studies.synthetic_tables.run -->"


def tables(result):
    return ""


def draw(result, folder):
    pass

"""Texts on their way from noise, kept step by step, and one page of HTML that shows them."""

from recipes.visualization.filmed import Event, Filmed, Frame, Mark, Text
from recipes.visualization.page import write_page

__all__ = ["Event", "Filmed", "Frame", "Mark", "Text", "write_page"]

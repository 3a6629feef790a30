"""Visualization of denoising trajectories, recorded step by step, on one HTML page."""

from recipes.visualization.filmed import Event, Filmed, Frame, Mark, Text
from recipes.visualization.page import write_page

__all__ = ["Event", "Filmed", "Frame", "Mark", "Text", "write_page"]

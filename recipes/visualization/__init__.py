"""Visualization of denoising trajectories, recorded step by step, on one HTML page."""

from recipes.visualization.page import write_page

__all__ = ["write_page"]

"""Sphinx configuration. The built pages load nothing from a network."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent)]

import ddlib  # noqa: E402

project = "ddlib"
author = "The ddlib authors"
copyright = author
release = ddlib.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "fields",
    "notebooks",
    "offline_math",
]
exclude_patterns = ["_build"]
notebooks = [
    "tutorials/1_first_process",
    "tutorials/2_hierarchy",
    "tutorials/4_schedule",
    "tutorials/11_pictures_and_labels",
]  # pages that are also built as Jupyter notebooks
myst_enable_extensions = ["dollarmath", "amsmath", "deflist"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = (
    True  # shows `xp=torch` instead of the repr of the module, which has a local path
)
autodoc_default_options = {"members": True, "show-inheritance": True}
napoleon_numpy_docstring = False

html_theme = "furo"
html_title = f"ddlib {release}"
html_static_path = ["_static"]
html_css_files = ["math.css"]
html_math_renderer = "mathml"
html_copy_source = False

"""Recipes: complete experiments, each a script that reads from top to bottom."""

import os
import random
import sys

if "torch" not in sys.modules:
    # OpenMP's threads spin while they wait: beside another process on the same cores a run takes
    # many times as long. They read this once, when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# a module of rich, which the commands print with, draws from Python's generator when it is imported
_before = random.getstate()
import rich.style  # noqa: E402, F401

random.setstate(_before)

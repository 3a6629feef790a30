"""Recipes: complete experiments, each a script that reads from top to bottom."""

import os
import sys

if "torch" not in sys.modules:
    # OpenMP's threads spin while they wait: beside another process on the same cores a run takes many times as long.
    # They read this once, when torch is imported.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

"""Recipes: whole experiments that read from top to bottom."""

import os
import sys

if "torch" not in sys.modules:
    # OpenMP's threads spin while they wait, and beside any other process on the same cores a run takes many times as
    # long; they read this once, when torch comes with them
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

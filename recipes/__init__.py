"""Recipes: whole experiments that read from top to bottom."""

import os

# Before torch is loaded: threads that spin while they wait leave a tenth of the speed to a small network on a machine that
# does something else besides. It changes no number.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

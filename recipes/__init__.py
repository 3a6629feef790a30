"""Recipes: whole experiments that read from top to bottom."""

import os

# Before torch is loaded: on a machine that does something else besides, threads that spin while they wait leave a small
# network a tenth of its speed. It changes no number.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

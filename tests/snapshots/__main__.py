"""Renew the snapshots: ``python tests/snapshots [NAME ...]``, such as ``flags draws``.

Without names, all.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import public_interface
import recorded_draws
import recorded_refusals

SUBJECTS = public_interface.SUBJECTS | recorded_draws.SUBJECTS | recorded_refusals.SUBJECTS

if __name__ == "__main__":
    for name in sys.argv[1:] or SUBJECTS:
        path = public_interface.path_of(name)
        path.write_text(public_interface.as_text(SUBJECTS[name]()), encoding="utf-8")
        print(path)

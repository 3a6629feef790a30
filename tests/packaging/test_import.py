"""``import ddlib`` loads nothing that its everyday use does not need. How long it takes is for ``make wheel``."""

import json
import os
import subprocess
import sys

import pytest

HEAVY = {
    "scipy",
    "matplotlib",
    "transformers",
    "sklearn",
    "pandas",
    "datasets",
    "diffusers",
    "lightning",
    "accelerate",
    "triton",
    "huggingface_hub",
}


@pytest.mark.slow
def test_import_ddlib_loads_no_heavy_package():
    code = "import ddlib, json, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    env = os.environ | {"DDLIB_SHAPECHECK": "0"}  # which the tests turn on, and which reads every file
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env)
    loaded = set(json.loads(done.stdout))
    assert {"torch", "ddlib"} <= loaded and not loaded & HEAVY

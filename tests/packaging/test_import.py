"""Modules that ``import ddlib`` loads. ``make wheel`` checks the time of the import."""

import json
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
    "pydantic",
    "beartype",
}


TRAINING = {
    "sklearn",
    "scipy.stats",
    "torch.distributed.checkpoint",
    "torch.distributed.fsdp",
    "recipes.engine.loop",
}
"""Modules with slow imports that only training, clustering and metrics of molecules use."""


def loaded(module):
    """Names of the modules that are loaded after the import of a module in a new process."""
    code = f"import {module}, json, sys; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout))


def test_import_ddlib_loads_no_heavy_package():
    names = {name.partition(".")[0] for name in loaded("ddlib")}
    assert {"torch", "ddlib"} <= names and not names & HEAVY


@pytest.mark.parametrize("command", ["generate", "evaluate", "prepare"])
def test_commands_that_do_not_train_load_nothing_for_training(command):
    assert not loaded(f"recipes.{command}") & TRAINING

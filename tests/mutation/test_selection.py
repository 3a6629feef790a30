"""The tests that mutation testing selects exist and are collected without plug-ins."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MUTMUT = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mutmut"]


@pytest.mark.parametrize(
    "option", [o for o in MUTMUT["pytest_add_cli_args"] if o.startswith("--deselect=")]
)
def test_a_deselected_test_exists(option):
    path, _, name = option.removeprefix("--deselect=").partition("::")
    assert f"def {name}(" in (ROOT / path).read_text()


def test_the_selected_tests_are_collected():
    command = [
        sys.executable,
        "-m",
        "pytest",
        "--collect-only",
        "-q",
        *MUTMUT["pytest_add_cli_args"],
    ]
    command += MUTMUT["pytest_add_cli_args_test_selection"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]

"""Python in a new process, and tests of kernels in Triton's interpreter."""

import os
import re
import subprocess
import sys


def python(*arguments, **environment):
    """Return the output of a new process."""
    completed = subprocess.run(
        [sys.executable, *arguments],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout + completed.stderr
    return completed.stdout


def count_passed(tests, config):
    """Run a file of tests in the interpreter; return how many passed.

    In a separate process: the variable must be set before Triton is imported, and excludes compiled
    kernels.
    """
    budget = f"--budget={config.getoption('budget')}"
    arguments = ("-q", "-n", "0", "-p", "no:cacheprovider", budget, str(tests))
    output = python("-m", "pytest", *arguments, TRITON_INTERPRET="1")
    (passed,) = re.findall(r"(\d+) passed", output)
    return int(passed)

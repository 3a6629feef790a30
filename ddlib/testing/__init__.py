"""Tools for the tests of plug-ins: contract checks, a dense oracle, and hypothesis strategies.

The strategies require ``pip install ddlib[testing]``.
"""

from ddlib.testing.contracts import check, check_registered
from ddlib.testing.contracts import former as __getattr__  # noqa: F401

__all__ = ["check", "check_registered"]

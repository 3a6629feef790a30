"""Tools for the tests of plug-ins: contract checks, a dense oracle, and hypothesis strategies.

The strategies require ``pip install ddlib[testing]``.
"""

from ddlib.testing import oracle
from ddlib.testing.contracts import check, check_registered

__all__ = ["check", "check_registered", "oracle"]

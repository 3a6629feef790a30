"""Tools for the tests of plug-ins: contract checks, a dense oracle, and hypothesis strategies.

The strategies require ``pip install ddlib[testing]``.
"""

from ddlib.testing.contracts import (
    check_corrector,
    check_guidance,
    check_hierarchy,
    check_pace,
    check_process,
    check_registered,
    check_sampler,
    check_schedule,
    check_time_density,
    check_weighting,
)

__all__ = [
    "check_corrector",
    "check_guidance",
    "check_hierarchy",
    "check_pace",
    "check_process",
    "check_registered",
    "check_sampler",
    "check_schedule",
    "check_time_density",
    "check_weighting",
]

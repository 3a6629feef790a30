"""Reference implementations: slow, dense and independent computations of a process's properties."""

from ddlib.verification.framework.reference import *  # noqa: F403

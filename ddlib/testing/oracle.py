"""Reference implementations: slow, dense and independent computations of a process's properties."""

from ddlib.verification.framework.oracle import *  # noqa: F403

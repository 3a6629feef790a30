"""Reference implementations: slow, dense and independent computations of a process's properties."""

from ddlib.verification.framework.oracle import (
    exact_cavity,
    exact_posterior,
    integrate_bound,
    integrate_forward,
    logistic,
    states,
    tanh_sinh,
)

__all__ = [
    "exact_cavity",
    "exact_posterior",
    "integrate_bound",
    "integrate_forward",
    "logistic",
    "states",
    "tanh_sinh",
]

"""Slow, dense and independent ways to know what a process should do."""

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

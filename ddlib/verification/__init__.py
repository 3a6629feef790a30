"""VERIFICATION: a proof, to rounding, that an object is what it claims to be, or a counterexample."""

from ddlib.verification.report import Check, Counterexample, Place, Report
from ddlib.verification.verifier import verify

__all__ = ["Check", "Counterexample", "Place", "Report", "verify"]

"""Verification: checks of the mathematical properties of an object, with counterexamples
(VERIFICATION).
"""

from ddlib.verification.report import Check, Counterexample, Place, Report
from ddlib.verification.verifier import verify

__all__ = ["Check", "Counterexample", "Place", "Report", "verify"]

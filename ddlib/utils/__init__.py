"""Helpers of all packages: validation, randomness, precision, printing."""

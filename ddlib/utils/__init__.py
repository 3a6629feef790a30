"""Utilities shared by all packages: validation, randomness, precision, printing."""

"""Sampling in steps of fixed sizes."""

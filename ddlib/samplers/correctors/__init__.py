"""Correctors: steps that keep the distribution of the states at a time."""

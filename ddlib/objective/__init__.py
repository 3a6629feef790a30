"""Objectives: the bound, the training loss, and the numbers that are reported."""

"""Objectives: the bound, the training loss, and reported metrics."""

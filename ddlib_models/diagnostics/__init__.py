"""Diagnostics of pretrained networks."""

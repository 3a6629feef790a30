"""Plug-ins: registered names, and objects built from plain values."""

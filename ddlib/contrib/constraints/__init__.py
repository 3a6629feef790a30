"""Constraints: automata over tokens that accept the drawn sequences."""

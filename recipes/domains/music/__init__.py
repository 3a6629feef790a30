"""Melodies and chorales as sequences of pitches."""

"""Machinery of a sampling run: the model wrapper, the loop over steps, the reverse step."""

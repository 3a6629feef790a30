"""Machinery of a sampling run: the model, the loop over steps, the reverse step."""

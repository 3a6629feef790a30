"""Rules that choose the lengths of sequences while they are drawn."""

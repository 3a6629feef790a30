"""Names of files in the folder of a run besides checkpoints, and of its folder of weights."""

RECIPE, TOKENIZER, CLUSTERS, WEIGHTS = "recipe.yaml", "tokenizer.json", "clusters", "weights"
SPEEDS = "speeds.safetensors"
"""Learned speeds of the noise, by the names of the parameters."""
SYMBOLS = "symbols.json"
"""Layout of the sequences, for a model of symbols that are not text."""
COUNTS = "counts.safetensors"
"""Number of occurrences of each token, if a part required it."""

"""What the folder of a run holds besides checkpoints: names of files, and of the folder of weights in it."""

RECIPE, TOKENIZER, CLUSTERS, WEIGHTS = "recipe.yaml", "tokenizer.json", "clusters", "weights"
SPEEDS = "speeds.safetensors"
"""What was learned of the noise, by the names of its parameters."""
COUNTS = "counts.safetensors"
"""How often each word occurs, where a part asked for it."""

"""What the folder of a run holds besides checkpoints: names of files, and of the folder of weights in it."""

RECIPE, TOKENIZER, CLUSTERS, WEIGHTS = "recipe.yaml", "tokenizer.json", "clusters", "weights"
COUNTS = "counts.safetensors"
"""How often each word occurs, where a part asked for it."""

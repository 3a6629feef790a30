"""Meaning of a network's logits: cavity, posterior, and child distributions of a hierarchy."""

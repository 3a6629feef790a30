"""Training objectives: what a batch becomes, and the loss of each of its tokens (``loss.kind``)."""

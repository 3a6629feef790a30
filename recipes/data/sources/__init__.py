"""Sources of sequences of symbols."""

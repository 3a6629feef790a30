"""Claims about processes."""

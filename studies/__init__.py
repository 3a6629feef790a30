"""Studies: each with its protocol, its run, its results and its page."""

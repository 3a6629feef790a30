"""Study of rewards: exact path probabilities against ratios of bounds."""

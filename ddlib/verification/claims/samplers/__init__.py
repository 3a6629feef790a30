"""Claims about samplers, correctors, guidance and likelihoods."""

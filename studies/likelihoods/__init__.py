"""Which diffusion likelihoods are likelihoods? Page: docs/likelihoods.md."""

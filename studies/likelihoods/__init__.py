"""Which diffusion likelihoods are likelihoods? The protocol is protocol.md, the page docs/likelihoods.md."""

"""Framework of the claims: inputs, oracles, comparisons, dependencies, blame."""

"""Framework of verification: inputs, oracles, comparisons, dependencies, location of errors."""

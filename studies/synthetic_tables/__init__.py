"""Study of synthetic tables: products of processes, CTGAN, a copula and independent columns."""

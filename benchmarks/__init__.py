"""What is fast, and by how much: ``python -m benchmarks.run``, then ``python -m benchmarks.table``."""

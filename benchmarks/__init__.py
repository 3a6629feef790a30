"""Benchmarks of speed and memory: ``python -m benchmarks.run``, then ``python -m
benchmarks.table``.
"""

"""Evaluation: exact likelihoods, scores of samples, the report."""

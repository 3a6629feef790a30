"""Domains other than text: sources of sequences, metrics and drawings of samples."""

"""Proteins and peptides as sequences of amino acids."""

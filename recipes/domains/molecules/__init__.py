"""Molecules as SMILES."""

"""Recipes: whole experiments that read from top to bottom."""

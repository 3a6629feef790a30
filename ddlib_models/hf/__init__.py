"""Backbones from Hugging Face transformers."""

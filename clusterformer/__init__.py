"""Transformers whose attention learns to cluster."""

__version__ = "0.1.0"

"""Transformers over any attention mechanism."""

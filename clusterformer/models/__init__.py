"""Embeddings, encoder and pooling."""

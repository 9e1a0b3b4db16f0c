"""Text to tensors: files, tokenizers, batches and named data sets."""

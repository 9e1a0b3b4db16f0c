"""Fast operations: one per file, specified in plain PyTorch by reference.py."""

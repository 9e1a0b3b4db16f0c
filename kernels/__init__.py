"""The speed: one operation a file, defined in plain PyTorch by reference.py."""

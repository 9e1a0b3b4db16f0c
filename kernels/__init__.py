"""Fast operations, one a file; reference.py, or `reference` in the file, defines each."""

"""Comparing runs: from a file that lists them to a table and a page."""

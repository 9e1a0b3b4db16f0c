"""Clustering: statistics of groupings, and methods that mechanisms share."""

"""Clustering methods that attention and estimators share."""

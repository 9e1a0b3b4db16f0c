"""Experiments as YAML, found by bare name from any folder."""

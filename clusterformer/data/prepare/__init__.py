"""Preparation of the named data sets: fetched from their publishers, converted and checked."""

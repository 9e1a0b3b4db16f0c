"""Fetch named data sets from their publishers and convert them."""

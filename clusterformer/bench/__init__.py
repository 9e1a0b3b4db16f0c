"""Measuring mechanisms side by side: time, memory, operations and error."""

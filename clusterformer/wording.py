"""Numbers as the commands print them: measures, counts and durations."""

from __future__ import annotations


def formatted(name: str, value: float) -> str:
    """Write a measure: a perplexity to 4 significant digits, anything else to 4 decimals."""
    return f"{value:.4g}" if "perplexity" in name else f"{value:.4f}"


def counted(number: int, noun: str) -> str:
    """Write a number with its noun, as in "1 epoch" and "3 epochs"."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    """Write a time with its two largest units, as in "2 h 5 min" and "40 s"."""
    minutes, seconds = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds} s" if minutes else f"{seconds} s"

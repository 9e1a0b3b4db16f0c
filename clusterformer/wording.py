"""Wording of what the commands print: measures, counts, durations, and names that are unknown."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable


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


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Ask for the known name that is nearest to an unknown one; empty if none is near.

    Args:
        name: Name as it was given.
        known: Names that there are; the dashes of options do not make them alike.
    """
    words = {each.lstrip("-"): each for each in known}
    close = difflib.get_close_matches(name.lstrip("-"), words, 1)
    return f"did you mean {words[close[0]]}?" if close else ""


def suggested(name: str, known: Collection[str]) -> str:
    """Ask for the known name that is nearest to an unknown one, if one is near, and list all."""
    return f"{did_you_mean(name, known)} there is {', '.join(known) or 'none'}".lstrip()

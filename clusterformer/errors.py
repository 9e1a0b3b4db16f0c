"""Errors that a user can make, checks of options, and the one way to read the user's files."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


class InputError(ValueError):
    """Bad input or option, in one line: where, what was found, what is allowed.

    The command line prints the message alone and exits with code 2.
    """


class Position:
    """Position that a reader has reached, for the message of an error.

    Attributes:
        path: File, or another name of the input.
        line: Number of the line from 1; 0 if the input has no lines.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = path
        self.line = 0

    def __str__(self) -> str:
        return f"{self.path}:{self.line}" if self.line else f"{self.path}"


@contextmanager
def reading(path: str | Path, kind: str) -> Iterator[Position]:
    """Turn whatever a library raises while it reads the user's input into an InputError.

    Every reader stands inside it, so that bad input is one line and never a traceback. An
    InputError passes unchanged.

    Example:
        >>> with reading(path, "a JSON file") as at:
        ...     for at.line, text in enumerate(path.open(encoding="utf-8"), 1):
        ...         rows.append(json.loads(text))

    Args:
        path: File, or another name of the input.
        kind: Format that is allowed, such as "a JSON file".

    Yields:
        The position; the reader sets its `line`, where the format has lines.

    Raises:
        InputError: for any other exception, with the position and the kind.
    """
    at = Position(path)
    try:
        yield at
    except InputError:
        raise
    except Exception as error:
        raise InputError(f"{at}: {_describe(error, kind)}") from error


def _describe(error: Exception, kind: str) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, OSError) and error.strerror:
        return f"cannot be read: {error.strerror}"
    if isinstance(error, UnicodeDecodeError):
        found = error.object[error.start : error.start + 4].hex(" ")
        return f"bytes {found} are not {error.encoding}, allowed is {kind}"
    if isinstance(error, UnicodeEncodeError):
        return f"half of a character (a lone surrogate), allowed is {kind}"
    if isinstance(error, RecursionError):
        return f"nested too deeply, allowed is {kind}"
    if isinstance(error, MemoryError):
        return f"too large for the memory, allowed is {kind}"
    said = " ".join(str(error).split()) or type(error).__name__
    return f"not {kind}: {said[:300]}"


def require_at_least(minimum: float, **options: float | None) -> None:
    """Refuse options below a minimum; None, an option left out, passes.

    Example:
        >>> require_at_least(1, num_clusters=num_clusters, chunk_size=chunk_size)

    Raises:
        InputError: for the first option that is below the minimum, infinite, or NaN.
    """
    for name, value in options.items():
        if value is not None and not value >= minimum:
            raise InputError(f"{name} must be at least {minimum}, got {value}")
        if value == float("inf"):
            raise InputError(f"{name} must be finite, got {value}")


def require_share(**options: float) -> None:
    """Refuse options outside 0 <= option < 1.

    Raises:
        InputError: for the first such option.
    """
    for name, value in options.items():
        if not 0 <= value < 1:
            raise InputError(f"{name} must be from 0 to below 1, got {value}")

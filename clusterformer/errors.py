"""Errors that a user can make, checks of options, and the one way to read the user's files."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral, Real
from pathlib import Path
from traceback import walk_tb
from typing import Any


class InputError(ValueError):
    """Bad input or option, in one line: where, what was found, what is allowed.

    The command line prints the message alone and exits with code 2. A word of more than 300
    characters, such as a number of 5,000 digits, is cut.
    """

    def __str__(self) -> str:
        return re.sub(r"(\S{100})\S{200,}", r"\1...", super().__str__())


class MissingDataError(InputError):
    """A named data set that is not on this machine."""


def missing(need: str, extra: str) -> InputError:
    """Make the error of a library that is not installed.

    Example:
        >>> raise missing("resampling needs scipy", "speech")
        InputError: resampling needs scipy: pip install 'clusterformer[speech]'
    """
    return InputError(f"{need}: pip install 'clusterformer[{extra}]'")


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
    return f"not {kind}: {_shortened(str(error)) or type(error).__name__}"


def _shortened(message: str) -> str:
    """Write a library's message in one line of a length that is read."""
    message = " ".join(message.split())
    return message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}..."


_MAX_MESSAGE = 300  # characters


@contextmanager
def making(what: str) -> Iterator[None]:
    """Turn whatever a library raises while the user's options take effect into an InputError.

    Everything that parses options, or makes objects of them, stands inside it. An error from
    within the training itself is no matter of options, and passes unchanged.

    Example:
        >>> with making("the trainer"):
        ...     trainer = Trainer(**options)

    Args:
        what: Object that cannot be made, such as "the trainer".

    Raises:
        InputError: for any other exception; it names the line of one that only code explains.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, InputError | OSError) or _in_training(error):
            raise
        told = _first_input_error(error) or InputError(f"{what}: {_explain(_root(error))}")
        raise told from error


_TRAINING = {"advance", "_evaluation_step"}
"""Functions of Lightning that run one batch."""

_EXPLAINED = {"ValueError", "MisconfigurationException", "ModuleNotFoundError", "ArgumentError"}
"""Names of exceptions whose message tells what is wrong with an option."""


def _in_training(error: BaseException) -> bool:
    frames = walk_tb(error.__traceback__)
    return any(frame.f_code.co_name in _TRAINING for frame, _ in frames)


def _first_input_error(error: BaseException) -> InputError | None:
    """Find our own error inside what a library wraps around it."""
    inner: BaseException | None = error
    while inner is not None:
        if isinstance(inner, InputError):
            return inner
        inner = inner.__cause__ or inner.__context__
    return None


def _root(error: BaseException) -> BaseException:
    """Find the error of a missing library, of which what is raised from it says less."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ModuleNotFoundError):
            return cause
        cause = cause.__cause__
    return error


def _explain(error: BaseException) -> str:
    message = _shortened(str(error).replace("`", ""))
    if isinstance(error, RecursionError):
        return "the options are nested too deeply"
    if isinstance(error, MemoryError) or "can't allocate memory" in message:
        return "too large for the memory of this machine; make a size smaller"
    kind = type(error).__name__
    if message and kind in _EXPLAINED:
        return message
    *_, (frame, line) = walk_tb(error.__traceback__)
    location = f"{Path(frame.f_code.co_filename).name}:{line}"
    return f"{kind}: {message} ({location}; CLUSTERFORMER_DEBUG=1 shows more)"


def require_memory(num_bytes: float, what: str) -> None:
    """Refuse what cannot fit into the memory of this machine, before it is asked for.

    Raises:
        InputError: with the estimate and the memory that there is.
    """
    memory = machine_memory()
    if num_bytes > memory:
        raise InputError(
            f"{what} needs {_gib(num_bytes)}, and this machine has {_gib(memory)}; "
            "make a size smaller"
        )


def machine_memory() -> int:
    """Return the memory of this machine, bytes, used or not."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _gib(num_bytes: float) -> str:
    return f"{num_bytes / 2**30:,.0f} GiB" if num_bytes < 2**60 else "over 1,000,000,000 GiB"


def require_at_least(minimum: float, **options: Any) -> None:
    """Refuse options below a minimum; None, an option left out, passes.

    Example:
        >>> require_at_least(1, num_clusters=num_clusters, chunk_size=chunk_size)

    Raises:
        InputError: for the first option that is no number, below the minimum, infinite, or NaN.
    """
    for name, value in options.items():
        if value is None:
            continue
        require_number(**{name: value})
        if not value >= minimum:
            raise InputError(f"{name} must be at least {minimum}, got {value}")
        if value == float("inf"):
            raise InputError(f"{name} must be finite, got {value}")


def require_whole(minimum: int, **options: Any) -> None:
    """Refuse counts that are no whole number from a minimum; None, one left out, passes.

    Example:
        >>> require_whole(1, num_clusters=length / 64)
        InputError: num_clusters must be a whole number, got 16.0

    Raises:
        InputError: for the first such count.
    """
    require_at_least(minimum, **options)
    for name, value in options.items():
        if not isinstance(value, Integral | None):
            raise InputError(f"{name} must be a whole number, got {value}")


def require_number(**options: Any) -> None:
    """Refuse options that are no number; None is none either.

    Raises:
        InputError: for the first such option.
    """
    for name, value in options.items():
        if isinstance(value, bool) or not isinstance(value, Real):
            raise InputError(f"{name} must be a number, got {value!r:.80}")


def require_unicode(text: str) -> None:
    """Refuse a text with half a character, as an argument in another encoding leaves.

    Raises:
        InputError: with the position of the first one.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"character {error.start + 1} of {text!r:.80} is no character; is the text UTF-8?"
        ) from None


def require_positive(**options: float) -> None:
    """Refuse options that are 0 or less, infinite, or NaN.

    Raises:
        InputError: for the first option that is no number, or such a one.
    """
    for name, value in options.items():
        require_number(**{name: value})
        if not 0 < value < float("inf"):
            raise InputError(f"{name} must be above 0 and finite, got {value}")


def require_one_of(allowed: Sequence[str], **options: str) -> None:
    """Refuse options that are none of the allowed words.

    Raises:
        InputError: for the first such option.
    """
    for name, value in options.items():
        if value not in allowed:
            raise InputError(f"{name} must be one of {', '.join(allowed)}; got {value!r}")


def require_finite(options: Mapping[str, Any]) -> None:
    """Refuse infinity and NaN among options, however deep; no option of ours has them as a meaning.

    Example:
        >>> require_finite({"model": {"lr": float("nan")}})
        InputError: model.lr must be finite, got nan

    Raises:
        InputError: for the first such option.
    """
    for name, value in _numbers(options, ""):
        if not math.isfinite(value):
            raise InputError(f"{name} must be finite, got {value}")


def _numbers(value: Any, name: str) -> Iterator[tuple[str, float]]:
    """Yield the name and the value of each float inside options."""
    if isinstance(value, float):
        yield name, value
    elif isinstance(value, Mapping):
        for key, inner in value.items():
            inside = name if key == "init_args" else f"{name}.{key}".lstrip(".")
            yield from _numbers(inner, inside)
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from _numbers(inner, f"{name}[{number}]")


def require_share(**options: float) -> None:
    """Refuse options outside 0 <= option < 1.

    Raises:
        InputError: for the first such option.
    """
    for name, value in options.items():
        if not 0 <= value < 1:
            raise InputError(f"{name} must be from 0 to below 1, got {value}")

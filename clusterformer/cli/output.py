"""Standard output that outlives its reader, and a disk that is full."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TextIO

from clusterformer.errors import InputError
from clusterformer.whole_files import naming


class LastingOutput:
    """A stream whose reader may go away, or disk be full: what follows is written to nowhere.

    A training must not end because `fit ... | head -1` has read enough, nor for want of its log.

    Args:
        stream: Standard output or standard error.

    Attributes:
        failure: Error that cut the output short; None if there was none, or its reader went away.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.failure: OSError | None = None

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except OSError as error:
            self._give_up(error)
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        if not isinstance(error, BrokenPipeError):
            self.failure = error
        # the descriptor itself, so that child processes and Python's own exit write to nowhere too
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def outlive_readers() -> None:
    """Let the command go on when nobody reads its output any more."""
    sys.stdout, sys.stderr = LastingOutput(sys.stdout), LastingOutput(sys.stderr)


def require_whole_output() -> None:
    """Write what is left of the output at the end of a command.

    Raises:
        InputError: if not all of it could be written, with the reason.
        BrokenPipeError: if nobody reads the output of a command that does not outlive its readers.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        with naming(Path(name)):
            stream.flush()
        if isinstance(stream, LastingOutput) and stream.failure:
            raise InputError(f"{name} was cut short: {stream.failure.strerror}")


@contextmanager
def restored_streams() -> Iterator[None]:
    """Give standard output and error back as they were: a program may run many commands."""
    streams = sys.stdout, sys.stderr
    try:
        yield
    finally:
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, LastingOutput):
                stream.flush()
        sys.stdout, sys.stderr = streams


def announce_replacement(option: str, path: Path) -> None:
    """Say that a file of the user's is there and will be replaced; nothing if there is none."""
    if path.is_file():
        print(f"{option}: {path} is there, and will be replaced", file=sys.stderr, flush=True)

"""Standard output that outlives its reader."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO


class LastingOutput:
    """A stream whose reader may go away: what follows is then written to nowhere.

    A training must not end because `fit ... | head -1` has read enough.

    Args:
        stream: Standard output or standard error.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except BrokenPipeError:
            self._give_up()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except BrokenPipeError:
            self._give_up()

    def _give_up(self) -> None:
        # the descriptor itself, so that child processes and Python's own exit write to nowhere too
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self._stream.fileno())
        os.close(nowhere)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def outlive_readers() -> None:
    """Let the command go on when nobody reads its output any more."""
    sys.stdout, sys.stderr = LastingOutput(sys.stdout), LastingOutput(sys.stderr)


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

"""A limit of bytes a file, which acts as a full disk does."""

import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def limited_files(num_bytes: int) -> Iterator[None]:
    """Let this process write no file of more bytes."""
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)

"""A measurement that has begun and does not end."""

import os
import time
from collections.abc import Iterator


def endless() -> Iterator[int]:
    """Yield the number of the process that measures."""
    yield os.getpid()
    time.sleep(600)

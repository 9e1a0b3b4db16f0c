"""A fresh process, whose memory and caches earlier work has not touched."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from clusterformer.errors import InputError

T = TypeVar("T")


def iterate_in_fresh_process(
    function: Callable[..., Iterable[T]], *arguments: object
) -> Iterator[T]:
    """Yield what `function(*arguments)` yields in a process of its own; all must be picklable.

    Raises:
        InputError: if the process fails; its own message stands on standard error.
    """
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send_all, args=(sender, function, arguments))
    with interrupts_blocked():
        process.start()
    sender.close()
    try:
        while True:
            try:
                found = receiver.recv()
            except EOFError:
                break
            yield found
    except BaseException:  # an interrupt, or nobody asks for more
        process.terminate()
        raise
    finally:
        receiver.close()
        process.join()
    if process.exitcode:
        raise InputError("the process that measures ended early, see above")


@contextmanager
def interrupts_blocked() -> Iterator[None]:
    """Block Ctrl-C: processes that start meanwhile never see one, and their parent ends them."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _send_all(
    sender: Connection, function: Callable[..., Iterable[Any]], arguments: tuple[Any, ...]
) -> None:
    for found in function(*arguments):
        sender.send(found)

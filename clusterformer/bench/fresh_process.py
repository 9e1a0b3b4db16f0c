"""A fresh process, whose memory and caches earlier work has not touched."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterable, Iterator
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
    process.start()
    sender.close()
    try:
        while True:
            try:
                found = receiver.recv()
            except EOFError:
                break
            yield found
    finally:
        receiver.close()
        process.join()
    if process.exitcode:
        raise InputError("the process that measures ended early, see above")


def _send_all(
    sender: Connection, function: Callable[..., Iterable[Any]], arguments: tuple[Any, ...]
) -> None:
    for found in function(*arguments):
        sender.send(found)

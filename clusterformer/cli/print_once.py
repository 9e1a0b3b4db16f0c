"""The line of an error that all processes of torchrun meet: one of them prints it."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed import Store

_WAIT = timedelta(seconds=5)


def print_once(line: str) -> None:
    """Print a line to standard error, unless another process of torchrun prints the same.

    Whoever meets an error first prints it. The others wait until it has, as torchrun ends all when
    one has ended. Without an answer of torchrun's store each prints it: a line may come twice, but
    is never lost.
    """
    store = _store()
    if store is None:
        print(line, file=sys.stderr)
        return
    met, printed = f"met: {line}", f"printed: {line}"
    with suppress(RuntimeError):  # of a store that is gone, or of a wait in vain
        if store.add(met, 1) > 1:
            store.wait([printed], _WAIT)
            return
    print(line, file=sys.stderr, flush=True)
    with suppress(RuntimeError):
        store.set(printed, "")


def _store() -> Store | None:
    """Open the store that torchrun keeps for its processes; None if there is none."""
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    from torch.distributed import PrefixStore, TCPStore  # slow

    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    with suppress(RuntimeError):
        return PrefixStore(attempt, TCPStore(address, port, is_master=False, timeout=_WAIT))
    return None

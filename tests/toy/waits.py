"""What makes a GPU wait: numbers that Python reads from it, and tensors that come from the host."""

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WAITING = ("_local_scalar_dense", "nonzero", "masked_select", "equal", "lift_fresh", "unique_dim")


class Waits(TorchDispatchMode):
    """Note the operations at which a GPU would wait."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None) -> Any:  # type: ignore[no-untyped-def]
        operation = function.overloadpacket.__name__
        by_mask = operation == "index" and any(
            index is not None and index.dtype == torch.bool for index in args[1]
        )
        if operation in WAITING or by_mask:
            self.found.append(operation)
        return function(*args, **(kwargs or {}))

"""Operations that start work on a device: views and new memory do not."""

from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode

FREE = {
    "view", "_unsafe_view", "reshape", "transpose", "t", "permute", "expand", "slice", "select",
    "unsqueeze", "squeeze", "unbind", "unfold", "split", "split_with_sizes", "as_strided", "detach",
    "alias", "empty", "empty_like", "new_empty",
}  # fmt: skip


class Launches(TorchDispatchMode):
    """Count the operations; one of ours counts once, though it may launch several kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None) -> Any:  # type: ignore[no-untyped-def]
        name = function.overloadpacket.__name__
        if name not in FREE:
            self.names.append(name)
        return function(*args, **(kwargs or {}))

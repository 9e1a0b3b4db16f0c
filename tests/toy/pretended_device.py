"""A second device for tests without a GPU: its tensors lie in CPU memory, but do not mix with it.

    with pretended_device() as device:
        layer.to(device)(x)  # fails as on a GPU, where x is on the CPU

PyTorch takes `device` for a backend of its own (PrivateUse1). As on CUDA, an operation refuses
arguments of two devices, except that pointwise operations take CPU tensors of 0 dimensions,
tensors may be indexed by CPU tensors, and `copy_` goes between devices; a generator draws only for
its own device. The values are real, so control flow may depend on them.

Import this module only in a process of its own, before any backward pass: the autograd engine
looks for devices once. It is a plugin of pytest too, `-p pretended_device`, with which all tests of
a process can use the device. tests/devices/test_devices.py shows how.
"""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from pretended_tensor import DEVICE, NAME, apply, change
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

_FROM_DATA = {torch.tensor, torch.as_tensor, torch.asarray}
_INDEXING = {Tensor.__getitem__, Tensor.__setitem__}
_Generator = torch.Generator


class PretendedGenerator(_Generator):
    """A generator of the pretended device; with another device, one of PyTorch."""

    device = DEVICE

    def __new__(cls, device: torch.device | str = "cpu") -> torch.Generator:
        return super().__new__(cls) if torch.device(device).type == NAME else _Generator(device)

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__()


@contextlib.contextmanager
def pretended_device() -> Iterator[torch.device]:
    """Make the device usable within the context."""
    with mock.patch.object(torch, "Generator", PretendedGenerator), _Functions(), _Operations():
        yield DEVICE


_context = pretended_device()


def pytest_sessionstart() -> None:
    _context.__enter__()


class _Operations(TorchDispatchMode):
    """Sees what creates tensors, and has none among its arguments."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:  # spares the import of torch._dynamo
        return False

    def __torch_dispatch__(
        self, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if torch.is_inference_mode_enabled():  # else autograd has taken operations apart
            with self:
                results = operation.decompose(*args, **kwargs)
            if results is not NotImplemented:
                return results
        return apply(operation, args, kwargs)


class _Functions(TorchFunctionMode):
    """Sees calls from Python, for what the dispatcher below does not know."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if function in _FROM_DATA:
            device = kwargs.get("device")
            made = function(*args, **{**kwargs, "device": None if device is None else "cpu"})
            return made if device is None else made.to(device)
        if function is Tensor.new_tensor:
            device = kwargs.pop("device", args[0].device)
            return torch.tensor(args[1], **{"dtype": args[0].dtype, **kwargs}).to(device)
        if function in _INDEXING:
            return function(args[0], _index(args[1]), *args[2:])
        generator = kwargs.get("generator")
        if generator is not None:
            first = args[0].device if args and isinstance(args[0], Tensor) else "cpu"
            wanted = torch.device(kwargs.get("device") or first).type
            found = generator.device.type
            if wanted != found:
                raise RuntimeError(f"Expected a '{wanted}' generator device but found '{found}'")
        return function(*args, **kwargs)


def _index(index: Any) -> Any:
    """Make lists in an index to tensors; the indexing itself would make them on the device."""
    if isinstance(index, tuple):
        return tuple(_index(part) for part in index)
    return torch.tensor(index, device="cpu") if isinstance(index, list) and index else index


def _autocast(operation: Any, dtype: torch.dtype | None) -> None:
    """Cast arguments as CUDA's autocast does; None stands for the dtype that autocast asks for."""

    def cast_arguments(*args: Any, **kwargs: Any) -> Any:
        wanted = dtype or torch.get_autocast_dtype(NAME)

        def to_wanted(tensor: Tensor) -> Tensor:
            return tensor.to(wanted) if tensor.is_floating_point() else tensor

        with torch.autocast(NAME, enabled=False):
            return operation(*change(to_wanted, args), **kwargs)

    _LIBRARY.impl(operation, cast_arguments, "AutocastPrivateUse1")


_LIBRARY = torch.library.Library("aten", "IMPL")
_FALLBACK = torch.library.Library("_", "IMPL")
_FALLBACK.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
for _name in ("linear", "matmul", "mm", "bmm", "addmm", "baddbmm", "conv2d"):
    _autocast(getattr(torch.ops.aten, _name).default, None)
for _operation in (torch.ops.aten.softmax.int, torch.ops.aten.log_softmax.int):
    _autocast(_operation, torch.float32)

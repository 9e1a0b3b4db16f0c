"""Tensors of the pretended device, and the operations on them; see pretended_device.py."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._mode_utils import no_dispatch
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

NAME = "pretended"


class _Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


_setup_privateuseone_for_python_backend(NAME, _Backend())
DEVICE = torch.device(NAME, 0)

_TRANSFERS = {"copy_", "_to_copy"}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}
_SCALARS = {"where", "masked_fill", "masked_fill_", "fill_", "fill", "index_fill", "index_fill_"}
"""Operations beside the pointwise ones that take CPU tensors of 0 dimensions."""


class PretendedTensor(Tensor):
    """A tensor on the pretended device.

    Attributes:
        inner: The CPU tensor with its values; views of one share memory.
    """

    inner: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inner: Tensor) -> "PretendedTensor":
        with torch.inference_mode(inner.is_inference()):
            made = Tensor._make_wrapper_subclass(
                cls,
                inner.shape,
                strides=inner.stride(),
                storage_offset=inner.storage_offset(),
                dtype=inner.dtype,
                device=DEVICE,
            )
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(
        cls, operation: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        return apply(operation, args, kwargs or {})

    @property
    def data(self) -> Tensor:
        return Tensor.data.__get__(self)

    @data.setter
    def data(self, value: "PretendedTensor") -> None:
        Tensor.data.__set__(self, value)
        self.inner = value.inner

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"PretendedTensor({self.inner})"

    def __reduce_ex__(self, protocol: Any) -> Any:  # torch.save: loaded with map_location="cpu"
        return self.inner.__reduce_ex__(protocol)

    def __format__(self, form: str) -> str:
        return format(self.inner, form)

    def tolist(self) -> Any:
        return self.inner.tolist()


def apply(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run an operation of ATen on the inner tensors, and give its results the right device."""
    given: dict[int, Tensor] = {}  # by the identity of the CPU tensor

    def unwrap(tensor: Tensor) -> Tensor:
        inner = tensor.inner if isinstance(tensor, PretendedTensor) else tensor
        given[id(inner)] = tensor
        return inner

    def wrap(result: Tensor) -> Tensor:
        if id(result) in given and operation._schema.is_mutable:
            return given[id(result)]
        return PretendedTensor(result) if on_device else result

    inner_args = change(unwrap, args)
    inner_kwargs = {name: change(unwrap, value) for name, value in kwargs.items()}
    others = [tensor for tensor in given.values() if not isinstance(tensor, PretendedTensor)]
    on_device = len(others) < len(given)
    if on_device and others:
        _check(operation, args, others)
    if on_device and torch.Tag.inplace_view in operation.tags:
        _change_shape(operation, args, kwargs)
    if (device := kwargs.get("device")) is not None:
        on_device = device.type == NAME
        inner_kwargs["device"] = "cpu" if on_device else device
    return change(wrap, operation(*inner_args, **inner_kwargs))


def _change_shape(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Give a tensor itself the new shape, as `squeeze_` does; its inner tensor is another one."""
    before = torch._C._meta_in_tls_dispatch_include()
    with no_dispatch():
        torch._C._set_meta_in_tls_dispatch_include(True)
        try:
            operation(*args, **kwargs)
        finally:
            torch._C._set_meta_in_tls_dispatch_include(before)


def change(function: Callable[[Tensor], Tensor], value: Any) -> Any:
    """Apply a function to the tensors in a nest of lists and tuples."""
    if isinstance(value, Tensor):
        return function(value)
    if isinstance(value, list | tuple):
        return type(value)([change(function, part) for part in value])
    return value


def _check(operation: Any, args: Sequence[Any], others: list[Tensor]) -> None:
    """Refuse CPU tensors among those of the device where CUDA does."""
    name = operation._schema.name.removeprefix("aten::")
    on_device = bool(args) and isinstance(args[0], PretendedTensor)
    writes_cpu = operation._schema.is_mutable and not on_device
    if name in _TRANSFERS:
        return
    if name in _INDEXING and on_device:  # all but the indices
        others = [t for t in others if len(args) > 2 and t is args[2]]
    if torch.Tag.pointwise in operation.tags or name in _SCALARS | _INDEXING:
        others = others if writes_cpu else [t for t in others if t.dim()]
    if others:
        raise RuntimeError(
            f"Expected all tensors to be on the same device, found {DEVICE} and cpu in {name}: "
            f"{[(tuple(t.shape), str(t.dtype)) for t in others]}"
        )

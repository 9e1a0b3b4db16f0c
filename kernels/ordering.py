"""Orders of numbers, in operations that ONNX has too.

B batch   N numbers   C bounds
"""

import torch
from torch import Tensor


def stable_order(keys: Tensor, descending: bool = False) -> Tensor:
    """Sort numbers (..., N): their indices in ascending order, equal ones by position."""
    if torch.onnx.is_in_onnx_export():  # ONNX has no stable sort, so no two integers may be equal
        if not (keys.is_floating_point() or descending):
            length = keys.shape[-1]
            keys = keys * length + torch.arange(length, device=keys.device)
        return keys.sort(dim=-1, descending=descending).indices  # TopK: equal ones by position
    return keys.sort(dim=-1, descending=descending, stable=True).indices


def count_up_to(bounds: Tensor, values: Tensor) -> Tensor:
    """Count the ascending bounds (B, C) that are no larger than each value (B, N)."""
    if torch.onnx.is_in_onnx_export():  # ONNX has no binary search
        return (bounds[:, None] <= values[..., None]).long().sum(-1)
    return torch.searchsorted(bounds, values, right=True)


def ceil_div(dividend: Tensor, divisor: Tensor | int) -> Tensor:
    """Divide integers above -1 by integers above 0, rounding up."""
    return (dividend + divisor - 1).div(divisor, rounding_mode="floor")

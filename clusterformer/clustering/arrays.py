"""Arrays of other libraries, as arrays of NumPy and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_ENTRIES = 2**24  # numbers looked at together

Back = Callable[[NDArray], Any]
"""Function that makes an array of NumPy one of the library and on the device of the input."""


def to_numpy(X: Any) -> tuple[Any, Back]:
    """Convert a tensor of PyTorch, or an array of any library that has the Array API, to NumPy.

    Args:
        X: Points, or their weights. Anything else, such as a data frame, is returned unchanged.

    Returns:
        The array, without a copy where it is on the CPU, and the function for results.

    Raises:
        ValueError: if it is a sparse tensor.
    """
    if isinstance(X, Tensor):
        device = X.device
        if X.layout != torch.strided:
            raise ValueError(f"tensors must be dense, got {X.layout}; call to_dense()")
        values = X.detach().cpu()
        # NumPy has no bfloat16
        values = values.float() if values.dtype == torch.bfloat16 else values
        return values.numpy(), lambda found: torch.from_numpy(found).to(device)
    if isinstance(X, np.ndarray | np.generic) or not hasattr(X, "__array_namespace__"):
        return X, lambda found: found
    from sklearn.utils._array_api import _convert_to_numpy

    space, device = X.__array_namespace__(), X.device
    return _convert_to_numpy(X, space), lambda found: space.asarray(found, device=device)


def check_finite(X: NDArray, estimator_name: str) -> None:
    """Refuse NaN and infinity in X (P, columns), with scikit-learn's words, a block at a time."""
    from sklearn.utils import assert_all_finite

    size = max(1, _ENTRIES // X.shape[1])
    for start in range(0, len(X), size):
        assert_all_finite(X[start : start + size], estimator_name=estimator_name, input_name="X")


def check_library(X: Any, estimator: Any, method: str) -> None:
    """Refuse an array of another library than that of the fit, if scikit-learn's dispatch is on.

    Without `set_config(array_api_dispatch=True)` any library is welcome at any time.
    """
    from sklearn import get_config

    if get_config()["array_api_dispatch"]:
        from sklearn.utils._array_api import check_same_namespace  # scikit-learn >= 1.8

        check_same_namespace(X, estimator, attribute="cluster_centers_", method=method)

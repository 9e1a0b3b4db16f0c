"""Augmentation of points while clusters train, with random numbers from one generator.

P points
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable

import torch
from torch import Tensor

Augment = Callable[..., Tensor]
"""Function of points (P, columns) that returns equivalent variants of them, new ones at each call.

It draws its random numbers from its second argument, if that is named `generator`: a
`torch.Generator` on the CPU. If there is none, it draws from torch's global generators.
"""

_GLOBAL = threading.Lock()  # torch's global generators belong to all threads


class Augmentation:
    """An `Augment` that repeats its draws in any thread, and leaves the global generators alone.

    Functions that draw from the global generators take turns: they see the state of `generator` in
    its place.

    Args:
        augment: The function.
        generator: Generator on the CPU.
    """

    def __init__(self, augment: Augment, generator: torch.Generator) -> None:
        self._augment, self._generator = augment, generator
        try:
            self._takes_generator = "generator" in inspect.signature(augment).parameters
        except ValueError:  # functions of C, such as torch.abs, have no signature
            self._takes_generator = False

    def __call__(self, points: Tensor) -> Tensor:
        """Return variants of points (P, columns).

        Raises:
            ValueError: if the function returns another shape, NaN or infinity.
        """
        found = self._draw(points)
        if not isinstance(found, Tensor) or found.shape != points.shape:
            shape = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise ValueError(
                f"augment must return a tensor of shape {tuple(points.shape)}, got {shape}"
            )
        if not found.isfinite().all():
            raise ValueError("augment returned NaN or infinity, allowed are finite numbers")
        return found.to(points)

    def _draw(self, points: Tensor) -> Tensor:
        if self._takes_generator:
            return self._augment(points, generator=self._generator)
        devices = [points.device] if points.is_cuda else []
        with _GLOBAL, torch.random.fork_rng(devices):
            if devices:
                seed = torch.randint(2**62, (), generator=self._generator)
                torch.cuda.manual_seed_all(int(seed))
            torch.set_rng_state(self._generator.get_state())
            found = self._augment(points)
            self._generator.set_state(torch.get_rng_state())
        return found

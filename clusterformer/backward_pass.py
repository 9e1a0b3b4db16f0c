"""Signs that a backward pass is awaited, or runs: for layers that count or learn once a step."""

import torch
from torch import Tensor


class BackwardPass:
    """The backward pass after one or several forward passes of training.

    Attributes:
        awaited: Whether there was a forward pass whose backward pass is not yet over.
    """

    awaited = False

    def await_gradient(self, source: Tensor) -> None:
        """Await the gradient of what a forward pass began with: a backward pass finds it last."""
        if source.requires_grad:
            self.awaited = True
            source.register_hook(self._arrived)

    def _arrived(self, gradient: Tensor) -> None:
        self.awaited = False


def in_backward() -> bool:
    """Tell whether a forward pass is being repeated in a backward pass, to save memory."""
    return torch._C._current_graph_task_id() != -1  # as torch.utils.checkpoint asks

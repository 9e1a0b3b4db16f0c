"""A dense warm-up: in its first steps of training a mechanism attends to all keys."""

import torch
from torch import Tensor, nn

from clusterformer.backward_pass import BackwardPass, in_backward
from clusterformer.errors import require_whole


class DenseWarmUp(nn.Module):
    """A mechanism whose first `dense_steps` passes of training are dense.

    Attributes:
        passes: Number of passes of training so far, a buffer; there is none without a warm-up. A
            training that starts from another's weights goes on counting.
    """

    passes: Tensor

    def plan_warm_up(self, dense_steps: int) -> None:
        """Begin the count; a mechanism calls it when it is made."""
        require_whole(0, dense_steps=dense_steps)
        self.dense_steps = dense_steps
        if dense_steps:
            self.register_buffer("passes", torch.zeros((), dtype=torch.long))
        self._backward_pass = BackwardPass()

    def is_dense(self, hidden: Tensor) -> bool:
        """Tell whether this pass of training belongs to the dense warm-up, and count it.

        All passes before one backward pass count once, also those that it repeats to save memory:
        they decide alike. Reentrant checkpointing has no warm-up: its first pass is without
        gradients, so it counts none, and the repeated pass selects as that one did.
        """
        if not (self.dense_steps and self.training and torch.is_grad_enabled()):
            return False
        if not in_backward():
            self.passes += not self._backward_pass.awaited
            self._backward_pass.await_gradient(hidden)
        return 0 < int(self.passes) <= self.dense_steps

"""Exchange between processes that share a sequence, and its number of bytes.

Z rows   F numbers in a row   P processes
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class SequenceGroup:
    """The processes that share each sequence.

    Process p holds a contiguous part of the tokens, behind those of process p - 1. Parts may differ
    in length; the batch is the same everywhere. Every process must call the same operations in the
    same order.

    Args:
        group: Their process group; None for all processes.

    Attributes:
        rank: Number of this process among them.
        size: Number of processes (P).
        bytes_sent: Bytes that this process has sent to others, forward and backward.

    Raises:
        ValueError: if torch.distributed is not initialised.
    """

    def __init__(self, group: dist.ProcessGroup | None = None) -> None:
        if not dist.is_initialized():
            raise ValueError(
                "several processes need torch.distributed.init_process_group, got none"
            )
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.bytes_sent = 0

    def gather(self, x: Tensor) -> list[Tensor]:
        """Collect a tensor of every process, without gradients; shapes differ in dim 1 only."""
        widths = [torch.zeros(1, dtype=torch.long, device=x.device) for _ in range(self.size)]
        dist.all_gather(widths, widths[0].new_tensor([x.shape[1]]), group=self.group)
        found = [x.new_empty(x.shape[0], int(width), *x.shape[2:]) for width in widths]
        if len({part.shape for part in found}) == 1:
            dist.all_gather(found, x.contiguous(), group=self.group)
        else:  # gloo gathers equal shapes only
            found[self.rank].copy_(x)
            for rank, part in enumerate(found):
                dist.broadcast(part, group=self.group, group_src=rank)
        self.bytes_sent += (self.size - 1) * x.numel() * x.element_size()
        return found

    def total(self, x: Tensor) -> Tensor:
        """Add up a tensor over all processes. The gradient is that of the sum of their losses."""
        found: Tensor = _Total.apply(x, self)
        return found

    def collect(self, x: Tensor) -> Tensor:
        """Collect a tensor of equal shape from every process, (P, ...), with gradients."""
        others = torch.zeros_like(x)
        return self.total(torch.stack([x if p == self.rank else others for p in range(self.size)]))

    def maximum(self, x: Tensor) -> Tensor:
        """Take the largest of all processes, without gradients."""
        return self._reduce(x.detach().clone(), dist.ReduceOp.MAX)

    def exchange(self, rows: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """Send rows to their processes, and return what this one gets, in the order of senders.

        Args:
            rows: (Z, F), first those for process 0.
            sent: Number of rows for each process, P numbers with the sum Z.
            received: Number of rows from each process.
        """
        found: Tensor = _Exchange.apply(rows, list(sent), list(received), self)
        return found

    def _reduce(self, x: Tensor, operation: Any) -> Tensor:
        dist.all_reduce(x, operation, group=self.group)
        # a ring: each process sends its share of the result twice
        self.bytes_sent += 2 * (self.size - 1) * x.numel() * x.element_size() // self.size
        return x

    def _all_to_all(self, rows: Tensor, sent: list[int], received: list[int]) -> Tensor:
        found = rows.new_empty(sum(received), rows.shape[1])
        dist.all_to_all_single(found, rows.contiguous(), received, sent, group=self.group)
        away = sum(sent) - sent[self.rank]
        self.bytes_sent += away * rows.shape[1] * rows.element_size()
        return found


class _Total(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, group: SequenceGroup) -> Tensor:
        ctx.group = group
        return group._reduce(x.clone(), dist.ReduceOp.SUM)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return ctx.group.total(grad), None  # which has a gradient too


class _Exchange(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: SequenceGroup
    ) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return group._all_to_all(rows, sent, received)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.group.exchange(grad, ctx.received, ctx.sent), None, None, None

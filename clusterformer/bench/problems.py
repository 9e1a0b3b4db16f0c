"""Operations, mechanisms and full attention on the same inputs, each with its check and its work.

B batch   H heads   N tokens   D head width   E model width   C clusters   S slots of a block
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from clusterformer.attention.neural_clustering import PAPER_FORM, NeuralClusteringAttention
from clusterformer.attention.reformer import ReformerAttention
from clusterformer.attention.routing import RoutingAttention
from clusterformer.bench import roofline
from clusterformer.bench.recording import relative_error
from clusterformer.bench.roofline import FORMS, Size, Work
from clusterformer.kernels import reference
from clusterformer.kernels.blocks import Blocks, Sorted, window_mask
from clusterformer.kernels.chunk_attention import chunk_attention
from clusterformer.kernels.dispatch import forcing
from clusterformer.kernels.grouping import assign, sort
from clusterformer.kernels.rows import pick_tokens

BACKENDS = {
    "flash": SDPBackend.FLASH_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
    "efficient": SDPBackend.EFFICIENT_ATTENTION,
}
RIVALS = {"ReformerAttention": ReformerAttention, "RoutingAttention": RoutingAttention}
MECHANISM_LIMIT = 1e-2
"""Largest relative squared error of a whole mechanism: rounding decides near ties of clusters."""


@dataclass(frozen=True)
class Timed:
    """One function to time.

    Attributes:
        forward: Runs it without gradients.
        both: Runs forward and backward; None where there is no backward.
        work: Work of forward, and of forward and backward.
        check: Returns its error and the largest allowed error; None for PyTorch's own functions.
    """

    forward: Callable[[], object]
    both: Callable[[], object] | None
    work: tuple[Work, Work]
    check: Callable[[], tuple[float, float]] | None


class Problem:
    """A form of neural clustering at one length, with random inputs.

    Args:
        form: One of `roofline.FORMS`.
        size: Sizes, from `roofline.size_of`.
        dtype: Data type of queries, keys and values; clustering is in float32.
        device: "cpu" or "cuda".
    """

    def __init__(self, form: str, size: Size, dtype: torch.dtype, device: str) -> None:
        self.form, self.size = form, size
        self.coupled, _, self.causal = FORMS[form]
        generator = torch.Generator().manual_seed(0)
        rows = size.B, size.N, size.H, size.D
        made = (torch.randn(rows, generator=generator).to(device, dtype) for _ in range(4))
        *leaves, gradient = (x.transpose(1, 2) for x in made)
        self.q, self.k, self.v = (x.requires_grad_() for x in leaves)
        self.gradient = gradient
        options: dict[str, Any] = {} if self.coupled else PAPER_FORM
        torch.manual_seed(0)
        self.core = NeuralClusteringAttention(
            size.H * size.D, size.H, num_clusters=size.C, chunk_size=size.S, causal=self.causal,
            **options,
        ).to(device)  # fmt: skip
        hidden = torch.randn(size.B, size.N, size.H * size.D, generator=generator).to(device)
        self.hidden = hidden.requires_grad_(self.coupled)
        with torch.no_grad():
            grouping = self.core.grouping_of(self.hidden, None, None)
            self.points, self.anchors = self.core.anchors(self.hidden, None)
            self.extra = self.core.coupling_columns(self.points)
        assert grouping.blocks is not None
        self.assignment, self.blocks = grouping.assignment, grouping.blocks

    def operations(self) -> dict[str, Timed]:
        """List the operations: assignment (with centroid means), sorting, and chunk attention."""
        one = partial(roofline.work, size=self.size)
        assigning = roofline.total(map(one, roofline.ASSIGNING))
        with_gradient = roofline.total(map(one, (*roofline.ASSIGNING, *roofline.MEANS_BACKWARD)))
        sorting = roofline.total(map(one, ("_count_kernel", "_position_kernel")))
        forward = one("forward_kernel")
        both = roofline.total(map(one, ("forward_kernel", "dq_kernel", "dkv_kernel")))
        return {
            "assign": Timed(
                self._assign,
                partial(self._means, self.points),
                (assigning, with_gradient),
                self._check_assign,
            ),
            "sort": Timed(self._sort, None, (sorting, sorting), self._check_sort),
            "chunk attention": Timed(
                _without_gradients(self._attend), self._backward(self._attend), (forward, both),
                self._check_attention,
            ),
        }  # fmt: skip

    def mechanism(self) -> Timed:
        """Make the whole mechanism: clustering included, without projections of q, k, v, output."""
        works = tuple(
            roofline.total(
                roofline.work(name, self.size) for name in roofline.kernels(self.form, backward)
            )
            for backward in (False, True)
        )
        return Timed(
            _without_gradients(self._mix), self._backward(self._mix, through_points=True),
            (works[0], works[1]),
            partial(_check_mechanism, self._mix),
        )  # fmt: skip

    def full(self, backend: str) -> Timed:
        """Make full attention by one of PyTorch's backends."""

        def attend() -> Tensor:
            with sdpa_kernel(BACKENDS[backend]):
                return F.scaled_dot_product_attention(self.q, self.k, self.v, is_causal=self.causal)

        works = [
            roofline.work(name, self.size) for name in ("full attention", "full attention backward")
        ]
        works = [Work(w.bytes, w.matrix / (1 + self.causal), w.plain) for w in works]
        return Timed(
            _without_gradients(attend),
            self._backward(attend),
            (works[0], roofline.total(works)),
            None,
        )

    def flex(self) -> Timed:
        """Make the same blocks by flex_attention, rows gathered before and scattered after."""
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        size, device = self.size, self.q.device
        back, groups = self.blocks.look_back, -(-size.N // size.S)
        reach = self.size.J
        order, inverse, _ = self._sort()

        def seen(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (key // size.S - query // size.S + back) % groups < reach

        mask = create_block_mask(seen, None, None, size.N, size.N, device=str(device))
        attend = torch.compile(flex_attention) if device.type == "cuda" else flex_attention

        def mix() -> Tensor:
            q, k, v = (pick_tokens(x, order) for x in (self.q, self.k, self.v))
            return pick_tokens(attend(q, k, v, block_mask=mask), inverse)

        def check() -> tuple[float, float]:
            with torch.no_grad():
                error = relative_error(mix(), self._attend())
            return error, 1e-3

        works = self.operations()["chunk attention"].work
        return Timed(_without_gradients(mix), self._backward(mix), works, check)

    def rival(self, name: str) -> Timed:
        """Make Reformer with one round, or Routing without local heads, with our sizes."""
        size = self.size
        options: dict[str, Any] = {"chunk_size": size.S}
        if name == "RoutingAttention":
            options |= {"num_clusters": size.C, "window": size.S, "local_heads": 0}
        torch.manual_seed(0)
        core = RIVALS[name](size.H * size.D, size.H, causal=self.causal, **options)
        core = core.to(self.q.device).eval()

        def mix() -> Tensor:
            return core(self.q, self.k, self.v, hidden=self.hidden)[0]

        works = roofline.rival(name, size, self.causal)
        check = partial(_check_mechanism, mix)
        return Timed(_without_gradients(mix), self._backward(mix), works, check)

    def _backward(
        self, run: Callable[[], Tensor], *, through_points: bool = False
    ) -> Callable[[], object]:
        def both() -> None:
            leaves = [self.q, self.k, self.v]
            if through_points and self.coupled:
                leaves.append(self.hidden)
            torch.autograd.grad(run(), leaves, self.gradient, allow_unused=True)  # Reformer's k

        return both

    def _assign(self) -> Tensor:
        return assign(self.points, self.anchors, without_normalizer=self.causal)[0]

    def _means(self, points: Tensor) -> list[Tensor]:
        """Compute centroid means of points (B, N, F), and gradients of points and anchors."""
        leaves = [x.detach().requires_grad_() for x in (points, self.anchors)]
        _, means = assign(leaves[0], leaves[1], without_normalizer=self.causal)
        return [means.detach(), *torch.autograd.grad(means.square().sum(), leaves)]

    def _sort(self) -> Sorted:
        return sort(self.assignment, self.size.C)

    def _attend(self) -> Tensor:
        return chunk_attention(
            self.q, self.k, self.v, self.blocks, scale=self.size.D**-0.5, causal=self.causal,
            extra=self.extra,
        )  # fmt: skip

    def _mix(self) -> Tensor:
        return self.core(self.q, self.k, self.v, hidden=self.hidden)[0]

    def _check_assign(self) -> tuple[float, float]:
        """Check the first sequence.

        The error is the largest distance of a chosen cluster's score below the best score, or of
        the means and their gradients from plain PyTorch's, whichever is larger.
        """
        scores = self.anchors @ self.points[:1].transpose(1, 2)
        scores = scores if self.causal else scores.log_softmax(-1)
        chosen = self._assign()[:1]
        found = scores.gather(1, chosen[:, None])[:, 0]
        ours = self._means(self.points[:1])
        with forcing("reference"):
            pairs = zip(ours, self._means(self.points[:1]), strict=True)
        distances = [relative_error(x, y) ** 0.5 for x, y in pairs]
        return max(float((scores.amax(1) - found).max()), *distances), 1e-3

    def _check_sort(self) -> tuple[float, float]:
        expected = reference.sort(self.assignment, self.size.C)
        pairs = zip(self._sort(), expected, strict=True)
        return float(sum((a != b).sum() for a, b in pairs)), 0.0

    def _check_attention(self) -> tuple[float, float]:
        """Check values and gradients of the first sequence against float32.

        The limit is twice the distance of plain PyTorch in the same data type.
        """
        members, filled, slot, copies, visible = (x[:1] for x in self.blocks[:5])
        blocks = Blocks(members, filled, slot, copies, visible, *self.blocks[5:])
        mask = window_mask(blocks, self.causal)
        tensors = [x[:1].detach() for x in (self.q, self.k, self.v)]
        width = 0 if self.extra is None else self.extra[0].shape[-1]
        columns = self.extra or 2 * (self.points.new_empty(self.size.B, self.size.N, width),)
        extra = columns[0][:1], columns[1][:1]

        def run(kernel: Callable[..., Tensor], dtype: torch.dtype) -> list[Tensor]:
            q, k, v = (x.to(dtype).requires_grad_() for x in tensors)
            out = kernel(q, k, v, blocks, scale=self.size.D**-0.5, extra=extra)
            return [out, *torch.autograd.grad(out, (q, k, v), self.gradient[:1].to(dtype))]

        plain = partial(reference.chunk_attention, mask=mask, self_bias=0.0)
        truth = run(plain, torch.float32)
        ours = run(partial(chunk_attention, causal=self.causal), self.q.dtype)
        theirs = run(plain, self.q.dtype)
        errors, limits = (
            [relative_error(x.detach(), y.detach()) for x, y in zip(found, truth, strict=True)]
            for found in (ours, theirs)
        )
        return max(errors), 4 * max(limits) + 1e-10  # squares: twice the distance


def _check_mechanism(mix: Callable[[], Tensor]) -> tuple[float, float]:
    """Compare a mechanism's values with those of plain PyTorch."""
    with torch.no_grad():
        found = mix()
        with forcing("reference"):
            return relative_error(found, mix()), MECHANISM_LIMIT


def _without_gradients(run: Callable[[], Tensor]) -> Callable[[], object]:
    def forward() -> Tensor:
        with torch.no_grad():
            return run()

    return forward

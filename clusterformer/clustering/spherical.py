"""Spherical k-means that learns while a network trains (Routing Transformer, section 4.1).

B batch   H heads   N tokens   D width   C clusters
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._compile import _disable_dynamo  # torch.compiler.disable, imported when called

from clusterformer.backward_pass import BackwardPass, in_backward
from clusterformer.seeded import draw_seeded


class SphericalMeans(nn.Module):
    """Centroids on the unit sphere that follow the tokens nearest to them.

    They move by an exponential moving average, not by gradients: towards the mean direction of the
    tokens of a batch, over all processes, that are nearest to them. The first batches count more,
    as in a plain mean, so that the random start is soon forgotten.

    A forward pass adds its tokens to a buffer. They move the centroids at the first forward pass
    after its backward pass. So a forward pass that is repeated in the backward pass, to save
    memory, uses the same centroids, and a checkpoint holds the whole state. They move between
    accumulated batches too.

    Centroids and sums stay as they are, in float32, when a model is cast to half precision or made
    in it: small moves would be rounded away there.

    Args:
        num_heads: H.
        num_clusters: C.
        width: D.
        decay: Share of the old centroids in the new ones.
        seed: Seed of the random start.

    Attributes:
        centroids: (H, C, D), of unit length.
        observed: (H, C, D), sum of the tokens observed since the centroids last moved.
        moves: Number of times that the centroids moved.
    """

    centroids: Tensor
    observed: Tensor
    moves: Tensor

    def __init__(
        self, num_heads: int, num_clusters: int, width: int, *, decay: float, seed: int
    ) -> None:
        super().__init__()
        self.decay = decay
        shape = num_heads, num_clusters, width
        start = draw_seeded(seed, lambda generator: torch.randn(shape, generator=generator))
        self.register_buffer("centroids", F.normalize(start, dim=-1).float())
        self.register_buffer("observed", torch.zeros_like(self.centroids))
        self.register_buffer("moves", torch.zeros((), dtype=torch.long))
        self._backward_pass = BackwardPass()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        def move(x: Tensor) -> Tensor:
            moved = fn(x)
            floating = x.is_floating_point() and not x.is_meta
            return x.float().to(moved.device) if floating else moved

        return super()._apply(move, recurse)

    def forward(self, points: Tensor) -> Tensor:
        """Compute cosines (B, H, C, N) of centroids with unit points (B, H, N, D)."""
        centroids = F.normalize(self.centroids.float(), dim=-1)  # a mean of checkpoints is shorter
        return centroids @ points.transpose(-1, -2)

    @_disable_dynamo
    @torch.no_grad()
    def move(self) -> None:
        """Move towards the observed tokens, unless their backward pass is not yet over."""
        if self._backward_pass.awaited or in_backward():
            return
        direction = F.normalize(self.observed.float(), dim=-1)
        seen = direction.any(-1, keepdim=True)
        share = (1 / (self.moves.float() + 1)).clamp(min=1 - self.decay)
        moved = torch.lerp(self.centroids.float(), direction, share * seen)
        self.centroids.copy_(F.normalize(moved, dim=-1))
        self.moves += seen.any()
        self.observed.zero_()

    @torch.no_grad()
    def settle(self) -> None:
        """Take the centroids for learnt: the next batches move them no further than later ones."""
        self.moves.clamp_(min=round(1 / (1 - self.decay)))
        self.observed.zero_()

    @_disable_dynamo
    @torch.no_grad()
    def observe(self, points: Tensor, nearest: Tensor, mask: Tensor | None, source: Tensor) -> None:
        """Observe the tokens of a training batch; those that are not finite have no weight.

        Args:
            points: Unit vectors, (B, H, N, D).
            nearest: Centroid of each point, (B, H, N).
            mask: (B, N), True at real tokens; None means all real.
            source: Tensor from which the points were computed. A backward pass finds its gradient
                last, so it tells when that pass is over.
        """
        if in_backward():
            return
        real = points.isfinite().all(-1)
        if mask is not None:
            real &= mask[:, None]
        clusters = torch.arange(self.centroids.shape[1], device=points.device)
        members = (nearest[:, :, None] == clusters[:, None]) & real[:, :, None]  # (B, H, C, N)
        found = (members.to(points.dtype) @ points.masked_fill(~real[..., None], 0.0)).sum(0)
        self._add(found, source)

    @_disable_dynamo
    @torch.no_grad()
    def observe_nothing(self, source: Tensor) -> None:
        """Take part in the sum over processes with a batch that has no tokens to observe.

        Args:
            source: Tensor from which the points would have been computed; see `observe`.
        """
        if not in_backward():
            self._add(torch.zeros_like(self.observed), source)

    def _add(self, found: Tensor, source: Tensor) -> None:
        """Add the sums of the tokens of all processes, and wait for the backward pass."""
        if torch.distributed.is_available() and torch.distributed.is_initialized():
            torch.distributed.all_reduce(found)
        self.observed += found
        self._backward_pass.await_gradient(source)

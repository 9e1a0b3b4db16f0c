"""Heads that attend to near tokens, beside those of a mechanism.

B batch   H heads   L local heads   N tokens   D head width
"""

import torch
from torch import Tensor

from clusterformer.attention.base import AttentionCore, Cache, Causal
from clusterformer.attention.ring_steps import fill_ring, ring_step
from clusterformer.attention.visibility import count_in_blocks, share_of_tokens
from clusterformer.clustering.ring_cache import make_ring_cache
from clusterformer.errors import require_whole
from clusterformer.kernels.blocks import Blocks
from clusterformer.kernels.chunk_attention import chunk_attention
from clusterformer.kernels.chunking import window_blocks


class LocalHeads(AttentionCore):
    """A mechanism whose first `local_heads` heads (L) attend to near tokens instead.

    They see their own chunk of `local_window` tokens, the one before it and, unless causal, the one
    after it. None for `local_heads` is half of the heads, rounded down.
    """

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        causal: Causal,
        local_heads: int | None,
        local_window: int,
    ) -> None:
        super().__init__(d_model, num_heads, causal=causal)
        require_whole(0, local_heads=local_heads)
        require_whole(1, local_window=local_window)
        self.local_heads = num_heads // 2 if local_heads is None else local_heads
        self.local_window = local_window
        if self.local_heads > num_heads:
            raise ValueError(
                f"local_heads must be in 0..num_heads, got {local_heads} with "
                f"num_heads = {num_heads}"
            )

    def near_blocks(self, like: Tensor, key_mask: Tensor | None) -> Blocks:
        """Cut texts, of the shape (B, N) of `like`, into chunks for the local heads.

        A token sees its chunk, the one before and, unless causal, the one after.
        """
        batch, length = like.shape[:2]
        return window_blocks(
            length, batch, self.local_window, key_mask,
            device=like.device, look_ahead=0 if self.causal else 1,
        )  # fmt: skip

    def attend_near(self, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None) -> list[Tensor]:
        """Compute values of the local heads, (B, L, N, D), from q, k, v of all; [] for no heads."""
        if not self.local_heads:
            return []
        local, blocks = self.local_heads, self.near_blocks(q[:, 0], key_mask)
        heads, scale = (q[:, :local], k[:, :local], v[:, :local]), self.head_width**-0.5
        return [chunk_attention(*heads, blocks, scale=scale, causal=bool(self.causal))]

    def mean_over_heads(self, near: Tensor, far: Tensor) -> Tensor:
        """Average a mean of the local heads, `near`, and one of the others, `far`, over all."""
        local = self.local_heads
        return (local * near + (self.num_heads - local) * far) / self.num_heads

    def share_with_near(self, far: Tensor, mask: Tensor) -> Tensor:
        """Compute `keys_seen` where the heads that are not local see the share `far`, (B, N)."""
        if not self.local_heads:
            return far
        counts = count_in_blocks(self.near_blocks(mask, mask), bool(self.causal))
        return self.mean_over_heads(share_of_tokens(counts, mask, bool(self.causal)), far)

    def near_ring(self, like: Tensor) -> Cache:
        """Make an empty ring cache of the last two chunks of the local heads, as of one cluster."""
        row = like.new_zeros(self.local_heads * self.head_width)
        return make_ring_cache(len(like), 1, 2 * self.local_window, (row, row))

    def step_near(self, q: Tensor, k: Tensor, v: Tensor, ring: Cache) -> tuple[list[Tensor], Cache]:
        """Decode one token likewise, and return the ring with it."""
        if not self.local_heads:
            return [], ring
        local, one = self.local_heads, torch.zeros(len(q), dtype=torch.long, device=q.device)
        heads, scale = (q[:, :local], k[:, :local], v[:, :local]), self.head_width**-0.5
        values, ring = ring_step(*heads, one, self.local_window, ring, scale)
        return [values], ring

    def fill_near(self, k: Tensor, v: Tensor, ring: Cache) -> Cache:
        """Put the first tokens of a text, k, v (B, H, N, D) of all heads, into an empty ring."""
        if not self.local_heads:
            return ring
        local, one = self.local_heads, torch.zeros_like(k[:, 0, :, 0], dtype=torch.long)
        return fill_ring(k[:, :local], v[:, :local], one, ring)

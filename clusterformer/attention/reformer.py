"""Reformer's attention by locality-sensitive hashing (Kitaev et al., ICLR 2020).

B batch   H heads   N tokens   D head width   R rounds   C buckets   G chunks   S slots a chunk
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.attention.base import AttentionCore, Cache, Causal, Grouping
from clusterformer.clustering.ring_cache import push, rings
from clusterformer.kernels.blocks import Blocks, cluster_chunks, equal_blocks, window_mask, windows
from clusterformer.kernels.chunk_attention import LAST_RESORT, chunk_attention
from clusterformer.kernels.grouping import sort

MOST_BUCKETS = 512
"""Where nothing fixes their number; longer texts have more chunks a bucket."""


class ReformerAttention(AttentionCore):
    """Attend among tokens whose queries point the same way.

    Queries are keys too: the key of a token is its query at unit length. A token attends to itself
    only if it sees nothing else. In each of `num_hashes` rounds, each head hashes its tokens by a
    random rotation (argmax over [x R; -x R]), sorts them by bucket, cuts the row into chunks of
    equal width, and lets a chunk see itself and the chunk before it, around a circle. The softmax
    is one over all that a token sees in any round, each key counted once (eq. 4-6).

    Rotations are drawn once, from `seed`, and kept in a buffer.

    Causal forms:

    - `causal=True` is strict: the number of buckets is fixed, and chunks are cut within each bucket
      by rank, so that no later token moves them.
    - `causal="masked"` is the paper's: sorted and cut as without causality, later tokens masked. It
      LEAKS: chunk borders depend on later tokens, so a change of the suffix changes outputs before
      it. For comparison only.

    One bucket equals full attention with shared queries and keys.

    Args:
        d_model: E.
        num_heads: H.
        causal: False, True or "masked".
        num_hashes: R.
        num_buckets: C, 1 or even: chunks are then as wide as n real tokens make C of them. None:
            chunks of `chunk_size`, and as many buckets as chunks, up to 512; 16 with `causal=True`.
        chunk_size: Tokens a chunk, where `num_buckets` is None and with `causal=True`.
        seed: Of the random rotations.

    Cost: O(R N (D C + S D)) time, O(N D) memory on CPU.
    """

    causal_forms: ClassVar[tuple[Causal, ...]] = (False, True, "masked")
    shared_qk: ClassVar[bool] = True
    rotations: Tensor

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        causal: Causal = False,
        num_hashes: int = 1,
        num_buckets: int | None = None,
        chunk_size: int = 64,
        seed: int = 0,
    ) -> None:
        super().__init__(d_model, num_heads, causal=causal)
        for name, value in (("num_hashes", num_hashes), ("chunk_size", chunk_size)):
            if value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        if num_buckets is not None and (num_buckets < 1 or (num_buckets > 1 and num_buckets % 2)):
            raise ValueError(f"num_buckets must be 1 or even, got {num_buckets}")
        self.num_hashes = num_hashes
        self.num_buckets = 16 if num_buckets is None and causal is True else num_buckets
        self.chunk_size = chunk_size
        columns = (self.num_buckets or MOST_BUCKETS) // 2
        generator = torch.Generator().manual_seed(seed)
        shape = num_hashes, num_heads, self.head_width, columns
        self.register_buffer("rotations", torch.randn(shape, generator=generator))

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        hidden: Tensor,
        query_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        previous: Grouping | None = None,
    ) -> tuple[Tensor, Grouping]:
        buckets, most = self._hash(q.detach(), key_mask)
        blocks = self._blocks(buckets.flatten(0, 2), most, key_mask)
        mask = None
        if self.num_hashes > 1:
            mask = _once(window_mask(blocks, bool(self.causal)), blocks, self.num_hashes)
        out = chunk_attention(
            q,
            _unit(q),
            v,
            blocks,
            scale=self.head_width**-0.5,
            causal=bool(self.causal),
            mask=mask,
            self_bias=LAST_RESORT,
        )
        return out, Grouping(buckets[0], most)

    def _hash(self, q: Tensor, key_mask: Tensor | None) -> tuple[Tensor, int]:
        """Bucket of each token in each round, (R, B, H, N), and how many buckets there may be."""
        batch, heads, length, _ = q.shape
        used: Tensor | None = None
        columns = self.rotations.shape[-1]
        if self.num_buckets is None:
            pair = 2 * self.chunk_size  # a column makes two buckets
            columns = torch.sym_min(columns, (length + pair - 1) // pair)
            if key_mask is not None:
                used = ((key_mask.sum(-1) + pair - 1) // pair).clamp(1, columns)
        if columns == 0:
            return q.new_zeros(self.num_hashes, batch, heads, length, dtype=torch.long), 1
        with torch.autocast(q.device.type, enabled=False):
            rotated = q.float() @ self.rotations.float()[:, None, ..., :columns]
        if used is not None:
            used = used[:, None, None]  # (B, 1, 1)
            beyond = torch.arange(columns, device=q.device) >= used[..., None]
            rotated = rotated.masked_fill(beyond, 0.0)
        best = rotated.abs().argmax(-1)
        negative = rotated.gather(-1, best[..., None])[..., 0] < 0
        return best + negative * (columns if used is None else used), 2 * columns

    def _blocks(self, buckets: Tensor, most: int, key_mask: Tensor | None) -> Blocks:
        """Chunks of each round, sequence and head, (R * B * H, ...)."""
        mask = None
        if key_mask is not None:
            mask = key_mask.repeat_interleave(self.num_heads, 0).repeat(self.num_hashes, 1)
        grouped = sort(buckets, most, mask)
        if self.causal is True:
            return cluster_chunks(grouped, self.chunk_size, mask)
        if self.num_buckets is None:
            return equal_blocks(grouped, buckets.shape[1], mask, min_width=self.chunk_size)
        return equal_blocks(grouped, self.num_buckets, mask)

    def cache(self, like: Tensor) -> Cache:
        """Rings of the last two chunks of each bucket, a round and head, and the tokens so far.

        O(1) time and memory a step, however long the text.
        """
        if self.causal is not True:
            return super().cache(like)
        assert self.num_buckets is not None
        batch, rows = like.shape[0], self.num_hashes * self.num_heads
        row = like.new_zeros(self.head_width)
        count = like.new_zeros(batch, dtype=torch.long)
        empty = rings(
            batch * rows, self.num_buckets, 2 * self.chunk_size, (row, row, count.new_zeros(1))
        )
        return *(x.unflatten(0, (batch, rows)) for x in empty), count

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """One token further. Writes into `cache`, or a larger copy of it, and hands it back."""
        kept, count = cache[:-1], cache[-1]
        rounds, (batch, heads) = self.num_hashes, q.shape[:2]
        bucket, _ = self._hash(q, None)  # (R, B, H, 1)

        def rows(x: Tensor) -> Tensor:  # (B, H, 1, F) -> (B * R * H, F)
            return x.expand(batch, heads, 1, -1).repeat(1, rounds, 1, 1).flatten(0, 2)

        (keys, values, places), mask, kept = push(
            tuple(x.flatten(0, 1) for x in kept),
            bucket.transpose(0, 1).flatten(),
            (rows(_unit(q)), rows(v), rows(count.view(-1, 1, 1, 1))),
            self.chunk_size,
        )

        def union(x: Tensor) -> Tensor:  # (B * R * H, S, F) -> (B, H, R * S, F)
            return x.unflatten(0, (batch, rounds, heads)).transpose(1, 2).flatten(2, 3)

        keys, values = union(keys), union(values)
        place, mask = union(places)[..., 0], union(mask[..., None])[..., 0]
        turn = torch.arange(rounds, device=q.device).repeat_interleave(place.shape[-1] // rounds)
        same = (place[..., None, :] == place[..., None]) & mask[..., None, :]
        again = (same & (turn < turn[:, None])).any(-1)
        itself = place == count.view(-1, 1, 1)
        bias = (itself * LAST_RESORT).masked_fill(~mask | (again & ~itself), float("-inf"))
        mixed = F.scaled_dot_product_attention(
            q, keys.to(q.dtype), values.to(q.dtype), attn_mask=bias[:, :, None].to(q.dtype)
        )
        return mixed, (*(x.unflatten(0, (batch, -1)) for x in kept), count + 1)


def _unit(q: Tensor) -> Tensor:
    return F.normalize(q.float(), dim=-1).to(q.dtype)


def _once(mask: Tensor, blocks: Blocks, rounds: int) -> Tensor:
    """Leave out of `mask` the keys that the same query has seen in an earlier round, but itself.

    Args:
        mask: (R * B * H, G, S or 1, 2 S), as from `window_mask`.
        blocks: Chunks of each round, sequence and head.
        rounds: R.
    """
    width = blocks.members.shape[-1]
    home = blocks.slot.div(width, rounding_mode="floor")  # (R * B * H, N) place of each token
    first = home - blocks.visible[..., 0].long().gather(1, (home - 1).clamp(min=0))  # in its sight
    copies = list(blocks.copies[..., :2].div(width, rounding_mode="floor").unbind(-1))
    queries, keys = blocks.members[:, blocks.own], windows(blocks.members, 2)
    home, first, queries, keys, mask, *copies = (
        x.unflatten(0, (rounds, -1)) for x in (home, first, queries, keys, mask, *copies)
    )

    def look_up(table: Tensor, tokens: Tensor) -> Tensor:
        return table.int().gather(1, tokens.flatten(1)).view(tokens.shape)

    here = torch.eye(width, dtype=torch.bool, device=mask.device)
    here = F.pad(here, (width, 0))
    kept = [mask[0].expand(-1, -1, width, -1)]
    for later in range(1, rounds):
        again = torch.zeros_like(kept[0])
        for earlier in range(later):
            least = look_up(first[earlier], queries[later])[..., None]
            most = look_up(home[earlier], queries[later])[..., None]
            for copy in copies:
                place = look_up(copy[earlier], keys[later])[:, :, None]
                again |= (least <= place) & (place <= most)
        kept.append(mask[later] & (~again | here))
    return torch.cat(kept)

"""Reformer's attention by locality-sensitive hashing (Kitaev et al., ICLR 2020).

B batch   H heads   N tokens   D head width   R hash rounds   C clusters (buckets)   S chunk size
G chunks (segments of the sorted tokens)
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.attention.base import AttentionCore, Cache, Causal, Grouping
from clusterformer.attention.visibility import count_in_blocks, share_of_tokens
from clusterformer.clustering.ring_cache import append, fill, make_ring_cache
from clusterformer.clustering.unit_vectors import unit_vectors
from clusterformer.errors import require_whole
from clusterformer.kernels.blocks import Blocks, window_mask, windows
from clusterformer.kernels.chunk_attention import LAST_RESORT, chunk_attention
from clusterformer.kernels.chunking import cluster_chunks, equal_blocks
from clusterformer.kernels.dense_attention import dense_attention, is_dense
from clusterformer.kernels.grouping import sort
from clusterformer.kernels.rows import repeat_rows
from clusterformer.seeded import draw_seeded

MAX_BUCKETS = 512
"""Maximum number of buckets without `num_buckets`; longer texts have more chunks per bucket."""


class ReformerAttention(AttentionCore):
    """Attention among tokens whose queries have similar directions.

    Queries are keys too: the key of a token is its query at unit length. A token attends to itself
    only if it sees nothing else. In each of `num_hashes` rounds, each head hashes its tokens by a
    random rotation (argmax over the rotated vector and its negative), sorts them by bucket, cuts
    the row into chunks of equal width, and lets a chunk see itself and the chunk before it, around
    a circle. The softmax is one over all that a token sees in any round, each key counted once
    (eq. 4-6). Rotations are drawn once, from `seed`, and kept in a buffer; reformer-pytorch draws
    them anew in each pass. It also hashes queries before it rotates them by their positions; here
    they are hashed as they meet, so copies of a token far apart share a bucket less often.

    Causal forms:

    - `causal=True` is strict: the number of buckets is fixed, and chunks are cut within each bucket
      by rank. No later token changes them.
    - `causal="masked"` is the paper's: sorted and cut as without causality, later tokens masked. It
      LEAKS: chunk borders depend on later tokens, so a change of the suffix changes outputs before
      it. For comparison only.

    One bucket equals full attention with shared queries and keys.

    Args:
        d_model: Width of the hidden states (E).
        num_heads: Number of heads (H).
        causal: Causal form: False, True or "masked".
        num_hashes: Number of hash rounds (R).
        num_buckets: Number of buckets (C), 1 or even, and of chunks into which n real tokens are
            cut. None: chunks of `chunk_size`, and as many buckets as chunks, up to 512; 16 buckets
            with `causal=True`.
        chunk_size: Number of tokens in a chunk, if `num_buckets` is None or with `causal=True`.
        seed: Seed of the random rotations.

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
        require_whole(1, num_hashes=num_hashes, chunk_size=chunk_size)
        require_whole(0, num_buckets=num_buckets)
        if num_buckets is not None and (num_buckets < 1 or (num_buckets > 1 and num_buckets % 2)):
            raise ValueError(f"num_buckets must be 1 or even, got {num_buckets}")
        self.num_hashes = num_hashes
        self.num_buckets = 16 if num_buckets is None and causal is True else num_buckets
        self.chunk_size = chunk_size
        columns = (self.num_buckets or MAX_BUCKETS) // 2
        shape = num_hashes, num_heads, self.head_width, columns
        rotations = draw_seeded(seed, lambda generator: torch.randn(shape, generator=generator))
        self.register_buffer("rotations", rotations)

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
        buckets, num_buckets = self._hash(q.detach(), key_mask)
        blocks = self._blocks(buckets.flatten(0, 2), num_buckets, key_mask)
        grouping = Grouping(buckets[0], num_buckets, blocks)
        causal, scale = bool(self.causal), self.head_width**-0.5
        if is_dense(blocks, q.device):
            return dense_attention(
                q, _unit(q), v, blocks, scale=scale, causal=causal, self_bias=LAST_RESORT
            ), grouping
        mask = None
        if self.num_hashes > 1:
            mask = _mask_repeated_keys(window_mask(blocks, causal), blocks, self.num_hashes)
        return chunk_attention(
            q, _unit(q), v, blocks,
            scale=scale, causal=causal, mask=mask, self_bias=LAST_RESORT,
        ), grouping  # fmt: skip

    def keys_seen(self, grouping: Grouping | None, mask: Tensor) -> Tensor:
        """Compute the share; a token counts as seen by itself, although only as a last resort."""
        assert grouping is not None
        assert grouping.blocks is not None
        causal, blocks = bool(self.causal), grouping.blocks
        if self.num_hashes == 1:
            counts = count_in_blocks(blocks, causal)
        else:
            seen = window_mask(blocks, causal)
            seen = _mask_repeated_keys(seen, blocks, self.num_hashes).sum(-1).flatten(1)
            slot = blocks.slot - blocks.look_back * blocks.members.shape[-1]
            counts = seen.gather(1, slot.clamp(min=0)).unflatten(0, (self.num_hashes, -1)).sum(0)
            counts = counts - (self.num_hashes - 1)  # each round has the token itself
        return share_of_tokens(counts.unflatten(0, (len(mask), -1)), mask, causal)

    def _hash(self, q: Tensor, key_mask: Tensor | None) -> tuple[Tensor, int]:
        """Hash each token in each round to a bucket, (R, B, H, N); also return their number."""
        batch, heads, length, _ = q.shape
        used: Tensor | None = None
        columns = self.rotations.shape[-1]
        if self.num_buckets is None:
            pair = 2 * self.chunk_size  # a column makes two buckets
            if not torch.compiler.is_exporting():  # else all columns, for any length
                columns = torch.sym_min(columns, (length + pair - 1) // pair)
            elif key_mask is None:
                key_mask = torch.ones(batch, length, dtype=torch.bool, device=q.device)
            if key_mask is not None:
                used = ((key_mask.sum(-1) + pair - 1) // pair).clamp(1, columns)
        if columns == 0:
            return q.new_zeros(self.num_hashes, batch, heads, length, dtype=torch.long), 1
        with torch.autocast(q.device.type, enabled=False):
            rotated = q.float() @ self.rotations.float()[:, None, ..., :columns]
        if used is not None:
            used = used[:, None, None]  # (B, 1, 1)
            beyond = torch.arange(columns, device=q.device) >= used[..., None]
            rotated.masked_fill_(beyond, 0.0)
        # the largest magnitude, without a second tensor of this size
        high, low = rotated.max(-1), rotated.min(-1)
        negative = -low.values > high.values
        best = torch.where(negative, low.indices, high.indices)
        return best + negative * (columns if used is None else used), 2 * columns

    def _blocks(self, buckets: Tensor, num_buckets: int, key_mask: Tensor | None) -> Blocks:
        """Cut each round, sequence and head into chunks, (R * B * H, ...)."""
        mask = None
        if key_mask is not None:
            mask = repeat_rows(key_mask, self.num_heads).repeat(self.num_hashes, 1)
        grouped = sort(buckets, num_buckets, mask)
        if self.causal is True:
            return cluster_chunks(grouped, self.chunk_size, mask)
        if self.num_buckets is None:
            return equal_blocks(grouped, buckets.shape[1], mask, min_width=self.chunk_size)
        return equal_blocks(grouped, self.num_buckets, mask)

    def cache(self, like: Tensor) -> Cache:
        """Make rings of the last two chunks of each bucket, round and head, and counts of tokens.

        Cost: O(1) time and memory per step, for any length.
        """
        if self.causal is not True:
            return super().cache(like)
        assert self.num_buckets is not None
        batch, rows = like.shape[0], self.num_hashes * self.num_heads
        row = like.new_zeros(self.head_width)
        count = like.new_zeros(batch, dtype=torch.long)
        empty = make_ring_cache(
            batch * rows, self.num_buckets, 2 * self.chunk_size, (row, row, count.new_zeros(1))
        )
        return *(x.unflatten(0, (batch, rows)) for x in empty), count

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Decode one token. Writes into `cache`, or a larger copy of it, and returns it."""
        rings, count = cache[:-1], cache[-1]
        rounds, (batch, heads) = self.num_hashes, q.shape[:2]
        bucket, new = self._ring_entries(q, v, count[:, None])
        (keys, values, positions), mask, rings = append(
            tuple(x.flatten(0, 1) for x in rings),
            bucket[:, 0],
            tuple(x[:, 0] for x in new),
            self.chunk_size,
        )

        def union(x: Tensor) -> Tensor:  # (B * R * H, S, F) -> (B, H, R * S, F)
            return x.unflatten(0, (batch, rounds, heads)).transpose(1, 2).flatten(2, 3)

        keys, values = union(keys), union(values)
        position, mask = union(positions)[..., 0], union(mask[..., None])[..., 0]
        size = position.shape[-1] // rounds
        hash_round = torch.arange(rounds, device=q.device).repeat_interleave(size)
        same = (position[..., None, :] == position[..., None]) & mask[..., None, :]
        repeated = (same & (hash_round < hash_round[:, None])).any(-1)
        own = position == count.view(-1, 1, 1)
        bias = (own * LAST_RESORT).masked_fill(~mask | (repeated & ~own), float("-inf"))
        mixed = F.scaled_dot_product_attention(
            q, keys.to(q.dtype), values.to(q.dtype), attn_mask=bias[:, :, None].to(q.dtype)
        )
        return mixed, (*(x.unflatten(0, (batch, -1)) for x in rings), count + 1)

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        mixed, _ = self.forward(q, k, v, hidden=hidden)
        batch, _, length, _ = q.shape
        position = torch.arange(length, device=q.device).expand(batch, -1)
        rings = fill(
            tuple(x.flatten(0, 1) for x in cache[:-1]), *self._ring_entries(q, v, position)
        )
        return mixed, (*(x.unflatten(0, (batch, -1)) for x in rings), cache[-1] + length)

    def _ring_entries(
        self, q: Tensor, v: Tensor, position: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Make what a ring holds of each token.

        Args:
            q, v: (B, H, N, D).
            position: Number of each token in its text, (B, N).

        Returns:
            Buckets, (B * R * H, N); and keys, values and positions, each (B * R * H, N, width).
        """
        bucket, _ = self._hash(q, None)  # (R, B, H, N)
        heads = q.shape[1]

        def rows(x: Tensor) -> Tensor:
            return x.expand(-1, heads, -1, -1).repeat(1, self.num_hashes, 1, 1).flatten(0, 1)

        entries = (rows(_unit(q)), rows(v), rows(position[:, None, :, None]))
        return bucket.transpose(0, 1).flatten(0, 2), entries


def _unit(q: Tensor) -> Tensor:
    return unit_vectors(q.float()).to(q.dtype)


def _mask_repeated_keys(mask: Tensor, blocks: Blocks, rounds: int) -> Tensor:
    """Mask the keys that the same query has seen in an earlier round, except its own.

    In a round, the chunks that a token sees as a query are a range of entries: its own, and the one
    before unless that is invisible. It has seen a key there if an entry of the key is among them.

    Args:
        mask: (R * B * H, G, S or 1, 2 S), as from `window_mask`.
        blocks: Chunks of each round, sequence and head.
        rounds: R.
    """
    width = blocks.members.shape[-1]

    def by_round(x: Tensor) -> Tensor:  # (R * B * H, ...) -> (R, B * H, ...)
        return x.unflatten(0, (rounds, -1))

    def look_up(of_token: Tensor, tokens: Tensor) -> Tensor:  # (B * H, N), any shape of tokens
        return of_token.int().gather(1, tokens.flatten(1)).view(tokens.shape)

    own = blocks.slot.div(width, rounding_mode="floor")  # (R * B * H, N) entry of each token
    sees_back = blocks.visible[..., 0].long().gather(1, (own - 1).clamp(min=0))
    first_seen, last_seen = by_round(own - sees_back), by_round(own)
    entries = by_round(blocks.copies[..., :2].div(width, rounding_mode="floor")).unbind(-1)
    queries = by_round(blocks.members[:, blocks.own])  # (R, B * H, G, S)
    keys = by_round(windows(blocks.members, 2))  # (R, B * H, G, 2 S)
    empty = by_round(~blocks.own_filled[..., None])
    mask = by_round(mask)
    itself = F.pad(torch.eye(width, dtype=torch.bool, device=mask.device), (width, 0))
    masks = [mask[0].expand(-1, -1, width, -1)]
    for later in range(1, rounds):
        repeated = torch.zeros_like(masks[0])
        for earlier in range(later):
            first = look_up(first_seen[earlier], queries[later])[..., None]
            last = look_up(last_seen[earlier], queries[later])[..., None]
            for entry_of in entries:
                entry = look_up(entry_of[earlier], keys[later])[:, :, None]
                repeated |= (first <= entry) & (entry <= last)
        masks.append(mask[later] & (~repeated | itself) | empty[later])  # no row is empty
    return torch.cat(masks)

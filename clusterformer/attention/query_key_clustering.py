"""Attention of queries to the latest keys of their cluster, with clusters of queries and of keys.

B batch   H heads   L local heads   Z rows: B * (H - L)   N tokens   D head width   E model width
C clusters   P clusters of a key   S chunk size
"""

from functools import partial
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.attention.base import Causal, Grouping, without_training
from clusterformer.attention.dense_warm_up import DenseWarmUp
from clusterformer.attention.query_key_decoding import QueryKeyDecoding
from clusterformer.attention.query_key_selection import select_keys
from clusterformer.attention.sampled_keys import random_tokens, sampled_attention
from clusterformer.attention.softmax import full_attention, replace_prefix, replace_short_texts
from clusterformer.attention.visibility import share_of_tokens
from clusterformer.errors import require_one_of, require_positive, require_whole
from clusterformer.kernels.gathered_attention import gathered_attention
from clusterformer.kernels.rows import repeat_rows
from clusterformer.seeded import draw_seeded

Origin = Literal["learnt", "frozen", "random"]


class QueryKeyClusteringAttention(DenseWarmUp, QueryKeyDecoding):
    """Attention of each query to keys of its cluster, where a token has two clusters (ours).

    As a query a token looks for something, as a key it offers something else: in `a b ... a` the
    second `a` looks for what the token `b` offers, to stand behind an `a`. One cluster for both, as
    in ClusterFormer, Reformer and Routing Transformer, makes tokens meet that are alike. Here each
    head maps a token to two unit vectors, z_q = W_q x / |W_q x| and z_k likewise, and takes the
    nearest of C fixed directions, the anchors, for each. Keys of a cluster are cut into chunks by
    their rank. A query sees the chunk that its cluster has reached at its position, and the one
    before it; without causality also the one after it. Where its cluster has no key yet, it takes
    its own value.

    The weights are softmax(alpha z_q . z_k + r log(1 + t)) for keys at positions t: what draws
    weight also draws tokens into one cluster, for nothing else tells a head whom to attend to. The
    recency r is learnt for each head, slowly, from 0 on: of keys that are alike a head may prefer
    the later (r > 0) or the earlier. ALiBi (Press et al., 2022) has a bias that is linear in t, and
    fixed.
    alpha is no weight: one that learns grows, and then tokens need not come near one another.
    Inside clusters the same would teach z to flee from the mean of its own cluster. So z learns
    where nothing is selected: the first `dense_length` tokens of any text attend to all (before
    them), and in training so do `probes` other tokens, drawn anew each time, or all tokens in the
    first `dense_steps` steps. The rest take z as it is, unless in training they see `sampled_keys`
    random keys beside those of their clusters: then all tokens teach z.

    Args:
        d_model: Width of the hidden states (E).
        num_heads: Number of heads (H).
        causal: Causal form: False or True.
        num_clusters: Number of clusters of each head (C).
        key_clusters: Number of clusters that a key stands in (P), its nearest ones; all, if there
            are no more. A query that looks for it, but falls beyond the border of the first,
            meets it in the second.
        chunk_size: Number of keys in a chunk (S); a query sees up to 2 S keys, or 3 S if not
            causal.
        dense_length: Number of first tokens that attend to all before them. Without causality:
            length up to which a text has full attention.
        probes: Number of tokens of a text that attend to all (before them) in training; all tokens
            of a text that has no more. `keys_seen` does not count what they see, except in a
            training batch whose texts all have up to `probes` tokens: these heads select nothing
            there, and count as seeing all.
        sampled_keys: Number of random keys of a text that its tokens attend to in training beside
            those of their clusters. They stand for all keys outside the clusters, so z learns from
            every token (`clusterformer.attention.sampled_keys`). `keys_seen` does not count them.
        dense_steps: Number of first passes of training in which every token attends to all (before
            it): what takes long to learn is learnt sooner. Evaluation always selects. A training
            that starts from another's weights goes on with its count.
        local_heads: Number of heads that attend to near tokens instead; None: half of them,
            rounded down.
        local_window: Number of tokens in a chunk of the local heads, which see their own chunk, the
            one before it and, unless causal, the one after it.
        alpha: Strength of z_q . z_k, above 0. Some more than log(dense_length): less cannot single
            out one of that many keys, and with much more z_q and z_k may stay farther apart.
            Texts n times as long as those of training may need log(n) more, as a key has n times as
            many rivals. No weight depends on alpha, so an evaluation may change it.
        clusters: "learnt" by the loss, or for comparison: "frozen", tokens stay in the clusters of
            W_q and W_k as they are drawn, and the logits learn as before, so only the selection
            does not learn. "random", W_q and W_k themselves stay as they are drawn, and the logits
            are q . k / sqrt(D) + r log(1 + t). In both a head learns how to attend, but not to
            whom.
        shift_keys: Whether a key is found by the token before it: its z_k is z_q of that one, and
            there is no W_k. Equal hidden states have equal z, so a token finds what followed its
            equal, before training and after it (`clusterformer.attention.shifted_keys`).
        seed: Seed of the anchors, which are drawn once and kept in a buffer.

    Cost: O(N C D + N S D) time, O(N (P C + S)) memory; in training
    O(N (probes + sampled_keys) D) more, in its dense warm-up O(N^2 D).
    """

    causal_forms: ClassVar[tuple[Causal, ...]] = (False, True)

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        causal: Causal = False,
        num_clusters: int = 64,
        key_clusters: int = 4,
        chunk_size: int = 32,
        dense_length: int = 128,
        probes: int = 64,
        sampled_keys: int = 0,
        dense_steps: int = 0,
        local_heads: int | None = None,
        local_window: int = 64,
        alpha: float = 7.0,
        clusters: Origin = "learnt",
        shift_keys: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(
            d_model, num_heads, causal=causal, local_heads=local_heads, local_window=local_window
        )
        require_whole(1, num_clusters=num_clusters, key_clusters=key_clusters)
        require_whole(1, chunk_size=chunk_size)
        require_whole(0, dense_length=dense_length, probes=probes, sampled_keys=sampled_keys)
        require_positive(alpha=alpha)
        require_one_of(get_args(Origin), clusters=clusters)
        if self.local_heads == num_heads:
            raise ValueError(
                f"local_heads must be in 0..{num_heads - 1}, or null for half of the heads, got "
                f"{local_heads} with num_heads = {num_heads}: no head would be left for clusters"
            )
        self.num_clusters, self.key_clusters = num_clusters, min(key_clusters, num_clusters)
        self.chunk_size = chunk_size
        self.dense_length, self.probes = dense_length, probes
        self.sampled_keys = sampled_keys
        self.plan_warm_up(dense_steps)
        self.num_clusterings = num_heads - self.local_heads
        self.shift_keys, self.alpha, self.clusters = shift_keys, alpha, clusters
        self.read_width(d_model)
        self.slow_recency = nn.Parameter(torch.zeros(self.num_clusterings))
        shape = self.num_clusterings, num_clusters, self.head_width
        self.register_buffer("anchors", draw_seeded(seed, partial(_axes, *shape)))

    def read_width(self, width: int) -> None:
        heads = self.num_clusterings * self.head_width
        self.query_space = nn.Linear(width, heads, bias=False)  # W_q of each head
        self.key_space = None if self.shift_keys else nn.Linear(width, heads, bias=False)
        spaces = [space for space in (self.query_space, self.key_space) if space is not None]
        if self.clusters == "frozen":
            drawn = torch.stack([space.weight for space in spaces]).detach()
            self.register_buffer("drawn_spaces", drawn)
        if self.clusters == "random":
            for space in spaces:
                without_training(space)

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
    ) -> tuple[Tensor, Grouping | None]:
        causal, local, limit = bool(self.causal), self.local_heads, self.dense_length
        exporting, grouping = torch.compiler.is_exporting(), None
        probes = self.probes if self.training else 0
        parts = self.attend_near(q, k, v, key_mask)
        with torch.autocast(hidden.device.type, enabled=False):
            z_q, z_k = self.points(hidden)
            z_k = self.found_by(z_k, key_mask)
            position = _positions(hidden, key_mask)
            far_q, far_k = self.logit_factors(z_q, z_k, q[:, local:], k[:, local:], position)
            far_q = far_q * far_q.shape[-1] ** 0.5  # by which attention divides
            value = F.pad(v[:, local:].float(), (0, 1))  # fused kernels want one width
            short = not exporting and hidden.shape[1] <= max(limit, probes)
            if self.is_dense(hidden) or short:
                far = full_attention(far_q, far_k, value, key_mask, causal=causal)
            else:
                far, grouping = self._select(z_q, z_k, far_q, far_k, value, key_mask)
                if probes:
                    far = self._probe(far, far_q, far_k, value, key_mask)
                if limit and causal:
                    far = replace_prefix(far, far_q, far_k, value, key_mask, limit)
                elif limit and (exporting or key_mask is not None):
                    far = replace_short_texts(far, far_q, far_k, value, key_mask, limit)
        parts = [part.to(v.dtype) for part in (*parts, far[..., :-1])]
        return (parts[0] if len(parts) == 1 else torch.cat(parts, 1)), grouping

    def _select(
        self,
        z_q: Tensor,
        z_k: Tensor,
        far_q: Tensor,
        far_k: Tensor,
        value: Tensor,
        key_mask: Tensor | None,
    ) -> tuple[Tensor, Grouping]:
        """Attend to keys of the queries' clusters.

        Args:
            z_q, z_k: Points that are clustered, (B, H - L, N, D or 2 D).
            far_q, far_k, value: Queries, keys and values, (B, H - L, N, D + 1).
            key_mask: (B, N), True at real tokens; None means all real.

        Returns:
            Values (B, H - L, N, D + 1), and the grouping, with the number of keys of each token.
        """
        causal, mask = bool(self.causal), None
        if key_mask is not None:
            mask = repeat_rows(key_mask, self.num_clusterings)
        wanted, offered = self.nearest(z_q)[..., 0], self.nearest(z_k, self.key_clusters)
        selection = select_keys(
            wanted, offered, self.num_clusters, self.chunk_size, mask, causal=causal
        )
        members, in_slot, seen, filled, allowed, counts, keyless = selection
        sampling = self.training and self.sampled_keys > 0
        if self.clusters != "random" and not sampling:
            far_q, far_k = far_q.detach(), far_k.detach()
        q, k, v = (x.flatten(0, 1) for x in (far_q, far_k, value))
        scale = q.shape[-1] ** -0.5
        more = None
        if sampling:
            more = sampled_attention(
                q, k, v, members, in_slot, seen, filled, self.sampled_keys, key_mask,
                causal=causal, scale=scale,
            )  # fmt: skip
        mixed = gathered_attention(q, k, v, members, in_slot, seen, allowed, more, scale=scale)
        mixed = torch.where(keyless[..., None], v, mixed)
        by_text = z_q.shape[:2]
        assignment, counts = (x.unflatten(0, by_text) for x in (wanted, counts.clamp(min=1)))
        return mixed.unflatten(0, by_text), Grouping(assignment, self.num_clusters, counts=counts)

    def _probe(
        self, values: Tensor, far_q: Tensor, far_k: Tensor, value: Tensor, key_mask: Tensor | None
    ) -> Tensor:
        """Replace the values of random real tokens of each text by those of all keys."""
        length, device = far_k.shape[2], far_k.device
        chosen = random_tokens(length, self.probes, key_mask, device)
        position = torch.arange(length, device=device)
        own = position == chosen[..., None]  # (B, probes, N)
        mask = position <= chosen[..., None] if self.causal else own | True
        if key_mask is not None:
            mask = (mask & key_mask[:, None]) | own
        index = chosen[:, None, :, None].expand(*far_q.shape[:2], -1, far_q.shape[3])
        query = far_q.gather(2, index)
        probed = F.scaled_dot_product_attention(query, far_k, value, attn_mask=mask[:, None])
        return values.scatter(2, index, probed)

    def keys_seen(self, grouping: Grouping | None, mask: Tensor) -> Tensor:
        causal, far = bool(self.causal), mask.float()
        if grouping is not None:
            assert grouping.counts is not None
            length = mask.cumsum(1) if causal else mask.sum(1, keepdim=True)
            shares = share_of_tokens(grouping.counts, mask, causal)
            far = torch.where(length <= self.dense_length, far, shares)
        return self.share_with_near(far, mask)


def _positions(hidden: Tensor, key_mask: Tensor | None) -> Tensor:
    """Number the real tokens of each text, (B, N), or (N,) where all are real."""
    if key_mask is None:
        return torch.arange(hidden.shape[1], device=hidden.device)
    return key_mask.cumsum(1).sub(1).clamp(min=0)


def _axes(heads: int, count: int, width: int, generator: torch.Generator) -> Tensor:
    """Draw `count` directions for each head, (heads, count, width): axes of random rotations.

    Both ends of each axis; as many rotations as it takes. They lie farther apart than directions
    drawn one by one (cross-polytope hashing, Andoni et al., 2015), as the buckets of Reformer.
    """
    rotations = -(-count // (2 * width))
    made = torch.get_default_dtype()  # half precision has no QR decomposition
    dtype = torch.promote_types(made, torch.float32)
    drawn = torch.randn(rotations, heads, width, width, generator=generator, dtype=dtype)
    axes = torch.linalg.qr(drawn).Q.mT.to(made)  # rows
    ends = torch.stack([axes, -axes], 3).transpose(0, 1)  # (heads, rotations, width, 2, width)
    return ends.flatten(1, 3)[:, :count].contiguous()

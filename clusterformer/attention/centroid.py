"""Attention within groups by learnable centroids, and to neighbours (Focus, 2026).

B batch   H heads   N tokens   D head width   E model width   C groups
"""

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.attention.base import Cache, Causal, Grouping
from clusterformer.attention.block_selection import Compaction
from clusterformer.attention.text_cache import TextCaching, extend
from clusterformer.clustering.unit_vectors import unit_vectors
from clusterformer.errors import require_at_least, require_positive, require_whole
from clusterformer.kernels.merging import NO_MASS
from clusterformer.kernels.reference import argmax_first

_SINKHORN_ROUNDS = 3


class CentroidAttention(TextCaching):
    """Attention to neighbours and, farther away, to tokens of one group (after arXiv 2604.03260).

    Written after the description of Focus ("Why Attend to Everything? Focus is the Key"): no code
    was published, so details are ours. Learnable centroids of a layer assign each token to a group;
    tokens fewer than `window` away are seen whole; farther ones only if they are of the same group.

    A token's membership a is softmax_c(cos(x, c) / temperature), its group the largest. A far key
    enters the softmax with a gate, log a of its own group, and so the task's loss reaches the
    centroids. Focus balances groups by Sinkhorn's normalisation over the tokens of a text. That
    would read the future; here a Sinkhorn-balanced membership is the target of a loss of its own
    (`balance`), which feeds no output. `causal=True` does not leak, and every token sees itself.
    Focus routes softly in training and only at inference takes the best groups of a token, more
    than one; here it has one group in both. In a pretrained model Focus trains the centroids alone.

    A window of N or more, or one group, is full attention.

    Args:
        d_model: Width of the hidden states (E).
        num_heads: Number of heads (H).
        causal: Causal form: False or True.
        num_clusters: Number of groups (C), at least 1.
        window: Distance, in tokens, from which on a token is far; at least 1.
        temperature: Divisor of the cosine, above 0.
        balance: Weight of the loss that balances groups.

    Cost: O(N (C E + 2 N D)) time in one fused dense product under a mask, O(N^2) memory; a cached
    step O(N D). Two calls on sorted groups would make it sparse.
    """

    causal_forms: ClassVar[tuple[Causal, ...]] = (False, True)

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        causal: Causal = False,
        num_clusters: int = 8,
        window: int = 64,
        temperature: float = 0.1,
        balance: float = 0.01,
    ) -> None:
        super().__init__(d_model, num_heads, causal=causal)
        require_whole(1, num_clusters=num_clusters, window=window)
        require_at_least(0, balance=balance)
        require_positive(temperature=temperature)
        self.num_clusters = num_clusters
        self.window = window
        self.temperature = temperature
        self.balance = balance
        self.read_width(d_model)

    def read_width(self, width: int) -> None:
        self.centroids = nn.Parameter(torch.randn(self.num_clusters, width))

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
        packed = Compaction(key_mask)
        query, key, value = (packed.pack(x) for x in (q, k, v))
        with torch.autocast(q.device.type, enabled=False):
            scores = self._scores(packed.pack(hidden))
            group, gate = _memberships(scores)
            position = torch.arange(q.shape[2], device=q.device)
            distance = position[:, None] - position
            near = distance.abs() < self.window
            there = torch.ones_like(near) if packed.mask is None else packed.mask[:, None]
            if self.causal:
                near, there = near & (distance >= 0), there & (distance >= 0)
            far = there & ~(distance.abs() < self.window) & (group[:, :, None] == group[:, None])
            near = (near & there).expand_as(far) | ~(there.any(-1, keepdim=True))
            mixed = _attend(query, key, value, near, far, gate)
            loss = None
            if self.training and torch.is_grad_enabled():
                loss = packed.without_empty(self.balance * _imbalance(scores, packed.mask))
        counts = (near | far).sum(-1, keepdim=True)
        group, counts = (packed.unpack(x)[..., 0] for x in (group[..., None], counts))
        grouping = Grouping(group, self.num_clusters, counts=counts, loss=loss)
        return packed.unpack(mixed).to(q.dtype), grouping

    def _scores(self, hidden: Tensor) -> Tensor:
        """Cosines over the temperature of tokens with centroids, (B, N, C)."""
        points, centroids = (unit_vectors(x.float()) for x in (hidden, self.centroids))
        return points @ centroids.mT / self.temperature

    def rows(self, k: Tensor, v: Tensor, hidden: Tensor) -> Cache:
        """Compute groups and gates, (B, N, 2)."""
        with torch.autocast(k.device.type, enabled=False):  # as `forward`
            group, gate = _memberships(self._scores(hidden))
        return (torch.stack([group.float(), gate], -1),)

    def no_rows(self, empty: Tensor) -> Cache:
        return (empty.new_zeros(empty.shape[0], 0, 2).float(),)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Decode one token. Writes into `cache`, or a larger copy of it, and returns it."""
        keys, values, members, count = cache
        at = int(count[0])  # the same in every row
        with torch.autocast(q.device.type, enabled=False):  # as `forward`
            group, gate = _memberships(self._scores(hidden))
            entry = torch.stack([group.float(), gate], -1)
            keys, values, members = (
                extend(x, at, new) for x, new in ((keys, k), (values, v), (members, entry))
            )
            held = slice(at + 1)
            near = torch.arange(at + 1, device=q.device) > at - self.window
            same = members[:, held, 0] == group
            bias = torch.where(near, 0.0, members[:, held, 1].masked_fill(~same, float("-inf")))
            mixed = F.scaled_dot_product_attention(
                q.float(), keys[:, :, held].float(), values[:, :, held].float(),
                attn_mask=bias[:, None, None],
            )  # fmt: skip
        return mixed.to(q.dtype), (keys, values, members, count + 1)


def _memberships(scores: Tensor) -> tuple[Tensor, Tensor]:
    """Group (B, N) of each token, and the log of its membership in it (B, N)."""
    group = argmax_first(scores.detach(), 2)
    return group, scores.log_softmax(-1).gather(2, group[..., None])[..., 0]


def _attend(q: Tensor, k: Tensor, v: Tensor, near: Tensor, far: Tensor, gate: Tensor) -> Tensor:
    """Attend to near keys, and to far ones under their gates (B, N), in one softmax.

    Keys stand twice, without and with the gate as one more column: one fused product.
    """
    if q.device.type == "cpu":  # half precision is slow there, as in `FullAttention`
        q, k, v = q.float(), k.float(), v.float()
    scale = q.shape[-1] ** -0.5
    column = gate[:, None, :, None].to(q.dtype).expand(-1, q.shape[1], -1, -1)
    query = torch.cat([q, torch.full_like(q[..., :1], 1 / scale)], -1)
    key = torch.cat([F.pad(k, (0, 1)), torch.cat([k, column], -1)], 2)
    value = F.pad(torch.cat([v, v], 2), (0, 1))  # the fused kernel wants one width
    mask = torch.cat([near, far], -1)[:, None]
    return F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)[..., :-1]


def _imbalance(scores: Tensor, mask: Tensor | None) -> Tensor:
    """Cross-entropy of memberships against balanced ones, summed over tokens, (B,)."""
    with torch.no_grad():
        target = scores - scores.amax((1, 2), keepdim=True)
        for _ in range(_SINKHORN_ROUNDS):  # Sinkhorn: equal groups, then one membership a token
            if mask is not None:
                target = target.masked_fill(~mask[..., None], NO_MASS)
            target = target - target.logsumexp(1, keepdim=True)
            target = target.log_softmax(2)
        target = target.exp()
    losses = -(target * scores.log_softmax(-1)).sum(-1)
    return (losses if mask is None else losses * mask).sum(-1)

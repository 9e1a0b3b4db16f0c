"""Attention to the tokens that a small indexer chooses (DeepSeek-V3.2-Exp, 2025).

B batch   H heads   N tokens   D head width   E model width   I index heads   F index width
T blocks of a query   S block size   K keys of a query
"""

from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.attention.base import Cache, Causal, Grouping
from clusterformer.attention.block_selection import Compaction
from clusterformer.attention.dense_warm_up import DenseWarmUp
from clusterformer.attention.rotary import rotate
from clusterformer.attention.softmax import full_attention
from clusterformer.attention.text_cache import TextCaching, attend_rows, extend
from clusterformer.errors import require_one_of, require_whole
from clusterformer.kernels.index_scores import attention_mass, index_scores, select_keys
from clusterformer.kernels.merging import NO_MASS
from clusterformer.kernels.top_k import top_k_indices


class IndexerAttention(DenseWarmUp, TextCaching):
    """Attention to the tokens of highest index score (the lightning indexer of DeepSeek-V3.2-Exp).

    The index score of a key s for a query t is I_ts = sum_j w_tj ReLU(q_tj . k_s) with I small
    heads and one key for all of them (eq. 1). All heads attend to the same `top_k` keys.

    The choice has no gradient. The indexer reads hidden states without passing a gradient to them,
    and learns from its own loss alone: the KL divergence of softmax(I_t) from the attention of the
    layer, summed over heads and normalised, on the chosen keys (eq. 4). `Grouping.loss` carries it
    to the trainer; a training loop of your own adds `losses.mechanism_loss` of the groupings, or
    the choice stays random. `target="all"` compares all keys (eq. 3) while attention stays sparse.

    A random indexer chooses badly, and learns of no key that it does not choose. So the report
    warms it up: for `dense_steps` passes of training every token attends to all, and the indexer
    learns from that. The report trains nothing else meanwhile; here all weights learn. Evaluation
    is always sparse.

    Half of the width of index queries and keys is rotated by their positions, as in the published
    code, where the layer rotates its own queries and keys (`MultiHeadAttention.rotary_base`).

    With `block_size` above 1 whole blocks are chosen, a block's score is that of its best key, and
    the target is the attention that a block takes, as in MiniMax Sparse Attention (arXiv
    2606.13392); where causal the own block is always among them.

    `causal=True` is the published form. It neither leaks nor leaves a token without a key. A form
    without causality is ours. Beside the published indexer: no 8-bit numbers (nor the Hadamard
    transform before them, which changes no product), index queries are made of the hidden state
    and not of the compressed query of latent attention, which no other layer has, and equal scores
    (a ReLU gives many zeros) go to the latest key. A `top_k` of N or more is full attention.

    Generation chooses what a whole pass chooses, but for rare ties: repeated tokens may have equal
    scores whose terms cancel nearly to 0. Such a score keeps few exact bits, and a cached step,
    which sums in another order, may round two of them apart and choose another copy.

    Args:
        d_model: Width of the hidden states (E).
        num_heads: Number of heads (H).
        causal: Causal form: False or True.
        top_k: Number of keys that a token attends to; of blocks, with `block_size` above 1.
        index_heads: Number of heads of the indexer (I).
        index_width: Width of the indexer's heads (F).
        block_size: Number of keys that are chosen together (S).
        target: Keys on which the indexer is compared with attention: "chosen" or "all".
        dense_steps: Number of first passes of training in which attention is dense. A training that
            starts from another's weights goes on with its count.

    Cost: O(N^2 (I F + H D)) time: on the sizes of one machine, attention to the chosen keys is one
    dense product under a mask. O(N^2) memory. A cached step O(N I F + top_k S H D).
    """

    causal_forms: ClassVar[tuple[Causal, ...]] = (False, True)

    def __init__(
        self,
        d_model: int,
        num_heads: int,
        *,
        causal: Causal = False,
        top_k: int = 64,
        index_heads: int = 4,
        index_width: int = 16,
        block_size: int = 1,
        target: Literal["chosen", "all"] = "chosen",
        dense_steps: int = 0,
    ) -> None:
        super().__init__(d_model, num_heads, causal=causal)
        require_whole(
            1,
            top_k=top_k,
            index_heads=index_heads,
            index_width=index_width,
            block_size=block_size,
        )
        require_one_of(("chosen", "all"), target=target)
        self.top_k = top_k
        self.index_heads = index_heads
        self.block_size = block_size
        self.target = target
        self.plan_warm_up(dense_steps)
        self.index_norm = nn.LayerNorm(index_width)
        self.read_width(d_model)

    def read_width(self, width: int) -> None:
        features = self.index_norm.weight.numel()
        self.index_queries = nn.Linear(width, self.index_heads * features, bias=False)
        self.index_keys = nn.Linear(width, features, bias=False)
        self.index_weights = nn.Linear(width, self.index_heads, bias=False)

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
            index = self._index(packed.pack(hidden))
            learning = self.training and torch.is_grad_enabled()
            dense = self.is_dense(hidden)
            if dense:
                position, mask = self._all_keys(key, packed.mask)
                mixed = full_attention(query, key, value, packed.mask, causal=bool(self.causal))
            else:
                position, mask = self._choose(index, packed.mask)
                mixed = _attend(query, key, value, position, mask)
            loss = None
            if learning:
                chosen = None if dense or self.target == "all" else (position, mask)
                losses = self._loss(index, query, key, chosen, packed.mask)
                loss = packed.without_empty(losses)
        counts = packed.unpack(mask.sum(-1, keepdim=True))[..., 0]
        assignment = torch.zeros_like(counts)
        grouping = Grouping(assignment, 1, counts=counts, loss=loss)
        return packed.unpack(mixed).to(q.dtype), grouping

    def _index(self, hidden: Tensor, first: int = 0) -> tuple[Tensor, Tensor, Tensor]:
        """Index queries (B, N, I, F), weights (B, N, I) and keys (B, N, F), in float32.

        The first token is at position `first`.
        """
        x = hidden.detach().float()
        queries = F.linear(x, self.index_queries.weight.float())
        queries = queries.unflatten(-1, (self.index_heads, -1))
        norm, width = self.index_norm, queries.shape[-1]
        keys = F.linear(x, self.index_keys.weight.float())
        keys = F.layer_norm(keys, (width,), norm.weight.float(), norm.bias.float(), norm.eps)
        weights = F.linear(x, self.index_weights.weight.float())
        if self.rotary_base is not None:
            positions = first + torch.arange(x.shape[1], device=x.device)
            queries = _rotate_half(queries.transpose(1, 2), positions, self.rotary_base)
            queries = queries.transpose(1, 2)
            keys = _rotate_half(keys[:, None], positions, self.rotary_base)[:, 0]
        return queries, weights * (self.index_heads * width) ** -0.5, keys

    @torch.no_grad()
    def _choose(
        self, index: tuple[Tensor, Tensor, Tensor], key_mask: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Choose keys (B, N, K) of each query, and tell which count."""
        length, size, causal = index[2].shape[1], self.block_size, bool(self.causal)
        if not torch.compiler.is_exporting():
            size = min(size, length)
        chosen, seen = select_keys(
            *index, key_mask, top_k=self.top_k, block_size=size, causal=causal
        )
        if size == 1:
            return chosen, seen
        position = chosen[..., None] * size + torch.arange(size, device=chosen.device)
        last = torch.arange(length, device=chosen.device)[:, None, None] if causal else length - 1
        mask = (seen[..., None] & (position <= last)).flatten(2)
        position = position.flatten(2).clamp(max=length - 1)
        if key_mask is not None:
            held = key_mask.gather(1, position.flatten(1)).view_as(position)
            mask = mask & (held | ~held.any(-1, keepdim=True))
        return position, mask

    def _loss(
        self,
        index: tuple[Tensor, Tensor, Tensor],
        query: Tensor,
        key: Tensor,
        chosen: tuple[Tensor, Tensor] | None,
        key_mask: Tensor | None,
    ) -> Tensor:
        """Sum the KL divergence over the real tokens of each sequence, (B,); on all keys if None.

        Args:
            chosen: Chosen keys (B, N, K), and which count.
        """
        queries, weights, keys = index
        batch, length = keys.shape[:2]
        if chosen is None:
            position, mask = self._all_keys(key, key_mask)
            scores = index_scores(queries, weights, keys)
        else:
            position, mask = chosen
            row = torch.arange(batch, device=key.device)[:, None, None]
            scores = index_scores(queries, weights, keys[row, position])
        scale = self.head_width**-0.5
        mass = attention_mass(query.detach(), key.detach(), position, mask, scale)
        scores = scores.masked_fill(~mask, NO_MASS)
        if self.block_size > 1 and chosen is not None:
            size = min(self.block_size, length)
            scores = scores.unflatten(2, (-1, size)).amax(-1)
            mass = mass.unflatten(2, (-1, size)).sum(-1)
        divergence = torch.xlogy(mass, mass) - mass * scores.log_softmax(-1)
        if key_mask is not None:
            divergence = divergence * key_mask[..., None]
        return divergence.sum((1, 2))

    def _all_keys(self, key: Tensor, key_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """All positions (B, N, N), and which of them each query may see."""
        batch, length = key.shape[0], key.shape[2]
        everything = torch.arange(length, device=key.device)
        position = everything.expand(batch, length, length)
        mask = torch.ones_like(position, dtype=torch.bool)
        if self.causal:
            mask = everything <= everything[:, None]
        if key_mask is not None:
            mask = mask & key_mask[:, None]
        return position, mask.expand(batch, length, length)

    def rows(self, k: Tensor, v: Tensor, hidden: Tensor) -> Cache:
        """Compute index keys, (B, N, F)."""
        with torch.autocast(k.device.type, enabled=False):  # as `forward`
            return (self._index(hidden)[2],)

    def no_rows(self, empty: Tensor) -> Cache:
        return (empty.new_zeros(empty.shape[0], 0, self.index_keys.out_features).float(),)

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Decode one token. Writes into `cache`, or a larger copy of it, and returns it."""
        keys, values, index_keys, count = cache
        at, size = int(count[0]), self.block_size  # the same in every row
        with torch.autocast(q.device.type, enabled=False):  # as `forward` chooses
            queries, weights, new = self._index(hidden, at)
            keys, values, index_keys = (
                extend(x, at, row) for x, row in ((keys, k), (values, v), (index_keys, new))
            )
            scores = index_scores(queries, weights, index_keys[:, : at + 1])[:, 0]
        if size > 1:
            scores = F.pad(scores, (0, -(at + 1) % size), value=float("-inf"))
            scores = scores.unflatten(1, (-1, size)).amax(2)
            scores[:, -1] = float("inf")
        chosen = top_k_indices(scores, min(self.top_k, scores.shape[1]), last=True)
        position = (chosen[..., None] * size + torch.arange(size, device=q.device)).flatten(1)
        position = position[:, None].expand(-1, self.num_heads, -1)
        mixed = attend_rows(q, keys, values, position, position <= at)
        return mixed, (keys, values, index_keys, count + 1)


def _rotate_half(x: Tensor, positions: Tensor, base: float) -> Tensor:
    """Rotate half of the width of x (B, I, N, F); the other half knows no positions."""
    width = x.shape[-1] // 4 * 2
    return torch.cat([rotate(x[..., :width], positions, base), x[..., width:]], -1)


def _attend(q: Tensor, k: Tensor, v: Tensor, index: Tensor, mask: Tensor) -> Tensor:
    """Attend to the keys at index (B, N, K) that are in the mask, in all heads."""
    length = k.shape[2]
    table = torch.zeros(*index.shape[:2], length + 1, dtype=torch.bool, device=q.device)
    table = table.scatter(2, index.masked_fill(~mask, length), True)[:, None, :, :length]
    if q.device.type == "cpu":  # half precision is slow there, as in `FullAttention`
        q, k, v = q.float(), k.float(), v.float()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=table)

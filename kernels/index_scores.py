"""Scores of a lightning indexer, and the keys of highest score of each query.

B batch   N tokens   I index heads   F features of an index head   T keys of a query   S block size
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.kernels.top_k import room_for, top_k_indices

PIECE = 2**22
"""Maximum number of scores of a query and a key that are held at a time, of all index heads."""


def index_scores(queries: Tensor, weights: Tensor, keys: Tensor) -> Tensor:
    """Compute I_ts = sum_j w_tj ReLU(q_tj . k_s) (DeepSeek-V3.2, eq. 1).

    Args:
        queries: (B, N, I, F).
        weights: (B, N, I).
        keys: (B, M, F), the same for all queries; or (B, N, T, F), those of each query.

    Returns:
        (B, N, M), or (B, N, T).
    """
    if keys.dim() == 3:  # one product of each text, where a broadcast one would copy its keys
        products = queries.flatten(1, 2) @ keys.transpose(1, 2)
        products = products.unflatten(1, queries.shape[1:3])  # (B, N, I, M)
    else:
        products = queries @ keys.transpose(2, 3)  # (B, N, I, T)
    return (weights[..., None, :] @ products.relu()).squeeze(2)


def select_keys(
    queries: Tensor,
    weights: Tensor,
    keys: Tensor,
    key_mask: Tensor | None,
    *,
    top_k: int,
    block_size: int,
    causal: bool,
) -> tuple[Tensor, Tensor]:
    """Find the blocks of keys of highest score of each query; a block's is that of its best key.

    Equal scores go to the later block. Scores whose first 12 bits of precision agree are equal, so
    that neither padding nor the rounding of another length changes the choice.

    Args:
        queries, weights, keys: As in `index_scores`, keys (B, N, F) of real tokens in front.
        key_mask: (B, N), True at real tokens; None means all real.
        top_k: Maximum number of blocks of a query.
        block_size: S.
        causal: Whether a query sees only keys up to itself. Its own block is then always chosen, if
            blocks are longer than a token.

    Returns:
        Blocks (B, N, T), and whether each choice counts. No gradient.

    Cost: O(N^2 I F) time, O(N T) memory beside pieces of bounded size.
    """
    if key_mask is None:
        key_mask = keys.new_ones(keys.shape[:2], dtype=torch.bool)
    if torch.onnx.is_in_onnx_export():  # all at once, and as many however short the text
        position = torch.arange(keys.shape[1], device=keys.device)
        found = _choose(queries, weights, keys, key_mask, position, top_k, block_size, causal)
    else:
        blocks = (keys.shape[1] + block_size - 1) // block_size
        count = torch.sym_min(top_k, blocks)
        found = _select(queries, weights, keys, key_mask, count, block_size, causal)
    return found.clamp(min=0), found >= 0


@torch.library.custom_op("clusterformer::select_keys", mutates_args=())
def _select(
    queries: Tensor,
    weights: Tensor,
    keys: Tensor,
    key_mask: Tensor,
    count: int,
    block_size: int,
    causal: bool,
) -> Tensor:
    """Choose blocks (B, N, T), some queries at a time; -1 for none."""
    batch, length, heads, _ = queries.shape
    chosen = torch.empty(batch, length, count, dtype=torch.long, device=queries.device)
    rows = max(1, PIECE // (batch * heads * length))
    position = torch.arange(length, device=queries.device)
    for start in range(0, length, rows):
        part = slice(start, start + rows)
        chosen[:, part] = _choose(
            queries[:, part], weights[:, part], keys, key_mask, position[part],
            count, block_size, causal,
        )  # fmt: skip
    return chosen


def _choose(
    queries: Tensor,
    weights: Tensor,
    keys: Tensor,
    key_mask: Tensor,
    position: Tensor,
    count: int,
    block_size: int,
    causal: bool,
) -> Tensor:
    """Choose blocks (B, n, T) of the queries at these positions (n,); -1 for none."""
    length = keys.shape[1]
    scores = index_scores(queries, weights, keys)
    allowed = key_mask[:, None]
    if causal:
        allowed = allowed & (torch.arange(length, device=keys.device) <= position[:, None])
    scores = scores.masked_fill(~allowed, float("-inf"))
    if block_size > 1:
        blocks = (length + block_size - 1) // block_size
        scores = F.pad(scores, (0, blocks * block_size - length), value=float("-inf"))
        scores = scores.unflatten(2, (blocks, block_size)).amax(3)
        if causal:
            own = (position // block_size)[:, None].expand(scores.shape[0], -1, 1)
            scores = scores.scatter(2, own, float("inf"))
    scores, count = room_for(scores, count)
    best = top_k_indices(scores, count, last=True)
    return best.masked_fill(scores.gather(2, best) == float("-inf"), -1)


@_select.register_fake
def _(
    queries: Tensor,
    weights: Tensor,
    keys: Tensor,
    key_mask: Tensor,
    count: int,
    block_size: int,
    causal: bool,
) -> Tensor:
    return queries.new_empty(*queries.shape[:2], count, dtype=torch.long)


@torch.library.custom_op("clusterformer::attention_mass", mutates_args=())
def attention_mass(q: Tensor, k: Tensor, index: Tensor, mask: Tensor, scale: float) -> Tensor:
    """Compute the share of attention that chosen keys take, of all heads together. No gradient.

    Args:
        q, k: (B, H, N, D).
        index: (B, N, K) keys of each query.
        mask: (B, N, K), False for a key that does not count; no row may be all False.
        scale: Factor on the logits.

    Returns:
        (B, N, K), float32; each row sums to 1: the target of DeepSeek-V3.2, eq. 3.
    """
    batch, heads, length, _ = q.shape
    mass = torch.empty(index.shape, dtype=torch.float32, device=q.device)
    rows = max(1, PIECE // (batch * heads * length))
    keys = k.float().transpose(2, 3)
    for start in range(0, length, rows):
        part = slice(start, start + rows)
        logits = scale * q[:, :, part].float() @ keys  # (B, H, rows, N)
        at = index[:, None, part].expand(-1, heads, -1, -1)
        logits = logits.gather(3, at).masked_fill(~mask[:, None, part], float("-inf"))
        mass[:, part] = logits.softmax(-1).mean(1)
    return mass


@attention_mass.register_fake
def _(q: Tensor, k: Tensor, index: Tensor, mask: Tensor, scale: float) -> Tensor:
    return index.new_empty(index.shape, dtype=torch.float32)

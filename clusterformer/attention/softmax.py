"""Softmax attention over all tokens of a text, of the short texts of a batch, or of a window.

B batch   H heads   N tokens   D head width   L longest text that counts as short
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.kernels.causal_attention import causal_attention
from clusterformer.kernels.chunk_attention import chunk_attention
from clusterformer.kernels.chunking import window_blocks
from clusterformer.kernels.ordering import stable_order
from clusterformer.kernels.rows import pick_tokens
from clusterformer.masks import attention_mask


def full_attention(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None = None, *, causal: bool = False
) -> Tensor:
    """Apply softmax attention of each token over all real tokens, in PyTorch's fused kernels.

    Args:
        q: (B, H, N, D).
        k, v: (B, H, M, D).
        key_mask: (B, M), True at real tokens; None means all real.
        causal: A token attends to itself and tokens before it only.

    Returns:
        (B, H, N, D) in the dtype of q.
    """
    if causal and key_mask is None:
        return causal_attention(q, k, v, q.shape[-1] ** -0.5)
    mask = None if key_mask is None else attention_mask(key_mask, causal=causal)
    if q.device.type != "cpu":
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    # On CPU bfloat16 attention is up to ten times slower backward than float32 (torch 2.13).
    with torch.autocast("cpu", enabled=False):
        out = F.scaled_dot_product_attention(q.float(), k.float(), v.float(), attn_mask=mask)
    return out.to(q.dtype)


def window_attention(
    q: Tensor, k: Tensor, v: Tensor, window: int, key_mask: Tensor | None, *, causal: bool
) -> Tensor:
    """Apply softmax attention of each token over the real tokens fewer than `window` away.

    Args:
        q, k, v: (B, H, N, D).
        window: Distance, in tokens, from which on a token is out of sight; at least 1.
        key_mask: (B, N), True at real tokens; None means all real.
        causal: A token attends to itself and tokens before it only.

    Returns:
        (B, H, N, D).
    """
    width = -(-window // 2)  # blocks of half a window: three in sight are 1.5 windows
    reach = -(-(window - 1) // width)
    within: int | None = window
    # the export is asked for first: in one, the comparison would be a guard on the length
    if not torch.compiler.is_exporting() and q.shape[2] <= window:
        width, within = q.shape[2], None  # one block: every token is in sight
    blocks = window_blocks(
        q.shape[2], q.shape[0], width, key_mask,
        device=q.device, look_back=reach, look_ahead=0 if causal else reach,
    )  # fmt: skip
    scale = q.shape[-1] ** -0.5
    return chunk_attention(q, k, v, blocks, scale=scale, causal=causal, within=within)


def replace_short_texts(
    values: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    key_mask: Tensor | None,
    limit: int,
    *,
    causal: bool = False,
) -> Tensor:
    """Replace the values of texts of up to `limit` real tokens by those of full attention.

    Args:
        values: (B, H, N, D).
        q, k, v: (B, H, N, D).
        key_mask: (B, N), True at real tokens; None means all real.
        limit: L.
        causal: A token attends to itself and tokens before it only.

    Cost: O(L^2 D) time for each short text, whatever the padded length.
    """
    if key_mask is None:
        key_mask = torch.ones_like(q[:, 0, :, 0], dtype=torch.bool)
    lengths = key_mask.sum(1)
    short = lengths <= limit  # (B,)
    # A compiled graph has no rows chosen by their content: it computes all, and takes the short.
    chosen = None if torch.compiler.is_compiling() else short.nonzero()[:, 0]
    if chosen is not None:
        if not len(chosen):
            return values
        q, k, v, key_mask, lengths = (x[chosen] for x in (q, k, v, key_mask, lengths))
    real = torch.arange(limit, device=q.device) < lengths[:, None]
    mixed = _attend_first(q, k, v, key_mask, limit, real, causal)
    mixed = mixed.masked_fill(~key_mask[:, None, :, None], 0.0).to(values.dtype)
    if chosen is not None:
        return values.index_copy(0, chosen, mixed)
    return torch.where(short[:, None, None, None], mixed, values)


def replace_prefix(
    values: Tensor, q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor | None, limit: int
) -> Tensor:
    """Replace the values of the first `limit` real tokens of each text by causal full attention's.

    Args:
        values: (B, H, N, D).
        q, k, v: (B, H, N, D).
        key_mask: (B, N), True at real tokens; None means all real.
        limit: L.

    Cost: O(L^2 D) time for each text, whatever its length.
    """
    if key_mask is None:
        key_mask = torch.ones_like(q[:, 0, :, 0], dtype=torch.bool)
    mixed = _attend_first(q, k, v, key_mask, limit, None, True).to(values.dtype)
    inside = key_mask & (key_mask.cumsum(1) <= limit)
    return torch.where(inside[:, None, :, None], mixed, values)


def _attend_first(
    q: Tensor, k: Tensor, v: Tensor, key_mask: Tensor, limit: int, real: Tensor | None, causal: bool
) -> Tensor:
    """Apply full attention among the first `limit` real tokens; other tokens get any values."""
    first = torch.arange(limit, device=q.device)
    first = first.clamp(max=key_mask.shape[1] - 1)  # an exported graph may get shorter texts
    order = stable_order((~key_mask).long())[:, first]  # real tokens first
    q, k, v = (pick_tokens(x, order) for x in (q, k, v))  # (B, H, L, D)
    mixed = full_attention(q, k, v, real, causal=causal)
    rank = (key_mask.cumsum(1) - 1).clamp(0, limit - 1)
    return pick_tokens(mixed, rank)

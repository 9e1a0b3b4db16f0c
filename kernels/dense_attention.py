"""Attention in blocks as one dense product under a mask, for short sequences on CPU.

B batch   H heads   N tokens   D head width   A additional columns   R hash rounds
G blocks   J blocks that a block sees

A window has at least as many slots as a short sequence has tokens, so gathering takes longer.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.kernels.blocks import Blocks
from clusterformer.kernels.causal_attention import causal_attention
from clusterformer.kernels.dispatch import forced, use_triton

DENSE_LENGTH = 256
"""Longest text for which one product under a mask is faster than blocks that all heads share.

Measured on CPU, forward and backward, 4 heads of 75: at 256 tokens it takes 0.8 of the time of
blocks of 13 to 16, at 192 tokens 0.7 of that of blocks of 64, at 24 to 96 tokens half of any. From
384 tokens on narrow blocks are faster, from 768 wide ones too."""


def is_dense(blocks: Blocks, device: torch.device, *, shared: bool = False) -> bool:
    """Tell whether attention in these blocks is best computed by `dense_attention`.

    Args:
        blocks: Index structure of the tokens.
        device: Device of queries and keys.
        shared: True if all heads of a sequence have the same blocks, so that one mask is enough.
    """
    short = blocks.short
    if shared and not torch.compiler.is_exporting():
        short = short or blocks.slot.shape[1] <= DENSE_LENGTH
    if not short or device.type != "cpu" or torch.onnx.is_in_onnx_export():
        return False
    return forced() != "reference" and not use_triton(device)


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Blocks,
    *,
    scale: float,
    causal: bool = False,
    self_bias: float = 0.0,
    extra: tuple[Tensor, Tensor] | None = None,
    global_mask: Tensor | None = None,
) -> Tensor:
    """Apply softmax attention of each token over the tokens in the blocks that it sees.

    Computes in float32 in every dtype.

    Args:
        q, k, v: (B, H, N, D). The logits are scale * q . k.
        blocks: Index structure of each sequence (B, ...), of each head (B * H, ...), or of each
            head in several hash rounds (R * B * H, ...). A key that a token sees in several rounds
            counts once.
        scale: Factor on the logits.
        causal: A token attends to itself and tokens before it only.
        self_bias: Bias on the logit of a token with itself.
        extra: Additional columns of q and of k, (B, N, A) each, the same for all heads.
        global_mask: (B, N), True at tokens that see all real tokens, and that all see.

    Returns:
        (B, H, N, D) in the dtype of q; 0 at padding.

    Cost: O(N^2 D) time, and O(N^2) memory for a mask, unless all see all; O(H N^2) memory with
    additional columns, up to `DENSE_LENGTH` tokens.
    """
    batch, heads, length, width = v.shape
    split = heads if blocks.slot.shape[0] != batch else 1  # heads with blocks of their own
    real = blocks.slot.unflatten(0, (-1, batch, split))[0, :, 0] >= 0  # (B, N)
    mask: Tensor | None = None  # a row without a key would give NaN
    if not blocks.whole:
        mask = _visible_pairs(blocks).unflatten(0, (-1, batch, split)).any(0)  # (B, H, N, N)
        if global_mask is not None:
            pairs = (global_mask[:, None] | global_mask[..., None]) & real[:, None]
            mask = mask | pairs[:, None]
    elif blocks.padded:
        mask = (real | ~real.any(1, keepdim=True))[:, None, None]  # (B, 1, 1, N)
    if causal:
        before = torch.ones(length, length, dtype=torch.bool).tril()
        mask = before if mask is None else mask & before
    if mask is not None and blocks.padded and mask.shape[-2] == length:
        mask = mask | ~real[:, None, :, None]
    if self_bias:
        bias = self_bias * torch.eye(length, dtype=torch.float32)
        mask = bias if mask is None else torch.where(mask, bias, float("-inf"))
    with torch.autocast("cpu", enabled=False):
        query, key, value = q.float(), k.float(), v.float()
        exporting = torch.compiler.is_exporting()  # for any length
        if extra is not None and not exporting and length <= DENSE_LENGTH:
            return _biased_attention(query, key, value, mask, real, scale, extra).to(q.dtype)
        if extra is not None:
            columns = (x.float()[:, None].expand(-1, heads, -1, -1) for x in extra)
            query, key = (torch.cat(pair, -1) for pair in zip((query, key), columns, strict=True))
            value = F.pad(value, (0, extra[0].shape[-1]))  # the fused kernel wants one width
        out = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    out = out[..., :width]
    if blocks.padded:
        out = out.masked_fill(~real[:, None, :, None], 0.0)
    return out.to(q.dtype)


def dense_prefix(
    values: Tensor, q: Tensor, k: Tensor, v: Tensor, prefix: int, scale: float
) -> Tensor:
    """Replace values (B, H, N, D) of the first `prefix` tokens by those of attention to all before.

    Padding must be last: causality hides it.
    """
    q, k, v = (x[:, :, :prefix] for x in (q, k, v))
    first = causal_attention(q, k, v, scale)
    return torch.cat([first.to(values.dtype), values[:, :, prefix:]], 2)


def _biased_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    mask: Tensor | None,
    real: Tensor,
    scale: float,
    extra: tuple[Tensor, Tensor],
) -> Tensor:
    """Add the product of the additional columns to all heads' logits at once, (B, H, N, D).

    Half the time of widening queries, keys and values by the columns, which the fused kernel asks.
    """
    bias = scale * (extra[0].float() @ extra[1].float().transpose(1, 2))[:, None]  # (B, 1, N, N)
    if mask is not None and mask.dtype is torch.bool:
        bias = torch.where(mask, bias, float("-inf"))
    elif mask is not None:
        bias = bias + mask
    weights = (scale * (q @ k.transpose(2, 3)) + bias).softmax(-1)
    return (weights @ v).masked_fill(~real[:, None, :, None], 0.0)


def _visible_pairs(blocks: Blocks) -> Tensor:
    """Find the tokens that stand in the blocks that each token sees, (rows, N, N)."""
    width = blocks.members.shape[-1]
    entry = blocks.copies.div(width, rounding_mode="floor")  # (rows, N, copies)
    own = entry[..., 0]
    group = (own - blocks.look_back).clamp(min=0)[..., None]
    visible = blocks.visible.gather(1, group.expand(-1, -1, blocks.visible.shape[-1]))  # (.., N, J)
    first = own - visible[..., : blocks.look_back].sum(-1)
    last = own + visible[..., blocks.look_back + 1 :].sum(-1)
    pairs = torch.zeros(1, dtype=torch.bool)
    for copy in entry.unbind(-1):
        keys = copy[:, None]
        pairs = pairs | ((first[..., None] <= keys) & (keys <= last[..., None]))
    return pairs

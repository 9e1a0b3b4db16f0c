"""Attention in blocks, from tokens to tokens: the public operation and its choice of a kernel.

B batch   H heads   N tokens   D head width   A additional columns
S block size   R hash rounds   J blocks that a block sees
"""

import torch
from torch import Tensor

from clusterformer.kernels import (
    _chunk_attention_cpu,
    _cluster_chunks_cpu,
    _narrow_blocks_cpu,
    reference,
)
from clusterformer.kernels.blocks import Blocks, window_mask
from clusterformer.kernels.dense_attention import dense_attention, dense_prefix, is_dense
from clusterformer.kernels.dispatch import forced, use_cpu, use_triton

LAST_RESORT = -5e4
"""Bias on a token's logit with itself that leaves it no weight unless it sees nothing else.

It is Reformer's; float16 holds it."""


def chunk_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Blocks,
    *,
    scale: float,
    causal: bool = False,
    within: int | None = None,
    mask: Tensor | None = None,
    self_bias: float = 0.0,
    extra: tuple[Tensor, Tensor] | None = None,
    more: tuple[Tensor, Tensor] | None = None,
    prefix: int = 0,
) -> Tensor:
    """Apply softmax attention of each block over the blocks that it sees (eq. 8-10, 12-14).

    Args:
        q, k, v: (B, H, N, D). The logits are scale * q . k.
        blocks: Index structure from `kernels.blocks`: of each sequence (B, ...), of each head
            (B * H, ...), or of each head in several hash rounds (R * B * H, ...). With rounds, the
            softmax is one over all that a token sees in any round.
        scale: Factor on the logits.
        causal: A token attends to itself and tokens before it only, by -inf (not by eq. 14's
            multiplication, under which a masked key still takes weight).
        within: A token attends only to tokens fewer than this many slots away; of `window_blocks`
            that is a sliding window of exact width.
        mask: Slots of its window that a slot may attend to, in place of `causal` and `within`; see
            `window_mask`.
        self_bias: Bias on the logit of a token with itself, such as `LAST_RESORT`.
        extra: Additional columns of q and of k, (B, N, A) each, the same for all heads.
        more: Values (B, H, N, D) of attention to further keys and their masses (B, H, N), see
            `merging`: the softmax is one over all. Needs blocks of each sequence.
        prefix: Number of first tokens of each sequence that attend to all before them instead,
            without additional columns; padding must be last.

    Returns:
        (B, H, N, D) in the dtype of q; 0 (or `more`) at padding behind the first `prefix` tokens.

    Cost: O(N J S (D + A)) time; O(N D) memory, O(N J D) for the reference on a GPU.
    """
    none = q.new_empty(*q.shape[0::2], 0)
    if causal and mask is None and within is None and _in_sorted_order(q, blocks, prefix):
        return _cluster_chunks_cpu.chunk_attention(
            q, k, v, blocks,
            scale=scale, self_bias=self_bias, extra=extra or (none, none), prefix=prefix,
        )  # fmt: skip
    values = _attend_in_blocks(
        q, k, v, blocks, scale=scale, causal=causal, within=within, mask=mask,
        self_bias=self_bias, extra=extra, more=more,
    )  # fmt: skip
    return dense_prefix(values, q, k, v, prefix, scale) if prefix else values


def _in_sorted_order(q: Tensor, blocks: Blocks, prefix: int) -> bool:
    """Tell whether causal attention is best computed over sorted tokens, on CPU."""
    if q.device.type != "cpu" or forced() is not None or torch.compiler.is_exporting():
        return False
    if torch.onnx.is_in_onnx_export() or not _cluster_chunks_cpu.is_narrow(blocks, *q.shape[:2]):
        return False
    return bool(prefix) or not is_dense(blocks, q.device, shared=len(blocks.slot) == len(q))


def _attend_in_blocks(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Blocks,
    *,
    scale: float,
    causal: bool,
    within: int | None,
    mask: Tensor | None,
    self_bias: float,
    extra: tuple[Tensor, Tensor] | None,
    more: tuple[Tensor, Tensor] | None,
) -> Tensor:
    none = q.new_empty(*q.shape[0::2], 0)
    columns = extra or (none, none)
    if use_triton(q.device):
        from clusterformer.kernels import _chunk_attention_triton

        return _chunk_attention_triton.chunk_attention(
            q, k, v, blocks, mask=mask, causal=causal, within=within, scale=scale,
            self_bias=self_bias, extra=columns, more=more,
        )  # fmt: skip
    use_reference = not use_cpu(q.device)
    kernel = reference if use_reference else _chunk_attention_cpu
    if mask is None:
        rows, batch = blocks.slot.shape[0], q.shape[0]  # len() would fix an exported batch
        one_round, shared = rows <= batch * q.shape[1], rows == batch
        simple = one_round and within is None and more is None
        if simple and is_dense(blocks, q.device, shared=shared):
            return dense_attention(
                q, k, v, blocks, scale=scale, causal=causal, self_bias=self_bias, extra=extra
            )
        mask = window_mask(blocks, causal, within)
    coupled = extra is not None and not (use_reference or self_bias)
    if coupled and _narrow_blocks_cpu.is_narrow(blocks, *q.shape[:2]):
        return _narrow_blocks_cpu.chunk_attention(
            q, k, v, blocks, mask=mask, scale=scale, extra=columns, more=more
        )
    return kernel.chunk_attention(
        q, k, v, blocks, mask=mask, scale=scale, self_bias=self_bias, extra=columns, more=more
    )

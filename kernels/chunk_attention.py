"""Attention in blocks, from tokens to tokens: the public operation and its choice of a kernel.

B batch   H heads   N tokens   D head width   P width of the extra columns
R blocks that a block sees   S slots a block
"""

from torch import Tensor

from clusterformer.kernels import _chunk_attention_cpu, reference
from clusterformer.kernels.blocks import Blocks, window_mask
from clusterformer.kernels.dispatch import forced, use_triton

LAST_RESORT = -5e4
"""A logit that float16 still holds, and that weighs nothing beside any other (Reformer's)."""


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
    itself: float = 0.0,
    extra: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Softmax attention of each block over the blocks that it sees (eq. 8-10, 12-14).

    Args:
        q, k, v: (B, H, N, D). The logits are scale * q . k.
        blocks: From `equal_blocks`, `cluster_chunks` or `window_blocks`: of each sequence
            (B, ...), of each head (B * H, ...), or of each head in several rounds
            (rounds * B * H, ...), whose softmax is one over all that a token sees in any round.
        scale: Factor on the logits.
        causal: A token attends to itself and tokens before it only, by -inf (not by eq. 14's
            multiplication, under which a masked key still takes weight).
        within: A token attends only to tokens fewer than this many slots away; of `window_blocks`
            that is a sliding window of exact width.
        mask: Which slots of its window a slot may attend to, instead of what `causal` and `within`
            say; see `window_mask`.
        itself: Added to the logit of a token with itself. `LAST_RESORT` leaves it no weight unless
            it sees nothing else.
        extra: Further columns of q and of k, (B, N, P) each, the same for all heads.

    Returns:
        (B, H, N, D) in the dtype of q; 0 at padding.

    Cost: O(N R S (D + P)) time; O(N D) memory, O(N R D) for the reference on a GPU.
    """
    extra = extra or 2 * (q.new_empty(*q.shape[0::2], 0),)
    if use_triton(q.device):
        from clusterformer.kernels import _chunk_attention_triton

        return _chunk_attention_triton.chunk_attention(
            q, k, v, blocks, mask=mask, causal=causal, within=within, scale=scale, itself=itself,
            extra=extra,
        )  # fmt: skip
    plain = q.device.type != "cpu" or forced() == "reference"
    kernel = reference if plain else _chunk_attention_cpu
    if mask is None:
        once = len(blocks.slot) <= q.shape[0] * q.shape[1]  # not in several rounds
        if blocks.whole and once and not (plain or within):
            real = blocks.slot.unflatten(0, (len(q), -1))[:, 0] >= 0
            return _chunk_attention_cpu.whole_attention(
                q, k, v, real, scale=scale, causal=causal, itself=itself, extra=extra
            )
        mask = window_mask(blocks, causal, within)
    return kernel.chunk_attention(
        q, k, v, blocks, mask=mask, scale=scale, itself=itself, extra=extra
    )

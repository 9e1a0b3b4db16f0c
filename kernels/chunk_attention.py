"""Attention in blocks, from tokens to tokens: the public operation and its choice of a kernel.

B batch   H heads   N tokens   D head width   P width of the shared columns
R blocks that a block sees   S slots a block
"""

from torch import Tensor

from clusterformer.kernels import _attend_cpu, reference
from clusterformer.kernels.reference import Blocks


def chunk_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    blocks: Blocks,
    *,
    scale: float,
    causal: bool = False,
    extra: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Softmax attention of each block over the blocks that it sees (eq. 8-10, 12-14).

    Args:
        q, k, v: (B, H, N, D). The logits are scale * q . k.
        blocks: From `equal_blocks`, `cluster_chunks` or `window_blocks`.
        scale: Factor on the logits.
        causal: A token attends to itself and tokens before it only, by -inf (not by eq. 14's
            multiplication, under which a masked key still takes weight).
        extra: Further columns of q and of k, (B, N, P) each, the same for all heads.

    Returns:
        (B, H, N, D) in the dtype of q; 0 at padding.

    Cost: O(N R S (D + P)) time; O(N D) memory on CPU, O(N R D) elsewhere.
    """
    heads = q.shape[1]
    query_extra, key_extra = extra or 2 * (q.new_empty(*q.shape[0::2], 0),)
    query = reference.gather_own(_rows(q), blocks).unflatten(-1, (heads, -1))
    key, value = (
        reference.gather_rows(_rows(x), blocks).unflatten(-1, (heads, -1)) for x in (k, v)
    )
    query_extra = reference.gather_own(query_extra, blocks)
    key_extra = reference.gather_rows(key_extra, blocks)
    mask = reference.window_mask(blocks, causal)
    attend = _attend_cpu.attend if q.device.type == "cpu" else reference.attend
    out = attend(query, key, value, query_extra, key_extra, mask, scale)
    return reference.resort(out.flatten(3), blocks).unflatten(-1, (heads, -1)).transpose(1, 2)


def _rows(x: Tensor) -> Tensor:
    """(B, H, N, D) to (B, N, H * D), free where the heads were split off a projection."""
    return x.transpose(1, 2).flatten(2)

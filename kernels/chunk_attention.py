"""Attention in blocks, from tokens to tokens: the public operation and its choice of a kernel.

B batch   H heads   N tokens   D head width   R blocks that a block sees   S slots a block
"""

import torch.nn.functional as F
from torch import Tensor

from clusterformer.kernels import _attend_cpu, reference
from clusterformer.kernels.reference import Blocks


def chunk_attention(
    q: Tensor, k: Tensor, v: Tensor, blocks: Blocks, *, causal: bool = False, scale: float
) -> Tensor:
    """Softmax attention of each block over the blocks that it sees (eq. 8-10, 12-14).

    Args:
        q, k: (B, H, N, D). The logits are scale * q . k.
        v: (B, H, N, D') with D' <= D.
        blocks: From `equal_blocks`, `cluster_chunks` or `window_blocks`.
        causal: A token attends to itself and tokens before it only, by -inf (not by eq. 14's
            multiplication, under which a masked key still takes weight).
        scale: Factor on the logits.

    Returns:
        (B, H, N, D') in the dtype of q; 0 at padding.

    Cost: O(N R S D) time, O(N D) memory on CPU, O(N R D) elsewhere.
    """
    heads, out_width = q.shape[1], v.shape[-1]
    if out_width < q.shape[-1]:
        # Fused attention on CPU wants one width for all three; zeros cost less than its fallback.
        v = F.pad(v, (0, q.shape[-1] - out_width))
    query = reference.gather_own(_rows(q), blocks).unflatten(-1, (heads, -1))
    key, value = (
        reference.gather_rows(_rows(x), blocks).unflatten(-1, (heads, -1)) for x in (k, v)
    )
    attend = _attend_cpu.attend if q.device.type == "cpu" else reference.attend
    out = attend(query, key, value, reference.window_mask(blocks, causal), scale)
    out = reference.resort(out.flatten(3), blocks).unflatten(-1, (heads, -1)).transpose(1, 2)
    return out[..., :out_width]


def _rows(x: Tensor) -> Tensor:
    """(B, H, N, D) to (B, N, H * D), free where the heads were split off a projection."""
    return x.transpose(1, 2).flatten(2)

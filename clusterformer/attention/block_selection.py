"""Choice of blocks of keys by a score, for the mechanisms that select.

B batch   H heads   N queries   M keys   D width   G blocks   S block size   T blocks of a query
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.kernels.ordering import stable_order
from clusterformer.kernels.rows import pick_tokens
from clusterformer.kernels.selected_blocks import number_of_blocks
from clusterformer.kernels.top_k import room_for, top_k_indices


class Compaction:
    """Real tokens in front, padding behind: blocks are counted in real tokens.

    Args:
        key_mask: (B, N), True at real tokens; None if there is no padding.

    Attributes:
        mask: (B, N) of the compacted tokens; None if there is no padding.
    """

    def __init__(self, key_mask: Tensor | None) -> None:
        self.mask: Tensor | None = None
        if key_mask is not None:
            # a sequence of padding only counts as real: its values are never read
            self._empty = ~key_mask.any(-1)
            key_mask = key_mask | self._empty[:, None]
            self._order = stable_order((~key_mask).long())
            position = torch.arange(key_mask.shape[1], device=key_mask.device)
            position = position.expand_as(self._order)
            self._inverse = torch.empty_like(self._order).scatter_(1, self._order, position)
            self.mask = key_mask.gather(1, self._order)

    def pack(self, x: Tensor) -> Tensor:
        """Move rows of x (B, ..., N, D) in front."""
        return x if self.mask is None else pick_tokens(x, self._order)

    def unpack(self, x: Tensor) -> Tensor:
        """Move rows of x (B, ..., N, D) back."""
        return x if self.mask is None else pick_tokens(x, self._inverse)

    def without_empty(self, losses: Tensor) -> Tensor:
        """Set the losses (B,) of sequences of padding only to 0."""
        return losses if self.mask is None else losses.masked_fill(self._empty, 0.0)


def block_sums(x: Tensor, block_size: int) -> Tensor:
    """Sum the rows of each block: x (B, H, N, D) -> (B, H, G, D)."""
    blocks = number_of_blocks(x.shape[2], block_size)
    padded = F.pad(x, (0, 0, 0, blocks * block_size - x.shape[2]))
    return padded.unflatten(2, (blocks, block_size)).sum(3)


def block_means(x: Tensor, block_size: int, mask: Tensor | None) -> Tensor:
    """Mean of the real rows of each block: x (B, H, N, D) -> (B, H, G, D) in at least float32.

    Args:
        x: Compacted rows.
        block_size: S.
        mask: (B, N), True at real tokens; None means all real.
    """
    length = x.shape[2]
    x = x if x.dtype == torch.float64 else x.float()
    if mask is not None:
        x = x * mask[:, None, :, None]
    total = block_sums(x, block_size)
    if mask is None:
        start = torch.arange(total.shape[2], device=x.device) * block_size
        count = (length - start).clamp(0, block_size)[:, None]
    else:
        count = block_sums(mask.long()[:, None, :, None], block_size)
    return total / count.clamp(min=1)


def choose_blocks(
    scores: Tensor, block_size: int, top_k: int, mask: Tensor | None, *, causal: bool
) -> tuple[Tensor, Tensor]:
    """Choose for each token its own block, and those of the others that score highest.

    Args:
        scores: (B, H, N, G).
        block_size: S.
        top_k: Number of blocks of a token, its own among them.
        mask: (B, N), True at real tokens; None means all real.
        causal: Choose only blocks before its own.

    Returns:
        Blocks (B, H, N, T), T at most `top_k`, and whether each choice counts.
    """
    length, blocks = scores.shape[2:]
    own = torch.arange(length, device=scores.device)[:, None] // block_size
    block = torch.arange(blocks, device=scores.device)
    allowed = (block <= own)[None, None] if causal else block * block_size < length
    if mask is not None:
        allowed = allowed & (block * block_size < mask.sum(1)[:, None, None, None])
    scores = scores.detach().masked_fill(~allowed, float("-inf"))
    scores = scores.masked_fill(block == own, float("inf"))
    scores, count = room_for(scores, top_k)
    chosen = top_k_indices(scores, count)
    return chosen, scores.gather(-1, chosen) > float("-inf")


def rows_of_blocks(scores: Tensor, block_size: int, top_k: int) -> Tensor:
    """Choose blocks likewise for the last token, and list their rows in a cache, (B, H, T * S).

    Args:
        scores: Scores of the blocks before its own, (B, H, G).
        block_size: Number of tokens in a block (S).
        top_k: Number of blocks, the own one among them; where there are fewer, all.
    """
    own = scores.shape[-1]
    chosen = top_k_indices(scores, min(top_k - 1, own))
    chosen = torch.cat([chosen, chosen.new_full((*chosen.shape[:2], 1), own)], -1)
    rows = torch.arange(block_size, device=scores.device)
    return (chosen[..., None] * block_size + rows).flatten(2)


def count_in_chosen_blocks(
    chosen: Tensor, seen: Tensor, block_size: int, mask: Tensor | None, *, causal: bool
) -> Tensor:
    """Count the tokens in the blocks (B, H, N, T) that each token chose, (B, H, N).

    Of its own block a token sees those up to itself, where causal.
    """
    length = chosen.shape[2]
    start = chosen * block_size
    end: Tensor | int = length - 1
    if causal:
        end = torch.arange(length, device=chosen.device)[:, None]
    if mask is not None:
        last = mask.sum(1)[:, None, None, None] - 1
        end = torch.minimum(end, last) if isinstance(end, Tensor) else last
    return ((end - start + 1).clamp(0, block_size) * seen).sum(-1)

"""Index structures: tokens in the order of their clusters, and the blocks that they stand in.

B batch   N tokens   C clusters   S block size (slots)   G blocks (segments of the sorted tokens)
J blocks that a block sees

`chunking` has the ways to make blocks.
"""

from typing import NamedTuple

import torch
from torch import Tensor


class Sorted(NamedTuple):
    """Tokens in the order of their clusters.

    Attributes:
        order: (B, N) token at each sorted position; padding last.
        inverse: (B, N) sorted position of each token.
        counts: (B, C) number of real tokens of each cluster.
    """

    order: Tensor
    inverse: Tensor
    counts: Tensor


class Blocks(NamedTuple):
    """The token in each slot, and the blocks that each block sees.

    The G blocks lie in a row of G + J - 1 entries: block g is entry g + look_back, and sees the
    entries g .. g + J - 1. Where the row is a circle, its first and last entries repeat blocks of
    the other end.

    Attributes:
        members: (B, G + J - 1, S) token in each slot; 0 where the slot is empty.
        filled: (B, G + J - 1, S) bool, True where a slot holds a token.
        slot: (B, N) flat slot (entry * S + rank) of each token; -1 at padding.
        copies: (B, N, any) all flat slots that hold a token; -1 for none.
        visible: (B, G, J) bool, False where a block does not see an entry; all False for a block
            without a token.
        look_back: Number of blocks seen before the own one.
        padded: True if some token may be padding.
        whole: True if every token sees all of its sequence: the circle is no longer than a window.
        short: True if the sequences are no longer than a window of J * S tokens.
        grouped: Sorted tokens, where blocks are chunks of each cluster; else None.
    """

    members: Tensor
    filled: Tensor
    slot: Tensor
    copies: Tensor
    visible: Tensor
    look_back: int
    padded: bool
    whole: bool = False
    short: bool = False
    grouped: Sorted | None = None

    @property
    def own(self) -> slice:
        """Entries of the G blocks themselves."""
        return slice(self.look_back, self.look_back + self.visible.shape[1])

    @property
    def own_filled(self) -> Tensor:
        """`filled` of the blocks themselves, without repetitions, (B, G, S)."""
        return self.filled[:, self.own] & self.visible.any(-1, keepdim=True)


def windows(x: Tensor, reach: int) -> Tensor:
    """Join the entries that each block sees: (B, G + J - 1, S, ...) -> (B, G, J * S, ...)."""
    if torch.compiler.is_exporting():  # of views that overlap, the order of strides is a guard
        groups = x.shape[1] - reach + 1
        return torch.stack([x[:, one : one + groups] for one in range(reach)], 2).flatten(2, 3)
    seen = x.unfold(1, reach, 1)  # (B, G, S, ..., J)
    return seen.movedim(-1, 2).flatten(2, 3)


def window_mask(blocks: Blocks, causal: bool = False, within: int | None = None) -> Tensor:
    """Find the slots of its window that a slot may attend to, (B, G, S, J * S).

    The same for all slots of a block, (B, G, 1, J * S), if neither causal nor `within` a distance.
    A slot without a token sees everything, so that no row is empty; nothing reads it.

    Args:
        blocks: Members and visibility of the blocks.
        causal: A token attends to itself and tokens before it only.
        within: A token attends only to slots fewer than this away from its own.
    """
    reach = blocks.visible.shape[-1]
    width = blocks.members.shape[-1]
    seen = windows(blocks.filled, reach)
    if torch.compiler.is_exporting():  # ONNX has no repeat_interleave
        seen = (seen.unflatten(2, (reach, width)) & blocks.visible[..., None]).flatten(2)
    else:
        seen = seen & blocks.visible.repeat_interleave(width, -1)
    own = blocks.own_filled
    if not causal and within is None:
        return (seen | ~own.any(-1, keepdim=True))[:, :, None]
    seen = seen[:, :, None]
    if causal:
        keys, queries = windows(blocks.members, reach), blocks.members[:, blocks.own]
        seen = seen & (keys[:, :, None] <= queries[..., None])
    if within is not None:
        slots = torch.arange(reach * width, device=seen.device)
        distance = slots - slots[blocks.look_back * width :][:width, None]
        seen = seen & (distance.abs() < within)
    return seen | ~own[..., None]

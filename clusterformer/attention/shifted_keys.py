"""Shifted keys: a key is found by the token before it, so a token finds what followed its like.

In `a b ... a` the second `a` looks for its like, the first `a`, and finds b behind it. Attention of
two layers can learn this (an induction head): the first writes into each token which one stood
before it. Shifted keys need one layer and nothing learnt. "Smeared keys" (Olsson et al., 2022,
In-context Learning and Induction Heads) mix both tokens by a weight that is learnt.

B batch   H heads   N tokens   D width
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.kernels.rows import pick_tokens


def shift_rows(rows: Tensor, key_mask: Tensor | None) -> Tensor:
    """Give each real token the row of the one before it, (B, H, N, D); the first keeps its own.

    Args:
        rows: Rows of the tokens, (B, H, N, D).
        key_mask: (B, N), True at real tokens; None means all real.
    """
    if key_mask is None:
        return torch.cat([rows[:, :, :1], rows[:, :, :-1]], 2)
    before = token_before(key_mask)
    position = torch.arange(rows.shape[2], device=rows.device)
    return pick_tokens(rows, torch.where(before < 0, position, before))


def token_before(key_mask: Tensor) -> Tensor:
    """Find the real token before each one, (B, N) -> (B, N); -1 where there is none."""
    position = torch.arange(key_mask.shape[1], device=key_mask.device)
    last = torch.where(key_mask, position, -1).cummax(1).values  # real token up to each one
    return F.pad(last, (1, 0), value=-1)[:, :-1]

"""Random keys in training, so that queries and keys learn beyond the few that are selected.

A softmax over selected keys compares these with one another and with no others, so it does not
teach whom to select. Here every query of a training batch attends to C random keys of its text as
well, each of which stands for N / C: a sampled softmax (Jean et al., 2015, On Using Very Large
Target Vocabulary for Neural Machine Translation, section 3) in which the selected keys are always
in the sum. On average over the draws the sum is that over all keys.

B batch   R rows (heads of texts)   N tokens   G groups of queries   S slots
K keys that a group sees   C random keys of a text
"""

import torch
from torch import Tensor

from clusterformer.kernels.ordering import stable_order
from clusterformer.kernels.rows import repeat_rows


def random_tokens(length: int, count: int, key_mask: Tensor | None, device: torch.device) -> Tensor:
    """Draw tokens of each text, (B, count), (1, count) if all are real; `count` at most `length`.

    All texts take the first of their real tokens in one random order of positions; a text with
    fewer has padding last.
    """
    order = torch.randperm(length, device=device)
    if key_mask is not None:
        order = order[stable_order((~key_mask[:, order]).long())]
    return order.view(-1, length)[:, :count]


def add_sampled_keys(
    k: Tensor,
    v: Tensor,
    members: Tensor,
    seen: Tensor,
    filled: Tensor,
    allowed: Tensor,
    count: int,
    key_mask: Tensor | None,
    *,
    causal: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Let each group of queries see random keys of its text beside those that were selected.

    Args:
        k: (R, N, D + 1), whose last column is a term of the logits by itself. v: (R, N, D + 1).
        members: (R, G, S) query in each slot.
        seen: (R, G, K) keys that a group sees. filled: (R, G, K), True where there is one.
        allowed: (R, G, S, K), whether a slot sees a key.
        count: C; at most N are drawn.
        key_mask: (B, N), True at real tokens; None means all real. R is a multiple of B.
        causal: A token attends to itself and tokens before it only.

    Returns:
        k, v (R, N + C, D + 1), seen (R, G, K + C) and allowed (R, G, S, K + C).
    """
    rows, length = k.shape[:2]
    drawn = random_tokens(length, min(count, length), key_mask, k.device)
    real = None if key_mask is None else key_mask.gather(1, drawn)
    number = torch.full_like(drawn[:, :1], length) if key_mask is None else key_mask.sum(1, True)
    stands_for = (number.clamp(min=1) / drawn.shape[1]).clamp(min=1).log()  # (B or 1, 1)
    drawn, stands_for = (_for_rows(x, rows) for x in (drawn, stands_for))
    index = drawn[..., None].expand(-1, -1, k.shape[2])
    sampled = k.gather(1, index)
    sampled = torch.cat([sampled[..., :-1], sampled[..., -1:] + stands_for[..., None]], -1)

    chosen = seen.masked_fill(~filled, length).sort(-1).values
    wanted = drawn[:, None].expand(-1, seen.shape[1], -1).contiguous()
    at = torch.searchsorted(chosen, wanted).clamp(max=seen.shape[2] - 1)
    new = chosen.gather(2, at) != wanted  # (R, G, C), not among the selected
    if real is not None:
        new = new & _for_rows(real, rows)[:, None]
    more = new[:, :, None].expand(-1, -1, members.shape[2], -1)
    if causal:
        more = more & (wanted[:, :, None] <= members[..., None])
    own = torch.arange(length, length + drawn.shape[1], device=k.device)
    seen = torch.cat([seen, own.expand(*seen.shape[:2], -1)], -1)
    k, v = torch.cat([k, sampled], 1), torch.cat([v, v.gather(1, index)], 1)
    return k, v, seen, torch.cat([allowed, more], -1)


def _for_rows(x: Tensor, rows: int) -> Tensor:
    """Repeat what belongs to a text, (B or 1, ...), for its rows."""
    return x.expand(rows, -1) if x.shape[0] == 1 else repeat_rows(x, rows // x.shape[0])

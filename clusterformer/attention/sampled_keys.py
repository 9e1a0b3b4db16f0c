"""Random keys in training, so that queries and keys learn beyond the few that are selected.

A softmax over selected keys compares these with one another and with no others, so it does not
teach whom to select. Here every query of a training batch attends to L random keys of its text as
well, each of which stands for N / L: a sampled softmax (Jean et al., 2015, On Using Very Large
Target Vocabulary for Neural Machine Translation, section 3) in which the selected keys are always
in the sum. On average over the draws the sum is that over all keys.

B batch   Z rows (heads of texts)   N tokens   G groups of queries   S slots
K keys that a group sees   L random keys of a text
"""

import torch
from torch import Tensor

from clusterformer.kernels.merging import NO_MASS
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


def sampled_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    members: Tensor,
    in_slot: Tensor,
    seen: Tensor,
    filled: Tensor,
    count: int,
    key_mask: Tensor | None,
    *,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Let each query attend to random keys of its text that were not selected for its group.

    Args:
        q, k, v: (Z, N, D).
        members: (Z, G, S) query in each slot. in_slot: (Z, G, S), True where there is one.
        seen: (Z, G, K) keys that a group sees. filled: (Z, G, K), True where there is one.
        count: L; at most N are drawn.
        key_mask: (B, N), True at real tokens; None means all real. Z is a multiple of B.
        causal: A token attends to itself and tokens before it only.
        scale: Factor on the logits.

    Returns:
        values (Z, N, D), and masses (Z, N, 1): the log of the sum of exp over the logits, in which
        a key counts for all that it stands for; -1e30 without a key. Both in float32.

    Cost: O(N L D) time, O(N L) memory.
    """
    rows, length = k.shape[:2]
    drawn = random_tokens(length, min(count, length), key_mask, k.device)
    real = None if key_mask is None else key_mask.gather(1, drawn)
    number = torch.full_like(drawn[:, :1], length) if key_mask is None else key_mask.sum(1, True)
    stands_for = (number.clamp(min=1) / drawn.shape[1]).clamp(min=1).log()  # (B or 1, 1)
    drawn, stands_for = (_for_rows(x, rows) for x in (drawn, stands_for))

    chosen = seen.masked_fill(~filled, length).sort(-1).values
    wanted = drawn[:, None].expand(-1, seen.shape[1], -1).contiguous()
    at = torch.searchsorted(chosen, wanted).clamp(max=seen.shape[2] - 1)
    new = chosen.gather(2, at) != wanted  # (Z, G, L), not among the selected
    if real is not None:
        new = new & _for_rows(real, rows)[:, None]
    new = torch.cat([new, torch.zeros_like(new[:, :1])], 1)  # none for a query without a group
    group = _groups(members, in_slot, length)[..., None]
    allowed = new.gather(1, group.expand(-1, -1, new.shape[2]))
    if causal:
        allowed = allowed & (drawn[:, None] <= torch.arange(length, device=k.device)[:, None])

    index = drawn[..., None].expand(-1, -1, k.shape[2])
    with torch.autocast(k.device.type, enabled=False):
        keys, values = (x.gather(1, index).float() for x in (k, v))
        logits = scale * q.float() @ keys.mT + stands_for[..., None]
        logits = logits.masked_fill(~allowed, NO_MASS)
        return logits.softmax(-1) @ values, logits.logsumexp(-1, keepdim=True)


def _groups(members: Tensor, in_slot: Tensor, length: int) -> Tensor:
    """Number the group of each query, (Z, N); G where a query has none."""
    rows, groups = members.shape[:2]
    number = torch.arange(groups, device=members.device)[:, None].expand_as(members)
    found = members.new_full((rows, length + 1), groups)
    token = members.masked_fill(~in_slot, length)
    return found.scatter(1, token.flatten(1), number.flatten(1))[:, :length]


def _for_rows(x: Tensor, rows: int) -> Tensor:
    """Repeat what belongs to a text, (B or 1, ...), for its rows."""
    return x.expand(rows, -1) if x.shape[0] == 1 else repeat_rows(x, rows // x.shape[0])

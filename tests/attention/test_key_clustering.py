"""Key clustering: its limit, its definition in loops, and that queries stay apart."""

import pytest
import torch
from torch import Tensor

from clusterformer.attention import FullAttention, KeyClusteringAttention

B, H, D = 2, 2, 4


def heads(length: int) -> Tensor:
    return torch.randn(B, H, length, D)


def run(core, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    hidden = torch.zeros(B, q.shape[2], H * D)
    return core(q, k, v, hidden=hidden, key_mask=mask)[0]


@pytest.mark.parametrize("clusters", [1, 2, 3])
@pytest.mark.parametrize("keys", [1, 2, 7, 40])
def test_up_to_three_clusters_are_full_attention(clusters: int, keys: int) -> None:
    q, k, v = heads(9), heads(keys), heads(keys)
    core = KeyClusteringAttention(H * D, H, num_clusters=clusters, min_width=1)
    torch.testing.assert_close(run(core, q, k, v), run(FullAttention(H * D, H), q, k, v))


@pytest.mark.parametrize("keys", [6, 23, 31])
@pytest.mark.parametrize("min_width", [1, 3])
def test_it_is_its_definition(min_width: int, keys: int) -> None:
    clusters = 5
    q, k, v = heads(11), heads(keys), heads(keys)
    mask = torch.arange(keys) < torch.tensor([keys, keys - 2])[:, None]
    core = KeyClusteringAttention(H * D, H, num_clusters=clusters, min_width=min_width)
    found = run(core, q, k, v, mask)
    for b in range(B):
        real = int(mask[b].sum())
        width = max(min_width, -(-real // clusters))
        used = -(-real // width)
        for h in range(H):
            of_key = [int((core.anchors[h] @ key).argmax()) for key in k[b, h, :real]]
            order = sorted(range(real), key=lambda j: of_key[j])
            for n, query in enumerate(q[b, h]):
                own = int((core.anchors[h] @ query).argmax())
                before, size = sum(c < own for c in of_key), of_key.count(own)
                middle = min(before + size // 2, real - 1)
                block = middle // width
                blocks = {(block + step) % used for step in (-1, 0, 1)}
                seen = [order[j] for j in range(real) if j // width in blocks]
                weights = (k[b, h, seen] @ query * D**-0.5).softmax(-1)
                torch.testing.assert_close(found[b, h, n], weights @ v[b, h, seen])


def test_a_query_alone_gets_what_it_gets_among_others() -> None:
    q, k, v = heads(17), heads(60), heads(60)
    core = KeyClusteringAttention(H * D, H, num_clusters=8, min_width=2)
    together = run(core, q, k, v)
    for n in (0, 5, 16):
        torch.testing.assert_close(run(core, q[:, :, n : n + 1], k, v), together[:, :, n : n + 1])


@pytest.mark.parametrize("option", ["num_clusters", "min_width"])
def test_impossible_options_are_refused(option: str) -> None:
    with pytest.raises(ValueError, match=f"{option} must be at least 1, got 0"):
        KeyClusteringAttention(8, 2, **{option: 0})

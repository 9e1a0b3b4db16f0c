"""Attention to the best keys of each query, against sorting by hand and full attention."""

import pytest
import torch

from clusterformer.attention import FullAttention, MultiHeadAttention, OracleTopAttention


def test_each_query_has_its_best_keys_and_no_other() -> None:
    core = OracleTopAttention(16, 2, top_k=3)
    q, k, v = (torch.randn(2, 2, 11, 8) for _ in range(3))
    mask = torch.arange(11) < torch.tensor([11, 7])[:, None]
    values, _ = core(q, k, v, hidden=q, key_mask=mask)
    for row, size in enumerate((11, 7)):
        for head in range(2):
            for query in range(11):
                scores = [float(q[row, head, query] @ k[row, head, j]) for j in range(size)]
                best = sorted(range(size), key=scores.__getitem__)[-3:]
                weights = (torch.tensor([scores[j] for j in best]) / 8**0.5).softmax(0)
                expected = sum(w * v[row, head, j] for w, j in zip(weights, best, strict=True))
                torch.testing.assert_close(values[row, head, query], expected)


@pytest.mark.parametrize("top_k", [13, 40])
def test_all_keys_are_full_attention(top_k: int) -> None:
    layer = MultiHeadAttention(OracleTopAttention(16, 2, top_k=top_k))
    full = MultiHeadAttention(FullAttention(16, 2))
    full.load_state_dict(layer.state_dict())
    x, mask = torch.randn(3, 13, 16), torch.arange(13) < torch.tensor([13, 5, 1])[:, None]
    torch.testing.assert_close(layer(x, mask).values[mask], full(x, mask).values[mask])
    memory = torch.randn(3, 9, 16)
    torch.testing.assert_close(layer(x, memory=memory).values, full(x, memory=memory).values)


def test_keys_are_counted() -> None:
    mask = torch.arange(8) < torch.tensor([8, 2])[:, None]
    seen = OracleTopAttention(16, 2, top_k=4).keys_seen(None, mask)
    assert seen[0].tolist() == [0.5] * 8
    assert seen[1].tolist() == [1.0] * 2 + [0.0] * 6

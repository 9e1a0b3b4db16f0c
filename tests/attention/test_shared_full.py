"""Full attention with shared queries and keys is Reformer's attention with one bucket."""

import torch

from clusterformer.attention import MultiHeadAttention, ReformerAttention, SharedQKAttention


def test_it_equals_reformer_with_one_bucket() -> None:
    layer = MultiHeadAttention(SharedQKAttention(16, 2))
    reformer = MultiHeadAttention(ReformerAttention(16, 2, num_buckets=1))
    reformer.load_state_dict(layer.state_dict(), strict=False)
    x, mask = torch.randn(3, 13, 16), torch.arange(13) < torch.tensor([13, 5, 1])[:, None]
    torch.testing.assert_close(layer(x, mask).values[mask], reformer(x, mask).values[mask])


def test_a_token_sees_itself_only_as_a_last_resort() -> None:
    layer = MultiHeadAttention(SharedQKAttention(16, 2))
    x = torch.randn(1, 6, 16)
    v = layer.v_proj(x)
    q = layer._split(layer.q_proj(x))
    own = layer._split(v) * torch.eye(6)[None, None, :, 2:3]  # only token 2 has a value
    mixed, _ = layer.core(q, q, own, hidden=x)
    assert not mixed[:, :, 2].any()
    assert mixed[:, :, 3].any()
    alone, _ = layer.core(q[:, :, :1], q[:, :, :1], own[:, :, 2:3], hidden=x[:, :1])
    torch.testing.assert_close(alone, own[:, :, 2:3])

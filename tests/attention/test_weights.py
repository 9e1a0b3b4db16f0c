"""Attention weights, read from a mechanism by the rows of an identity."""

import torch

from clusterformer.attention import FullAttention, MultipoleAttention
from clusterformer.attention.weights import attention_weights


def test_weights_of_full_attention_are_its_softmax() -> None:
    """With more keys than a head is wide, and padding."""
    q, k = torch.randn(2, 2, 5, 4), torch.randn(2, 2, 7, 4)
    mask = torch.arange(7) < torch.tensor([[7], [3]])
    found = attention_weights(FullAttention(8, 2), q, k, hidden=q, key_mask=mask)
    logits = (q @ k.transpose(2, 3) / 2).masked_fill(~mask[:, None, None], float("-inf"))
    torch.testing.assert_close(found, logits.softmax(-1))


def test_weights_mix_the_values_to_what_the_mechanism_gives() -> None:
    q, k, v = torch.randn(3, 1, 2, 30, 4).unbind(0)
    core = MultipoleAttention(8, 2, num_clusters=4)
    weights = attention_weights(core, q, k, hidden=q)
    torch.testing.assert_close(weights @ v, core(q, k, v, hidden=q)[0])

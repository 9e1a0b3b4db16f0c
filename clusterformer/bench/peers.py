"""Layers of public packages to compare with; imported when used, never required."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn

from clusterformer.errors import InputError


def _package(module: str, name: str) -> Any:
    try:
        return import_module(module)
    except ImportError:
        raise InputError(f"{name} is not installed: pip install {name}") from None


def reformer_pytorch(d_model: int, num_heads: int, length: int) -> nn.Module:
    """Make the LSH self-attention of reformer-pytorch: one round, buckets of 64."""
    package = _package("reformer_pytorch", "reformer-pytorch")
    return package.LSHSelfAttention(
        d_model, heads=num_heads, bucket_size=64, n_hashes=1, causal=False
    )


def routing_transformer(d_model: int, num_heads: int, length: int) -> nn.Module:
    """Make the self-attention of routing-transformer: half the heads local, windows of 64."""
    package = _package("routing_transformer.routing_transformer", "routing-transformer")
    return _ValuesOnly(
        package.SelfAttention(
            d_model, 1, length, num_heads, local_attn_heads=num_heads // 2, window_size=64,
            local_attn_window_size=64,
        )
    )  # fmt: skip


def _fast_transformers(d_model: int, num_heads: int, attention: Any) -> nn.Module:
    package = _package("fast_transformers.attention.attention_layer", "pytorch-fast-transformers")
    return _Masked(package.AttentionLayer(attention, d_model, num_heads))


def fast_clustered(d_model: int, num_heads: int, length: int) -> nn.Module:
    """Make clustered attention of pytorch-fast-transformers: 100 clusters, 63 bits, 10 steps."""
    package = _package("fast_transformers.attention", "pytorch-fast-transformers")
    return _fast_transformers(d_model, num_heads, package.ClusteredAttention(100, 10, 63))


def fast_improved(d_model: int, num_heads: int, length: int) -> nn.Module:
    """Make improved clustered attention of pytorch-fast-transformers, with the 32 best keys."""
    package = _package("fast_transformers.attention", "pytorch-fast-transformers")
    return _fast_transformers(
        d_model, num_heads, package.ImprovedClusteredAttention(100, 10, 63, topk=32)
    )


class _ValuesOnly(nn.Module):
    """A layer that also returns an auxiliary loss, reduced to its values."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)[0]


class _Masked(nn.Module):
    """A layer of fast-transformers with the masks it needs: everything visible."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        masking = import_module("fast_transformers.masking")
        batch, length, _ = x.shape
        lengths = masking.LengthMask(torch.full((batch,), length, device=x.device), length)
        every = masking.FullMask(length, device=x.device)
        return self.layer(x, x, x, every, lengths, lengths)


PEERS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "reformer-pytorch": reformer_pytorch,
    "routing-transformer": routing_transformer,
    "fast-transformers-clustered": fast_clustered,
    "fast-transformers-improved": fast_improved,
}
"""Name of a package's layer to its maker from (d_model, num_heads, length)."""

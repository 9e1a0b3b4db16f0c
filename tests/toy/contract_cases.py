"""Random cases of the contract of attention: a mechanism, its options, texts and masks.

A case is a number; from it everything is drawn.
"""

import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from clusterformer.attention import (
    AttentionCore,
    MultiHeadAttention,
    QueryKeyClusteringAttention,
    mechanisms,
)

Form = tuple[type[AttentionCore], Any]
"""A mechanism, and its value of `causal`."""

FORMS: list[Form] = [(cls, causal) for cls in mechanisms() for causal in cls.causal_forms]
CHOICES: dict[str, list[Any]] = {  # options of any mechanism that has them
    "num_clusters": [1, 2, 3, 5, 11],
    "chunk_size": [1, 3, 4, 7, 64],
    "window": [1, 2, 5],
    "top_k": [1, 3, 8],
    "block_size": [2, 5, 7],
    "dense_length": [0, 0, 5, 12],
    "local_window": [1, 3, 4, 64],
    "min_width": [1, 3, 6, 16],
    "look_back": [0, 1, 2],
    "num_hashes": [1, 2, 3, 4],
    "num_buckets": [None, 1, 2, 6],
    "iterations": [0, 1, 3],
    "cap": [1.0, 2.0],
    "exact_clusters": [0, 1, 3],
    "dipole": [True, True, False],
    "two_stage": [True, True, False],
    "damped": [False, True],
    "bits": [4, 31, 63],
    "index_heads": [1, 3],
    "target": ["chosen", "all"],
    "coupling": [True, True, False],
    "temperature": [0.1, 1.0],
    "shift_keys": [False, True],
}


@dataclass
class Case:
    """A layer, and a batch of texts for it.

    Attributes:
        layer: On evaluation, in float32 or float64.
        x: (B, N, E).
        mask: (B, N), True at real tokens.
        memory: (B, M, E), for cross-attention.
        memory_mask: (B, M).
        twice: Apply the layer to its own values too, handing the grouping upwards.
        tolerance: Relative and absolute, of values.
    """

    layer: MultiHeadAttention
    x: Tensor
    mask: Tensor
    memory: Tensor
    memory_mask: Tensor
    twice: bool
    tolerance: float = 1e-4

    def values(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        out = self.layer(x, mask)
        if self.twice:
            out = self.layer(out.values, mask, previous=out.grouping)
        return out.values

    def close(self, found: Tensor, expected: Tensor) -> None:
        torch.testing.assert_close(found, expected, rtol=self.tolerance, atol=self.tolerance)


def draw_case(form: Form, seed: int) -> Case:
    generator = torch.Generator().manual_seed(seed)

    def draw(choices: list[Any]) -> Any:
        return choices[int(torch.randint(len(choices), (), generator=generator))]

    cls, causal = form
    torch.manual_seed(seed)
    heads, width = draw([(1, 8), (2, 16), (4, 32)])
    known = inspect.signature(cls).parameters
    options = {name: draw(values) for name, values in CHOICES.items() if name in known}
    if "similarity" in known and draw([False, False, True]):
        options |= {"similarity": "dot", "coupling": False}
    if "look_ahead" in known and not causal:
        options["look_ahead"] = draw([None, 0, 1, 2])
    if "local_heads" in known:
        most = heads - 1 if cls is QueryKeyClusteringAttention else heads  # some must cluster
        options["local_heads"] = min(draw([0, heads // 2, heads]), most)
    if "key_clusters" in known:
        options["key_clusters"] = draw([1, 2, 3])
    if "num_clusterings" in known and options.get("similarity") != "dot":
        clustered = heads - options["local_heads"]
        options["num_clusterings"] = draw([n for n in (1, 1, 2, 4) if clustered % n == 0])
    if "global_tokens" in known and not causal:
        options["global_tokens"] = draw([0, 0, 1, 2])
    dtype = draw([torch.float64, torch.float32])
    core = cls(width, heads, causal=causal, **options)
    base = draw([None, 100.0])
    layer = MultiHeadAttention(core, base, short_convolution=seed % 3, query_scale=1 + seed % 2 / 2)
    batch, length = draw([1, 2, 4]), draw([1, 2, 3, 5, 8, 13, 24, 37])

    def texts(length: int) -> tuple[Tensor, Tensor]:
        """Draw texts (B, N, E) and their mask (B, N)."""
        x = torch.randn(batch, length, width, generator=generator)
        kind = draw(["different", "different", "repeated", "equal", "zero"])
        if kind == "repeated":
            x = x[:, torch.randint(3, (length,), generator=generator) % length]
        elif kind != "different":
            x = x[:, :1].expand_as(x) * (kind == "equal")
        lengths = torch.randint(1, length + 1, (batch, 1), generator=generator)
        position = torch.arange(length)
        mask = {
            "none": torch.ones(batch, length, dtype=torch.bool),
            "right": position < lengths,
            "left": position >= length - lengths,
            "holes": torch.rand(batch, length, generator=generator) < 0.6,
            "a row of padding": (position < lengths) & (torch.arange(batch)[:, None] > 0),
        }[draw(["none", "right", "left", "holes", "a row of padding"])]
        return x.to(dtype).contiguous(), mask

    hands_up = cls.inherit is not AttentionCore.inherit
    memory_length = draw([1, 2, 7, 20])
    return Case(
        layer.eval().to(dtype), *texts(length), *texts(memory_length), twice=hands_up and seed % 2
    )


def name_of(value: object) -> str:
    """Name a parameter of a test."""
    if isinstance(value, tuple):
        return f"{value[0].__name__}-causal={value[1]}"
    return getattr(value, "__name__", str(value))

"""What is measured, by name: our mechanisms, forms of neural clustering, and public packages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn

from clusterformer import attention
from clusterformer.attention import PAPER_FORM, AttentionCore, MultiHeadAttention
from clusterformer.bench.peers import PEERS
from clusterformer.errors import InputError
from clusterformer.models.transformer import Encoder

FORMS: dict[str, dict[str, Any]] = {"paper": PAPER_FORM, "neural": {}}
"""Forms of NeuralClusteringAttention: the paper's own, and the default."""

CLUSTERS: dict[str, Callable[[int], int]] = {
    "NeuralClusteringAttention": lambda length: max(1, int(length**0.5)),
    "RoutingAttention": lambda length: max(1, length // 64),  # windows of 64, as its package's here
}
"""Clusters at a length, unless the setting says how many; the others have a number of their own."""

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True)
class Setting:
    """Sizes shared by all that one run compares.

    Attributes:
        length: N, tokens a sequence.
        tokens: Tokens a batch.
        d_model: E.
        num_heads: H.
        num_clusters: Of those who have them; None: as `CLUSTERS` says, else their default.
        causal: Whether mechanisms take their strictly causal form.
        output: Whether the layer has its output projection.
        layers: Encoder layers instead of one attention layer; 0 for the latter.
        d_ff: Inner width of those layers.
        dtype: "fp32", "bf16" or "fp16": autocast to it.
        device: "cpu" or "cuda".
    """

    length: int
    tokens: int
    d_model: int
    num_heads: int
    num_clusters: int | None
    causal: bool
    output: bool
    layers: int
    d_ff: int
    dtype: str
    device: str


class Subject:
    """One mechanism at one setting, with its input; two of one setting have equal projections.

    Args:
        name: Class of a mechanism, form of neural clustering, or public package.
        setting: Sizes.
    """

    def __init__(self, name: str, setting: Setting) -> None:
        batch = max(1, setting.tokens // setting.length)
        draw = torch.Generator().manual_seed(0)
        shape = batch, setting.length, setting.d_model
        x, gradient = (torch.randn(shape, generator=draw) for _ in range(2))
        self._x = x.to(setting.device).requires_grad_()
        self._gradient = gradient.to(setting.device)
        self._autocast = torch.autocast(
            setting.device, DTYPES[setting.dtype], enabled=setting.dtype != "fp32"
        )
        torch.manual_seed(0)
        self._layer = _layer(name, setting).to(setting.device)

    def forward(self) -> Tensor:
        """Values (B, N, E), without gradients."""
        with torch.no_grad():
            return self._values()

    def step(self) -> None:
        """Forward and backward."""
        self._layer.zero_grad()
        self._x.grad = None
        values = self._values()
        values.backward(self._gradient.to(values.dtype))

    def _values(self) -> Tensor:
        with self._autocast:
            out = self._layer(self._x)
        if isinstance(out, Tensor):
            return out
        return out.hidden if hasattr(out, "hidden") else out.values


def make_step(name: str, setting: Setting) -> Callable[[], object]:
    """Forward and backward of a subject."""
    return Subject(name, setting).step


def _layer(name: str, setting: Setting) -> nn.Module:
    if name in PEERS:
        if setting.layers or not setting.output or setting.causal:
            raise InputError(f"{name} is measured as a bidirectional layer with its output")
        return PEERS[name](setting.d_model, setting.num_heads, setting.length)
    if setting.layers:
        cores = [_core(name, setting) for _ in range(setting.layers)]
        return Encoder(cores, d_ff=setting.d_ff, dropout=0.0)
    layer = MultiHeadAttention(_core(name, setting))
    draw = torch.Generator().manual_seed(1)
    for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
        if isinstance(projection := getattr(layer, part, None), nn.Linear):
            nn.init.xavier_uniform_(projection.weight, generator=draw)
    if not setting.output:
        layer.out_proj = nn.Identity()  # type: ignore[assignment]
    return layer


def _core(name: str, setting: Setting) -> AttentionCore:
    options = dict(FORMS.get(name, {}))
    name = "NeuralClusteringAttention" if name in FORMS else name
    kinds = {kind.__name__: kind for kind in attention.mechanisms()}
    if name not in kinds:
        raise InputError(f"no mechanism {name!r}; there are {', '.join([*kinds, *FORMS, *PEERS])}")
    if setting.causal:
        options["causal"] = True
    if "num_clusters" in signature(kinds[name]).parameters:
        if setting.num_clusters:
            options["num_clusters"] = setting.num_clusters
        elif name in CLUSTERS:
            options["num_clusters"] = CLUSTERS[name](setting.length)
    try:
        return kinds[name](setting.d_model, setting.num_heads, **options)
    except ValueError as error:
        raise InputError(str(error)) from error

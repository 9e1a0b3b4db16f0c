"""Attention of a decoder to the source.

B batch   M source tokens   N target tokens
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from clusterformer.attention.weights import attention_weights
from clusterformer.models.decoder import DecoderLayer
from clusterformer.models.inputs import TranslationInput
from clusterformer.models.seq2seq import Seq2Seq


@torch.no_grad()
def alignment(network: Seq2Seq, batch: TranslationInput) -> Tensor:
    """Weights (B, N, M) by which the decoder's last layer reads the source, mean over heads."""
    inputs: dict[str, Any] = {}

    def record(core: nn.Module, args: tuple[Tensor, ...], options: dict[str, Any]) -> None:
        inputs.update(args=args, options=options)

    layer = network.decoder.layers[-1]
    assert isinstance(layer, DecoderLayer)
    assert layer.cross is not None
    core = layer.cross.core
    handle = core.register_forward_pre_hook(record, with_kwargs=True)
    try:
        network(batch)
    finally:
        handle.remove()
    q, k, _ = inputs["args"]
    return attention_weights(core, q, k, **inputs["options"]).mean(1)

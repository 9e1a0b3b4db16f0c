"""Which source tokens a decoder looks at.

B batch   N source tokens   M target tokens
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from clusterformer.models.decoder import DecoderLayer
from clusterformer.models.seq2seq import Pair, Seq2Seq


@torch.no_grad()
def alignment(network: Seq2Seq, batch: Pair) -> Tensor:
    """Weights (B, M, N) by which the decoder's last layer reads the source, mean over heads.

    Every mechanism mixes values linearly, so mixing unit vectors instead shows its weights.
    """
    given: dict[str, Any] = {}

    def keep(core: nn.Module, args: tuple[Tensor, ...], options: dict[str, Any]) -> None:
        given.update(args=args, options=options)

    layer = network.decoder.layers[-1]
    assert isinstance(layer, DecoderLayer)
    assert layer.cross is not None
    core = layer.cross.core
    handle = core.register_forward_pre_hook(keep, with_kwargs=True)
    try:
        network(batch)
    finally:
        handle.remove()
    q, k, _ = given["args"]
    count, width = k.shape[2:]
    units = torch.eye(count, -(-count // width) * width, dtype=k.dtype, device=k.device)
    parts = [
        core(q, k, part.expand_as(k), **given["options"])[0] for part in units.split(width, dim=1)
    ]
    return torch.cat(parts, -1)[..., :count].mean(1)

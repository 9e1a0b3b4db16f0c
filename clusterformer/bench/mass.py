"""Share of a full attention's mass on the keys that other trained models select.

B batch   H heads   N tokens   D head width
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import torch
from torch import Tensor, nn

from clusterformer.attention import AttentionCore, FullAttention
from clusterformer.attention.weights import attention_weights
from clusterformer.bench.report import Row
from clusterformer.errors import InputError
from clusterformer.models.transformer import self_attention
from clusterformer.task import Task


def measure(reference: nn.Module, others: Mapping[str, nn.Module], batch: Any) -> Iterator[Row]:
    """Measure, layer by layer, the mass on the keys that the tokens of each model see.

    Weights are those of the trained reference, as a mean over its heads; the keys are those that a
    head of the other model gives any weight, as it was trained, on the same texts. A selection that
    knows nothing holds about as much mass as its share of the keys.

    Args:
        reference: Network trained with `FullAttention`, in evaluation mode.
        others: Networks of the same task and number of layers, by name.
        batch: Texts of the task, with a `mask` (B, N).

    Yields:
        For each network and layer, from 1: the share `keys` of the keys that there are, and the
        share `mass`, means over heads and real tokens, and the number of these `tokens`.

    Raises:
        InputError: if the reference has another mechanism, or a network other layers or a decoder
            beside its encoder.

    Cost: N / D forward passes of a layer; O(B H N^2) memory.
    """
    if hasattr(batch, "decoder_mask"):
        raise InputError("models must have one stack of layers, got encoder and decoder")
    cores = self_attention(reference)
    if not cores:
        raise InputError("the reference must have FullAttention, got no layers of ours")
    if kinds := sorted({type(c).__name__ for c in cores if not isinstance(c, FullAttention)}):
        raise InputError(f"the reference must have FullAttention, got {', '.join(kinds)}")
    full = [weights.mean(1) for weights in layer_weights(reference, batch)]  # (B, N, N)
    every = [(x > 0).any(1).sum(-1) for x in layer_weights(reference, batch, flat=True)]
    for name, network in others.items():
        if len(self_attention(network)) != len(full):
            found = len(self_attention(network))
            raise InputError(f"{name}: {found} layers, and the reference has {len(full)}")
        for layer, weights in enumerate(layer_weights(network, batch, flat=True)):
            seen = (weights > 0).float().mean(1)
            keys = (seen.sum(-1) / every[layer])[batch.mask].mean()
            mass = (seen * full[layer]).sum(-1)[batch.mask].mean()
            kind = type(self_attention(network)[layer]).__name__
            yield {
                "run": name,
                "layer": layer + 1,
                "mechanism": kind,
                "keys": float(keys),
                "mass": float(mass),
                "tokens": int(batch.mask.sum()),
            }


def mean_over_tokens(batches: Sequence[Sequence[Row]]) -> Iterator[Row]:
    """Yield the rows of `measure` of several batches as those of all their tokens together."""
    for rows in zip(*batches, strict=True):
        tokens = sum(row["tokens"] for row in rows)
        means = {
            name: sum(row[name] * row["tokens"] for row in rows) / tokens
            for name in ("keys", "mass")
        }
        yield {**rows[0], **means, "tokens": tokens}


@torch.no_grad()
def layer_weights(network: nn.Module, batch: Any, *, flat: bool = False) -> Iterator[Tensor]:
    """Find the weights of every layer of self-attention on a batch, (B, H, N, N) each.

    Args:
        network: Network in evaluation mode.
        batch: Texts of its task.
        flat: Whether queries are a thousandth of what they are. The same keys are selected, and
            none that is seen has a weight that vanishes in float32, as under peaked logits.
    """
    cores = self_attention(network)
    inputs: dict[AttentionCore, tuple[tuple[Tensor, ...], dict[str, Any]]] = {}

    def keep(core: nn.Module, heads: tuple[Tensor, ...], rest: dict[str, Any]) -> None:
        assert isinstance(core, AttentionCore)
        inputs[core] = heads, rest

    hooks = [core.register_forward_pre_hook(keep, with_kwargs=True) for core in cores]
    try:
        network(batch)
    finally:
        for hook in hooks:
            hook.remove()
    for core in cores:
        (q, k, _), rest = inputs.pop(core)
        yield attention_weights(core, q * 1e-3 if flat else q, k, **rest).float()


def read_batches(task: Task, number: int) -> list[Any]:
    """Read the first test batches of a task."""
    task.setup("test")
    return list(islice(task.test_dataloader(), number))


def same_texts(ours: Sequence[Any], theirs: Sequence[Any]) -> bool:
    """Tell whether batches, named tuples of tensors and lists, are equal."""
    return len(ours) == len(theirs) and all(
        torch.equal(a, b) if isinstance(a, Tensor) else a == b
        for one, other in zip(ours, theirs, strict=True)
        for a, b in zip(one, other, strict=True)
    )

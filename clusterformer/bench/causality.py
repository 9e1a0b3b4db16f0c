"""Test of every mechanism for whether future tokens affect a token's output."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from clusterformer.attention import AttentionCore, MultiHeadAttention
from clusterformer.attention.base import Causal
from clusterformer.bench.report import Row
from clusterformer.training.causality import loss_on_random_tokens, probe_core

SIGNIFICANT = 5
"""Standard errors that a loss lies below ln V when the model surely reads the future."""


def measure(
    kinds: Mapping[str, type[AttentionCore]],
    *,
    length: int = 256,
    d_model: int = 64,
    num_heads: int = 4,
    steps: int = 300,
) -> Iterator[Row]:
    """Probe each causal form of each mechanism, and train each on random tokens.

    The probe replaces every input after a cut, and counts the outputs before it that move. Random
    tokens cannot be predicted, so a loss below ln V shows a model that reads them.

    A mechanism that gives the first tokens of a text full attention selects from the first token on
    here (`dense_length=0`): full attention does not leak, and would hide what the selection does.

    Args:
        kinds: Classes of mechanisms by name.
        length: N, tokens of a sequence.
        d_model: E.
        num_heads: H.
        steps: Training steps; 0 for the probe alone.

    Yields:
        One row for each causal form: outputs that `moved` among `positions`, tokens `without_key`
        among `tokens`, and `keys_seen`, the share of earlier tokens that a token attends to; one
        with `causal` None for a mechanism that has no causal form.
    """
    for name, kind in kinds.items():
        forms = [form for form in kind.causal_forms if form]
        if not forms:
            yield {"mechanism": name, "causal": None}
        for form in forms:
            make = _maker(kind, form)
            leak = probe_core(make(d_model, num_heads), length)
            row: Row = {"mechanism": name, "causal": form}
            row |= {"moved": leak.changed, "positions": leak.positions}
            row |= _keys(make(d_model, num_heads), length)
            if steps:
                loss, errors = loss_on_random_tokens(make, length=length, steps=steps)
                row |= {"random_tokens_loss": loss, "standard_errors_below": errors}
            yield row


def _maker(kind: type[AttentionCore], causal: Causal) -> Callable[[int, int], AttentionCore]:
    options: dict[str, Any] = {"causal": causal}
    if "dense_length" in inspect.signature(kind).parameters:
        options["dense_length"] = 0
    return lambda d_model, num_heads: kind(d_model, num_heads, **options)


@torch.no_grad()
def _keys(core: AttentionCore, length: int) -> Row:
    """Count the tokens that no key gives a value, and the keys that a token attends to.

    The weights of a token are summed by values of 1. A token without a key in a head has 0 there.
    """
    layer = MultiHeadAttention(core).eval()
    x = torch.randn(4, length, core.d_model, generator=torch.Generator().manual_seed(0))
    q, k = (x @ proj.weight.T for proj in (layer.q_proj, getattr(layer, "k_proj", layer.q_proj)))
    q, k = (heads.unflatten(-1, (core.num_heads, -1)).transpose(1, 2) for heads in (q, k))
    weights, grouping = core(q, k, torch.ones_like(q), hidden=x)
    seen = core.keys_seen(grouping, torch.ones(x.shape[:2], dtype=torch.bool))
    return {
        "without_key": int((weights.abs() < 1e-6).all(-1).any(1).sum()),
        "tokens": x.shape[0] * length,
        "keys_seen": None if seen is None else float(seen.mean()),
    }

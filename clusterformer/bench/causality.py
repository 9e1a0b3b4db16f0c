"""Test of every mechanism for whether future tokens affect a token's output."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial

from clusterformer.attention import AttentionCore
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

    Args:
        kinds: Classes of mechanisms by name.
        length: N, tokens of a sequence.
        d_model: E.
        num_heads: H.
        steps: Training steps; 0 for the probe alone.

    Yields:
        One row for each causal form; one with `causal` None for a mechanism that has none.
    """
    for name, kind in kinds.items():
        forms = [form for form in kind.causal_forms if form]
        if not forms:
            yield {"mechanism": name, "causal": None}
        for form in forms:
            make = partial(kind, causal=form)
            leak = probe_core(make(d_model, num_heads), length)
            row: Row = {"mechanism": name, "causal": form}
            row |= {"moved": leak.changed, "positions": leak.positions}
            if steps:
                loss, errors = loss_on_random_tokens(make, length=length, steps=steps)
                row |= {"random_tokens_loss": loss, "standard_errors_below": errors}
            yield row

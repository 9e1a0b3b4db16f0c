"""Check that a mechanism that is to select keys selected any, over a whole run."""

from __future__ import annotations

import re
from collections.abc import Mapping
from statistics import fmean

from torch import nn

from clusterformer.attention import AttentionCore

WHOLE = 0.99
"""Share of keys seen above which a mechanism selected nothing worth the name."""

ENCODER, DECODER = "", "decoder/"
"""Stacks of layers, as the names of measures begin; a network of one stack has the first."""


def seen_by_stack(measures: Mapping[str, float]) -> dict[str, float]:
    """Find the share of keys that a token saw in each stack, mean over its layers.

    Args:
        measures: Measures of the run; the test's count before those of the validation.
    """
    stage = next((s for s in ("test", "val") if f"{s}/keys_seen" in measures), None)
    if stage is None:
        return {}
    shares: dict[str, list[float]] = {}
    for name, share in measures.items():
        if found := re.fullmatch(rf"{stage}/({DECODER})?layer\d+/keys_seen", name):
            shares.setdefault(found[1] or ENCODER, []).append(share)
    return {stack: fmean(its) for stack, its in shares.items()} or {
        ENCODER: measures[f"{stage}/keys_seen"]
    }


def selected_nothing(network: nn.Module, measures: Mapping[str, float]) -> str | None:
    """Say in a line that every token saw all, where the mechanism is one that selects keys.

    Of a network with an encoder and a decoder, one of them may be enough for that.

    Args:
        network: Network with the layers of attention.
        measures: Measures of the run; the test's count before those of the validation.

    Returns:
        The line; None where tokens did not see all, or it is the mechanism's nature that they do.
    """
    shares = seen_by_stack(measures)
    kinds: dict[str, list[str]] = {}
    for path, module in network.named_modules():
        core, names = getattr(module, "core", None), path.split(".")
        if not isinstance(core, AttentionCore) or core.sees_all or names[-1] == "cross":
            continue
        stack = DECODER if DECODER in shares and "decoder" in names else ENCODER
        if shares.get(stack, 0.0) > WHOLE:
            kinds.setdefault(stack, []).append(type(core).__name__)
    if not kinds:
        return None
    names = " and ".join(dict.fromkeys(name for found in kinds.values() for name in found))
    seen = f"saw {100 * fmean(shares[stack] for stack in kinds):.3g} % of its text"
    if len(kinds) < len(shares):
        return f"every token of the {name_stack(*kinds)} {seen}: there {names} selected nothing"
    return (
        f"every token {seen}: at these lengths {names} selected nothing, and the result says "
        "nothing about selection"
    )


def name_stack(stack: str) -> str:
    """Name a stack for people."""
    return "decoder" if stack == DECODER else "encoder"

"""Whether a mechanism that is to select keys selected any, over a whole run."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from clusterformer.models.transformer import self_attention

WHOLE = 0.99
"""Share of keys seen above which a mechanism selected nothing worth the name."""


def selected_nothing(network: nn.Module, measures: Mapping[str, float]) -> str | None:
    """Say in a line that every token saw all, where the mechanism is one that selects keys.

    Args:
        network: Network with the layers of attention.
        measures: Measures of the run; the test's count before those of the validation.

    Returns:
        The line; None where tokens did not see all, or it is the mechanism's nature that they do.
    """
    cores = self_attention(network)
    seen = [measures[name] for name in ("test/keys_seen", "val/keys_seen") if name in measures]
    if not seen or seen[0] <= WHOLE or all(core.sees_all for core in cores):
        return None
    kinds = dict.fromkeys(type(core).__name__ for core in cores if not core.sees_all)
    return (
        f"every token saw {100 * seen[0]:.3g} % of its text: at these lengths "
        f"{' and '.join(kinds)} selected nothing, and the result says nothing about selection"
    )

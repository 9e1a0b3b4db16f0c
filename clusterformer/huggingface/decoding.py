"""Cached decoding: the cache of a mechanism, held beside transformers' KV cache.

B batch   Z rows of a group   H heads   G heads of keys and values   N queries   M keys
D head width   E model width

Rows of a batch that have the same number of real tokens form a group, whose cache has no padding.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from clusterformer.attention import AttentionCore, Cache, Grouping
from clusterformer.kernels.rows import pick_tokens

Group = tuple[Tensor, Cache]
"""Rows of the batch, (Z,), and the cache of the mechanism for them."""


def filled_layer(past: Any, keys: Tensor, module: Any) -> Any:
    """Find the layer of transformers' KV cache that gave these keys: a module of HRM fills several.

    A layer with a window gives more keys than it keeps; there it is the module's own.

    Args:
        past: The KV cache.
        keys: What it gave, (B, G, M, D).
        module: Attention module of transformers.
    """
    for layer in past.layers:
        if getattr(layer, "keys", None) is keys:
            return layer
    return past.layers[module.layer_idx]


def attend_with_cache(
    core: AttentionCore,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    hidden: Tensor,
    mask: Tensor | None,
    layer: Any,
    *,
    grouped: bool,
) -> tuple[Tensor, Grouping | None]:
    """Mix values of the tokens that are new, and keep them in the mechanism's own cache.

    The first tokens fill that cache at once where that is all they are for. Where they have
    gradients, padding or a use for their grouping, it is filled by the first step: most such calls
    are followed by none.

    Args:
        core: Strictly causal mechanism.
        q: Queries of the new tokens, (B, H, N, D).
        k, v: All keys and values so far, (B, H, M, D).
        hidden: Input of the layer at the new tokens, (B, N, E).
        mask: (B, M), True at real tokens; None means all real.
        layer: Layer of transformers' KV cache, changed in place: it gets the state.
        grouped: True if the grouping of the first tokens is needed.

    Returns:
        Values (B, H, N, D), and the grouping of the first tokens if it is needed.

    Raises:
        ValueError: if the KV cache is no dynamic one, or this mechanism did not fill it.
    """
    new = q.shape[2]
    state: _State | None = getattr(layer, "clusterformer", None)
    if state is None:
        _hold_state(layer)
        if k.shape[2] != new:
            raise ValueError(
                f"the KV cache holds {k.shape[2] - new} tokens that this mechanism has not seen; "
                "start with an empty cache, without PEFT's prefix tuning"
            )
        layer.clusterformer = state = _State((q, k, v, hidden, mask))
        if mask is None and not grouped and not torch.is_grad_enabled() and _reads_at_once(core):
            return state.read(core), None
        return core(q, k, v, hidden=hidden, query_mask=mask, key_mask=mask)
    real = state.check(mask, new)
    if state.groups is None:
        state.prefill(core)
    return state.step(core, q, k[:, :, -new:], v[:, :, -new:], hidden, real), None


def _reads_at_once(core: AttentionCore) -> bool:
    """Tell whether a mechanism fills its cache in about the time of a forward pass."""
    return core.causal is True and type(core).prefill is not AttentionCore.prefill


class _State:
    """Cache of one layer: what the first call gave, until a step asks for more."""

    def __init__(self, given: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]) -> None:
        self.given: tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None] | None = given
        self.groups: list[Group] | None = None
        *_, hidden, mask = given
        self.real = hidden.new_ones(hidden.shape[:2], dtype=torch.bool) if mask is None else mask
        self.later = 0  # real tokens of every row behind these

    def check(self, mask: Tensor | None, new: int) -> Tensor | None:
        """Refuse a mask by which tokens are padding that follow real ones, or were real.

        Args:
            mask: (B, M), True at real tokens, of the last M tokens; None means all real.
            new: Number of tokens that have not been seen before.

        Returns:
            Which of the new tokens are real, (B, N); None: all of them.

        Raises:
            ValueError: if there are such tokens.
        """
        if mask is None:
            self.later += new
            return None
        earlier, now = mask[:, :-new], mask[:, -new:]
        real = F.pad(self.real, (0, self.later), value=True)
        was = real[:, real.shape[1] - earlier.shape[1] :]
        # a prompt that is read in parts may begin with more padding than its first part has
        begun = real.any(1, keepdim=True) | (now.cumsum(1) > 0)
        if bool((was & ~earlier).any() | (begun & ~now).any()):
            raise ValueError("padding after the first tokens of a cached text is not supported")
        if bool(now.all()):
            self.later += new
            return None
        self.real, self.later = torch.cat([real, now], 1), 0
        return now

    def read(self, core: AttentionCore) -> Tensor:
        """Mix values of the first tokens, none of them padding, and fill the mechanism's cache."""
        assert self.given is not None
        q, k, v, hidden, _ = self.given
        mixed, memory = core.prefill(q, k, v, hidden=hidden, cache=core.cache(q))
        self.given, self.groups = None, [(torch.arange(len(q), device=q.device), memory)]
        return mixed

    def prefill(self, core: AttentionCore) -> None:
        """Fill the mechanism's cache with the first tokens."""
        assert self.given is not None
        q, k, v, hidden, mask = self.given
        if mask is None:
            self.read(core)
            return
        self.given, self.groups = None, []
        lengths = mask.sum(1)
        for length in lengths.unique().tolist():
            rows = (lengths == length).nonzero()[:, 0]
            memory = core.cache(q[rows])
            if length:
                real = mask[rows].nonzero()[:, 1].view(len(rows), length)
                *heads, inner = (pick_tokens(x[rows], real) for x in (q, k, v, hidden))
                _, memory = core.prefill(*heads, hidden=inner, cache=memory)
            self.groups.append((rows, memory))

    def step(
        self,
        core: AttentionCore,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        hidden: Tensor,
        real: Tensor | None,
    ) -> Tensor:
        """Decode the new tokens, one after another; padding among them, if any, gets zeros."""
        assert self.groups is not None
        mixed = torch.zeros_like(q)
        for at in range(q.shape[2]):
            one = slice(at, at + 1)
            if real is not None:
                self._split(real[:, at])
            for number, (rows, memory) in enumerate(self.groups):
                if real is not None and not real[rows[0], at]:
                    continue
                values, memory = core.step(
                    *(x[rows, :, one] for x in (q, k, v)), hidden=hidden[rows, one], cache=memory
                )
                mixed[rows, :, one] = values.to(mixed.dtype)  # under autocast
                self.groups[number] = rows, memory
        return mixed

    def _split(self, real: Tensor) -> None:
        """Part the rows (B,) whose text begins from those that go on with padding."""
        assert self.groups is not None
        self.groups = [
            (rows[part], tuple(x[part] for x in memory))
            for rows, memory in self.groups
            for part in (real[rows], ~real[rows])
            if part.any()
        ]

    def select(self, indices: Tensor) -> None:
        """Keep rows of the batch, in another order, some of them several times."""
        self.real = self.real[indices]
        if self.given is not None:
            *inputs, mask = self.given
            q, k, v, hidden = (x[indices] for x in inputs)
            self.given = q, k, v, hidden, None if mask is None else mask[indices]
        if self.groups is None:
            return
        groups = []
        for rows, memory in self.groups:
            here = indices[:, None] == rows  # (rows now, Z)
            kept = here.any(1).nonzero()[:, 0]
            if len(kept):
                source = here[kept].long().argmax(1)
                groups.append((kept, tuple(x[source] for x in memory)))
        self.groups = groups


def _hold_state(layer: Any) -> None:
    """Let a layer of the KV cache take its state along when rows are moved."""
    from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

    if type(layer) in (DynamicLayer, DynamicSlidingWindowLayer):
        kind: type = type(layer)
        layer.__class__ = _stateful(kind)
    elif not hasattr(layer, "clusterformer"):
        raise ValueError(
            f"a mechanism decodes beside a DynamicCache only, got {type(layer).__name__}"
        )


@cache
def _stateful(kind: Any) -> type:
    """Subclass a layer of a KV cache: it has the state of a mechanism beside it."""

    class Stateful(kind):
        clusterformer: _State | None = None

        def reorder_cache(self, beam_idx: Tensor) -> None:
            super().reorder_cache(beam_idx)
            self._select(beam_idx)

        def batch_select_indices(self, indices: Tensor) -> None:
            super().batch_select_indices(indices)
            self._select(indices)

        def batch_repeat_interleave(self, repeats: int) -> None:
            rows = torch.arange(len(self.keys))
            super().batch_repeat_interleave(repeats)
            self._select(rows.repeat_interleave(repeats))

        def reset(self) -> None:
            super().reset()
            self.clusterformer = None

        def crop(self, tokens_to_remove: int) -> None:
            if tokens_to_remove:
                raise ValueError(
                    "a mechanism's cache cannot forget tokens; assisted decoding is not supported"
                )

        def __reduce__(self) -> tuple[Any, ...]:
            return _empty_layer, (kind,), self.__dict__

        def _select(self, indices: Tensor) -> None:
            if self.clusterformer is not None:
                self.clusterformer.select(indices.to(self.keys.device))

    return Stateful


def _empty_layer(kind: type) -> Any:
    """Make an empty layer for `pickle` and `copy`, which then set its attributes."""
    stateful: Any = _stateful(kind)
    return stateful.__new__(stateful)

"""Transformer decoder over any causal attention mechanism, with or without a memory to read.

B batch   N tokens   M tokens of the memory   R rows: hypotheses, K for each text   E model width
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from clusterformer.attention import AttentionCore, Cache, Grouping, Memory, MultiHeadAttention
from clusterformer.models.transformer import Encoded, EncoderLayer, Norm, let_inherit


class State(NamedTuple):
    """What a decoder keeps from step to step. A step may write into it and uses it up.

    Attributes:
        place: (R,) tokens that each row has read.
        caches: One a layer, R rows.
        memories: One a layer, B rows, each read by R / B hypotheses in turn; empty without memory.
    """

    place: Tensor
    caches: tuple[Cache, ...]
    memories: tuple[Memory, ...] = ()

    def select(self, rows: Tensor, texts: Tensor | None = None) -> State:
        """Copies of some rows, in any order and number.

        Args:
            rows: Which rows of `place` and `caches`.
            texts: Which rows of `memories`; None keeps them all.
        """
        caches = tuple(tuple(t.index_select(0, rows) for t in cache) for cache in self.caches)
        memories = self.memories
        if texts is not None:
            memories = tuple(Memory(*(t.index_select(0, texts) for t in m)) for m in memories)
        return State(self.place.index_select(0, rows), caches, memories)

    def overwrite(self, rows: Tensor, sources: Tensor) -> None:
        """Make `rows` what the rows `sources` were, in place."""
        for tensor in (self.place, *(tensor for cache in self.caches for tensor in cache)):
            tensor.index_copy_(0, rows, tensor.index_select(0, sources))


class DecoderLayer(EncoderLayer):
    """Causal attention, cross-attention if there is a memory, feed-forward part.

    Args:
        core: Causal attention mechanism; gives E.
        cross: Mechanism that reads the memory, or None.
        d_ff: Inner width of the feed-forward part.
        dropout: As in `EncoderLayer`, likewise the following.
        norm: "pre" or "post".
        recompute: Of the self-attention.
        rotary_base: Of the self-attention.
    """

    def __init__(
        self,
        core: AttentionCore,
        cross: AttentionCore | None,
        d_ff: int,
        dropout: float,
        norm: Norm,
        recompute: bool,
        rotary_base: float | None = None,
    ) -> None:
        super().__init__(core, d_ff, dropout, norm, recompute, rotary_base)
        self.cross = MultiHeadAttention(cross) if cross else None
        self.cross_norm = nn.LayerNorm(core.d_model) if cross else None

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        previous: Grouping | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> tuple[Tensor, Grouping | None]:
        values, grouping = self._attend(self._enter(self.attention_norm, x), key_mask, previous)
        x = self._leave(self.attention_norm, x, values)
        if self.cross is not None and self.cross_norm is not None:
            entered = self._enter(self.cross_norm, x)
            values = self.cross(entered, key_mask, memory, memory_mask).values
            x = self._leave(self.cross_norm, x, values)
        return self._feed(x), grouping

    def remember(self, memory: Tensor, memory_mask: Tensor | None) -> Memory:
        """Project the memory for `step`."""
        assert self.cross is not None
        return self.cross.remember(memory, memory_mask)

    def step(self, x: Tensor, cache: Cache, memory: Memory | None) -> tuple[Tensor, Cache]:
        """One token further: x (R, 1, E)."""
        values, cache = self.attention.step(self._enter(self.attention_norm, x), cache)
        x = self._leave(self.attention_norm, x, values)
        if memory is not None and self.cross is not None and self.cross_norm is not None:
            values = self.cross.read(self._enter(self.cross_norm, x), memory)
            x = self._leave(self.cross_norm, x, values)
        return self._feed(x), cache


class Decoder(nn.Module):
    """A stack of causal layers: over whole texts to train, token by token to decode.

    Without `crosses` it reads no memory and is a language model's stack.

    Args:
        cores: One causal mechanism a layer.
        crosses: One mechanism a layer to read the memory with; None for a stack without memory.
        d_ff: Inner width of the feed-forward parts.
        dropout: As in `EncoderLayer`, likewise the following.
        norm: "pre" or "post".
        recompute: Of the self-attention.
        rotary_base: Of the self-attention.

    Raises:
        ValueError: if a mechanism of `cores` is not causal, or one of `crosses` cannot read
            another text token by token.
    """

    def __init__(
        self,
        cores: Sequence[AttentionCore],
        crosses: Sequence[AttentionCore] | None = None,
        *,
        d_ff: int,
        dropout: float = 0.1,
        norm: Norm = "pre",
        recompute: bool = False,
        rotary_base: float | None = None,
    ) -> None:
        super().__init__()
        if norm not in ("pre", "post"):
            raise ValueError(f'norm must be "pre" or "post", got {norm!r}')
        for core in cores:
            if not core.causal:
                raise ValueError(f"a decoder needs causal=True, got {type(core).__name__} without")
        for cross in crosses or ():
            if not cross.cross:
                raise ValueError(f"{type(cross).__name__} has no cross-attention")
            if not cross.reads_alone:
                raise ValueError(
                    f"{type(cross).__name__} groups queries, so a decoder that read its memory by "
                    "it would see later tokens"
                )
        self._inherits = let_inherit(cores)
        self.layers = nn.ModuleList(
            DecoderLayer(core, cross, d_ff, dropout, norm, recompute, rotary_base)
            for core, cross in zip(cores, crosses or repeat(None, len(cores)), strict=True)
        )
        self.norm = nn.LayerNorm(cores[0].d_model) if norm == "pre" else nn.Identity()

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Encoded:
        """Decode whole texts at once.

        Args:
            x: Embedded tokens, (B, N, E).
            key_mask: (B, N), True at real tokens; None means all real.
            memory: (B, M, E), what an encoder gave; needed with cross-attention, else None.
            memory_mask: (B, M), for `memory`.
        """
        self._check(memory)
        groupings: list[Grouping | None] = []
        for layer, inherits in zip(self.layers, self._inherits, strict=True):
            previous = groupings[-1] if inherits else None
            x, grouping = layer(x, key_mask, previous, memory, memory_mask)
            groupings.append(grouping)
        return Encoded(self.norm(x), groupings)

    def cache(
        self, like: Tensor, memory: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> State:
        """The state before the first token; `like` (B, ...) gives batch, dtype and device.

        Args:
            like: Such as the memory.
            memory: (B, M, E), as in `forward`; its keys and values are projected here, once.
            memory_mask: (B, M), for `memory`.
        """
        self._check(memory)
        memories: tuple[Memory, ...] = ()
        if memory is not None:
            memories = tuple(layer.remember(memory, memory_mask) for layer in self._layers)
        place = torch.zeros(like.shape[0], dtype=torch.long, device=like.device)
        return State(place, tuple(layer.attention.cache(like) for layer in self._layers), memories)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """One token further: embedded tokens (R, 1, E) -> their hidden states and the next state.

        The hidden states are those that `forward` on the whole texts gives at these tokens.
        """
        caches = []
        memories = state.memories or repeat(None, len(self.layers))
        for layer, cache, memory in zip(self._layers, state.caches, memories, strict=True):
            x, cache = layer.step(x, cache, memory)
            caches.append(cache)
        return self.norm(x), State(state.place + 1, tuple(caches), state.memories)

    @property
    def _layers(self) -> list[DecoderLayer]:
        return cast("list[DecoderLayer]", list(self.layers))

    def _check(self, memory: Tensor | None) -> None:
        crossing = self._layers[0].cross is not None
        if crossing != (memory is not None):
            raise ValueError(
                "this decoder reads a memory: pass it" if crossing else "no layer reads a memory"
            )

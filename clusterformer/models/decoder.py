"""Transformer decoder over any causal attention mechanism, with or without a memory to read.

B batch   N tokens   M tokens of the memory   E model width

While it decodes, the rows are hypotheses: as many for each text of the batch, one after the other.
"""

from __future__ import annotations

from itertools import repeat
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from clusterformer.attention import AttentionCore, Cache, Grouping, Memory, MultiHeadAttention
from clusterformer.models.config import TransformerConfig
from clusterformer.models.transformer import (
    EncoderLayer,
    StackOutput,
    final_norm,
    inherit_groupings,
    self_attention,
)


class State(NamedTuple):
    """State of a decoder from step to step. A step may write into it and uses it up.

    Attributes:
        position: (rows,) number of tokens that each row has read.
        caches: One a layer, of all rows.
        memories: One a layer, of B texts, each read by rows / B hypotheses; empty without memory.
    """

    position: Tensor
    caches: tuple[Cache, ...]
    memories: tuple[Memory, ...] = ()

    def select(self, rows: Tensor, texts: Tensor | None = None) -> State:
        """Copy some rows, in any order and number.

        Args:
            rows: Indices into `position` and `caches`.
            texts: Indices into `memories`; None keeps them all.
        """
        caches = tuple(tuple(t.index_select(0, rows) for t in cache) for cache in self.caches)
        memories = self.memories
        if texts is not None:
            memories = tuple(Memory(*(t.index_select(0, texts) for t in m)) for m in memories)
        return State(self.position.index_select(0, rows), caches, memories)

    def overwrite(self, rows: Tensor, sources: Tensor) -> None:
        """Copy the rows `sources` into `rows`, in place."""
        for tensor in (self.position, *(tensor for cache in self.caches for tensor in cache)):
            tensor.index_copy_(0, rows, tensor.index_select(0, sources))


class DecoderLayer(EncoderLayer):
    """Causal attention, cross-attention if there is a memory, feed-forward part.

    Args:
        config: Shape of the layer.
        core: Causal attention mechanism.
        cross: Mechanism that reads the memory, or None.
    """

    def __init__(
        self, config: TransformerConfig, core: AttentionCore, cross: AttentionCore | None
    ) -> None:
        super().__init__(config, core)
        self.cross = MultiHeadAttention(cross) if cross else None
        self.cross_norm = nn.LayerNorm(config.d_model) if cross else None

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        previous: Grouping | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> tuple[Tensor, Grouping | None]:
        """Hidden states (B, N, E) -> (B, N, E), and what the mechanism grouped."""
        values, grouping = self._attend(self._input(x, self.attention_norm), key_mask, previous)
        x = self._add(x, values, self.attention_norm)
        if self.cross is not None and self.cross_norm is not None:
            query = self._input(x, self.cross_norm)
            values = self.cross(query, key_mask, memory, memory_mask).values
            x = self._add(x, values, self.cross_norm)
        return self._feed_forward(x), grouping

    def project_memory(self, memory: Tensor, memory_mask: Tensor | None) -> Memory:
        """Keys and values of the memory, for `step`."""
        assert self.cross is not None
        return self.cross.project_memory(memory, memory_mask)

    def step(self, x: Tensor, cache: Cache, memory: Memory | None) -> tuple[Tensor, Cache]:
        """Read one token further: x (rows, 1, E)."""
        values, cache = self.attention.step(self._input(x, self.attention_norm), cache)
        x = self._add(x, values, self.attention_norm)
        if memory is not None and self.cross is not None and self.cross_norm is not None:
            values = self.cross.cross_attend(self._input(x, self.cross_norm), memory)
            x = self._add(x, values, self.cross_norm)
        return self._feed_forward(x), cache

    def prefill(self, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Read the first tokens of a text at once: x (rows, N, E), of a layer without memory."""
        values, cache = self.attention.prefill(self._input(x, self.attention_norm), cache)
        return self._feed_forward(self._add(x, values, self.attention_norm)), cache


class Decoder(nn.Module):
    """A stack of causal layers: over whole texts to train, token by token to decode.

    Args:
        config: Shape of the stack.
        cross: Whether each layer reads a memory; without it this is a language model's stack.

    Raises:
        ValueError: if a mechanism has no causal form, or the one for the memory cannot read
            another text token by token.
    """

    def __init__(self, config: TransformerConfig, *, cross: bool = False) -> None:
        super().__init__()
        # all mechanisms first: the order in which random numbers are drawn is part of a seed
        indices = range(config.num_layers)
        crosses = [config.make_cross_core() for _ in indices] if cross else []
        cores = [config.make_decoder_core(index) for index in indices]
        _check_mechanisms(cores, crosses)
        self._inherits = inherit_groupings(cores)
        self.layers = nn.ModuleList(
            DecoderLayer(config, core, reader)
            for core, reader in zip(cores, crosses or repeat(None, len(cores)), strict=True)
        )
        self.norm = final_norm(config)

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> StackOutput:
        """Decode whole texts at once.

        Args:
            x: Embedded tokens, (B, N, E).
            key_mask: (B, N), True at real tokens; None means all real.
            memory: (B, M, E), the encoder's output; needed with cross-attention, else None.
            memory_mask: (B, M), mask of `memory`.
        """
        self._check_memory(memory)
        groupings: list[Grouping | None] = []
        for layer, inherits in zip(self.layers, self._inherits, strict=True):
            previous = groupings[-1] if inherits else None
            x, grouping = layer(x, key_mask, previous, memory, memory_mask)
            groupings.append(grouping)
        return StackOutput(self.norm(x), groupings, self_attention(self))

    def start(
        self, like: Tensor, memory: Tensor | None = None, memory_mask: Tensor | None = None
    ) -> State:
        """Make the state before the first token.

        Args:
            like: Tensor (B, ...) that gives batch size, dtype and device, such as the memory.
            memory: (B, M, E), as in `forward`; its keys and values are projected here, once.
            memory_mask: (B, M), mask of `memory`.
        """
        self._check_memory(memory)
        memories: tuple[Memory, ...] = ()
        if memory is not None:
            memories = tuple(layer.project_memory(memory, memory_mask) for layer in self._layers)
        position = torch.zeros(like.shape[0], dtype=torch.long, device=like.device)
        caches = tuple(layer.attention.cache(like) for layer in self._layers)
        return State(position, caches, memories)

    def step(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Read one token further: embedded (rows, 1, E) -> hidden states and the next state.

        The hidden states are those that `forward` on the whole texts gives at these tokens.
        """
        caches = []
        memories = state.memories or repeat(None, len(self.layers))
        for layer, cache, memory in zip(self._layers, state.caches, memories, strict=True):
            x, cache = layer.step(x, cache, memory)
            caches.append(cache)
        return self.norm(x), State(state.position + 1, tuple(caches), state.memories)

    def prefill(self, x: Tensor, state: State) -> tuple[Tensor, State]:
        """Read the first tokens of a text at once, without a memory.

        Args:
            x: Embedded tokens, (rows, N, E).
            state: State of `start`.

        Returns:
            Hidden states (rows, N, E) and the state after N tokens: those of N calls of `step`.
        """
        caches = []
        for layer, cache in zip(self._layers, state.caches, strict=True):
            x, cache = layer.prefill(x, cache)
            caches.append(cache)
        return self.norm(x), State(state.position + x.shape[1], tuple(caches))

    @property
    def _layers(self) -> list[DecoderLayer]:
        return cast("list[DecoderLayer]", list(self.layers))

    def _check_memory(self, memory: Tensor | None) -> None:
        crossing = self._layers[0].cross is not None
        if crossing != (memory is not None):
            raise ValueError(
                "this decoder reads a memory: pass it" if crossing else "no layer reads a memory"
            )


def _check_mechanisms(cores: list[AttentionCore], crosses: list[AttentionCore]) -> None:
    for core in cores:
        if not core.causal:
            raise ValueError(f"a decoder needs causal=True, got {type(core).__name__} without")
        if crosses and core.causal is not True:
            raise ValueError(
                "a decoder that reads a memory writes token by token, which needs causal=True, "
                f"got {type(core).__name__}(causal={core.causal!r})"
            )
    for cross in crosses:
        if not cross.cross or cross.causal:
            name = f"{type(cross).__name__}(causal={cross.causal!r})"
            raise ValueError(f"{name} has no cross-attention")
        if not cross.independent_queries:
            raise ValueError(
                f"{type(cross).__name__} groups queries, so a decoder that read its memory by "
                "it would see later tokens"
            )

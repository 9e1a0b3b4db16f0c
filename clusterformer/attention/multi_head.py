"""Multi-head attention: the projections around a mechanism.

B batch   H heads   N queries   M keys   D head width   E model width
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from clusterformer.attention.adapters import warn_of_idle_adapters
from clusterformer.attention.base import AttentionCore, Cache
from clusterformer.attention.grouping import Grouping
from clusterformer.attention.rotary import rotate
from clusterformer.attention.short_convolution import ShortConvolution
from clusterformer.errors import require_positive, require_whole


class Attended(NamedTuple):
    """Attributes: values (B, N, E); grouping, or None if the mechanism groups nothing."""

    values: Tensor
    grouping: Grouping | None


class Memory(NamedTuple):
    """Keys and values of cross-attention, projected once for all steps of decoding.

    Attributes:
        keys, values: (B, H, M, D).
        mask: (B, M), True at real tokens.
    """

    keys: Tensor
    values: Tensor
    mask: Tensor


class MultiHeadAttention(nn.Module):
    """Multi-head attention: the projections around a mechanism.

    Examples:
        >>> core = NeuralClusteringAttention(d_model=256, num_heads=4, num_clusters=64)
        >>> out = MultiHeadAttention(core)(x, key_mask=mask)   # x (B, N, E), mask (B, N)
        >>> out.values                                         # (B, N, E)
        >>> out.grouping.assignment                            # (B, N)

    Args:
        core: Mechanism; it gives the widths.
        rotary_base: Base of rotary positions in self-attention; None for no positions.
        short_convolution: Number of tokens, the token itself and those before it, that a
            convolution mixes before self-attention (`short_convolution`); 0 for none.
        query_scale: Factor on the queries of self-attention, so on q . k. In texts longer than
            those of training log(length) / log(length in training) keeps attention from spreading
            over the further tokens (Chiang and Cholak, 2022). It does nothing where logits are not
            of q . k: in the far heads of `QueryKeyClusteringAttention`, whose `alpha` takes its
            place, and in the coupling of neural clustering.
    """

    def __init__(
        self,
        core: AttentionCore,
        rotary_base: float | None = None,
        short_convolution: int = 0,
        query_scale: float = 1.0,
    ) -> None:
        super().__init__()
        if not isinstance(core, AttentionCore):
            raise ValueError(
                "core must be a mechanism, such as FullAttention(d_model=256, num_heads=4), "
                f"got {core!r:.80}"
            )
        if rotary_base is not None:
            require_positive(rotary_base=rotary_base)
            if core.head_width % 2:
                raise ValueError(f"rotary positions need an even head width, got {core.head_width}")
        require_whole(0, short_convolution=short_convolution)
        require_positive(query_scale=query_scale)
        self.core, self.query_scale = core, query_scale
        self.rotary_base = core.rotary_base = rotary_base
        width = core.d_model
        self.convolution = ShortConvolution(width, short_convolution) if short_convolution else None
        self.q_proj = nn.Linear(width, width)
        if not core.shared_qk:
            self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)
        for projection in self.children():
            if isinstance(projection, nn.Linear):
                nn.init.xavier_uniform_(projection.weight)
                nn.init.zeros_(projection.bias)

    def forward(
        self,
        x: Tensor,
        key_mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
        previous: Grouping | None = None,
    ) -> Attended:
        """Attend within x, or from x to `memory`.

        Args:
            x: Hidden states, (B, N, E); B or N may be 0, and no grouping comes back then.
            key_mask: (B, N) bool, True at real tokens; None means all real. Values at padding, NaN
                included, affect no output.
            memory: Hidden states to attend to instead of x (cross-attention), (B, M, E). Where M is
                0, each token attends to nothing, and no grouping comes back.
            memory_mask: (B, M) bool, for `memory`.
            previous: Grouping of the layer below.

        Raises:
            ValueError: if shapes do not fit, a mask is not boolean, or the mechanism has no
                cross-attention for `memory`.
        """
        if self.training:
            warn_of_idle_adapters(self.core, "core")
        self._check(x, key_mask, "x", "key_mask")
        if key_mask is not None:
            x = x.masked_fill(~key_mask[..., None], 0.0)
        x = _as_autocast(x)
        if memory is None:
            if memory_mask is not None:
                raise ValueError("got memory_mask without memory; pass memory too")
            if self.convolution is not None:
                x = self.convolution(x, key_mask)
            source, source_mask = x, key_mask
        else:
            self._check_cross()
            self._check(memory, memory_mask, "memory", "memory_mask")
            if memory.shape[0] != x.shape[0]:
                raise ValueError(
                    f"memory must have {x.shape[0]} rows like x, got {memory.shape[0]}"
                )
            source, source_mask = memory, memory_mask
            if memory_mask is not None:
                source = memory.masked_fill(~memory_mask[..., None], 0.0)
        if not (x.numel() and source.numel()) and not self.core.shares_sequence:
            return Attended(self.out_proj(torch.zeros_like(x)), None)
        q = self._split(self.q_proj(x))
        k = q if self.core.shared_qk else self._split(self.k_proj(source))
        if self.rotary_base is not None and memory is None:
            positions = self.positions(x, key_mask)
            q, k = (rotate(heads, positions, self.rotary_base) for heads in (q, k))
        mixed, grouping = self.core(
            self._scale(q) if memory is None else q,
            k,
            self._split(self.v_proj(source)),
            hidden=x,
            query_mask=key_mask,
            key_mask=source_mask,
            previous=previous,
        )
        return Attended(self.out_proj(mixed.transpose(1, 2).flatten(2)), grouping)

    def positions(self, x: Tensor, key_mask: Tensor | None) -> Tensor:
        """Find the position of each token of x (B, N, E) among the real ones, for `rotate`."""
        if key_mask is None:
            return torch.arange(x.shape[1], device=x.device)
        return (key_mask.cumsum(1) - 1)[:, None]

    def cache(self, like: Tensor) -> Cache:
        """Make an empty cache for `step`; `like` (B, ...) gives batch size, dtype and device.

        Its first tensor, (B,), counts the tokens that were read; the second, (B, K - 1, E), holds
        the last ones for the convolution of K tokens.
        """
        read = torch.zeros(like.shape[0], dtype=torch.long, device=like.device)
        held = 0 if self.convolution is None else len(self.convolution.weight) - 1
        last = like.new_zeros(like.shape[0], held, self.core.d_model)
        return read, last, *self.core.cache(like)

    def step(self, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Decode one token: x (B, 1, E) -> its values (B, 1, E) and the cache of the next step.

        The values are those of `forward` on the whole text at this token. It writes into `cache`,
        or a larger copy of it: to go on from it in two ways, clone its tensors first.

        Raises:
            ValueError: if x holds another number of tokens than 1, or other rows than the cache.
        """
        self._check(x, None, "x", "key_mask")
        if x.shape[1] != 1:
            raise ValueError(
                f"x must be one token, (batch, 1, {self.core.d_model}), got {tuple(x.shape)}; "
                "prefill reads several"
            )
        return self._decode(self.core.step, x, cache)

    def prefill(self, x: Tensor, cache: Cache) -> tuple[Tensor, Cache]:
        """Read several tokens of a text, x (B, N, E): as N calls of `step` do.

        The first tokens, into an empty cache, are read at once; later ones step by step. It writes
        into `cache`, as `step` does.

        Raises:
            ValueError: if x is no (B, N, E), or has other rows than the cache.
        """
        self._check(x, None, "x", "key_mask")
        if cache[0].any():
            return self._decode(partial(AttentionCore.prefill, self.core), x, cache)
        return self._decode(self.core.prefill, x, cache)

    def _decode(
        self, read: Callable[..., tuple[Tensor, Cache]], x: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        before, last, *own = cache
        if len(before) != len(x):
            raise ValueError(f"x must have {len(before)} rows like the cache, got {len(x)}")
        x = _as_autocast(x)
        if not x.numel():
            return self.out_proj(x), cache
        if self.convolution is not None:
            text = torch.cat([last.to(x.dtype), x], 1)
            last = text[:, x.shape[1] :].clone()  # a view would keep the whole text
            x = self.convolution.mix(text)
        q, v = self._split(self.q_proj(x)), self._split(self.v_proj(x))
        k = q if self.core.shared_qk else self._split(self.k_proj(x))
        if self.rotary_base is not None:
            positions = before[:, None, None] + torch.arange(x.shape[1], device=x.device)
            q, k = (rotate(heads, positions, self.rotary_base) for heads in (q, k))
        mixed, rest = read(self._scale(q), k, v, hidden=x, cache=tuple(own))
        values = self.out_proj(mixed.transpose(1, 2).flatten(2))
        return values, (before + x.shape[1], last, *rest)

    def project_memory(self, memory: Tensor, memory_mask: Tensor | None = None) -> Memory:
        """Project `memory` (B, M, E) once, for many calls of `cross_attend`.

        Raises:
            ValueError: if shapes do not fit, the mask is not boolean, or the mechanism has no
                cross-attention.
        """
        self._check_cross()
        self._check(memory, memory_mask, "memory", "memory_mask")
        if memory_mask is None:
            memory_mask = memory.new_ones(memory.shape[:2], dtype=torch.bool)
        memory = memory.masked_fill(~memory_mask[..., None], 0.0)
        return Memory(
            self._split(self.k_proj(memory)), self._split(self.v_proj(memory)), memory_mask
        )

    def cross_attend(self, x: Tensor, memory: Memory) -> Tensor:
        """Cross-attend from x (B * beams, 1, E) to `memory` (B rows), as `forward` does.

        The hypotheses of a beam are neighbouring rows, and share their sentence's keys and values.

        Raises:
            ValueError: if the rows of x are no multiple of those of `memory`.
        """
        self._check(x, None, "x", "key_mask")
        rows = len(memory.keys)
        if len(x) % rows if rows else len(x):
            raise ValueError(
                f"x must have {rows} rows like memory, or as many for each, got {len(x)}"
            )
        if not (x.numel() and memory.keys.numel()):
            return self.out_proj(torch.zeros_like(_as_autocast(x)))
        together = _as_autocast(x).view(memory.keys.shape[0], -1, x.shape[-1])  # (B, beams, E)
        mixed, _ = self.core(
            self._split(self.q_proj(together)),
            memory.keys,
            memory.values,
            hidden=together,
            key_mask=memory.mask,
        )
        return self.out_proj(mixed.transpose(1, 2).flatten(2)).view_as(x)

    def _check_cross(self) -> None:
        if not self.core.cross or self.core.causal:
            name = f"{type(self.core).__name__}(causal={self.core.causal!r})"
            raise ValueError(f"{name} has no cross-attention")

    def _scale(self, q: Tensor) -> Tensor:
        return q if self.query_scale == 1 else q * self.query_scale

    def _split(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.core.num_heads, -1)).transpose(1, 2)

    def _check(self, x: Tensor, mask: Tensor | None, name: str, mask_name: str) -> None:
        if x.dim() != 3 or x.shape[-1] != self.core.d_model:
            raise ValueError(
                f"{name} must be (batch, length, {self.core.d_model}), got {tuple(x.shape)}"
            )
        if mask is None:
            return
        if not isinstance(mask, Tensor) or mask.dtype is not torch.bool:
            found = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise ValueError(f"{mask_name} must be a bool tensor, True at real tokens; got {found}")
        if mask.shape != x.shape[:2]:
            raise ValueError(
                f"{mask_name} must be {tuple(x.shape[:2])} like {name}, got {tuple(mask.shape)}"
            )


def _as_autocast(x: Tensor) -> Tensor:
    """Round x as autocast does, so once and not in each projection, and for the mechanism too."""
    device = x.device.type
    if x.dtype is torch.float64 or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.get_autocast_dtype(device))

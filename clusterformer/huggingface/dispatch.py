"""From transformers' attention interface to a mechanism, and the mask on the way.

B batch   H heads   G heads of keys and values   N queries   M keys   D head width   E model width
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from threading import get_ident
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from clusterformer.attention import AttentionCore, Grouping
from clusterformer.attention.adapters import warn_of_idle_adapters
from clusterformer.backward_pass import in_backward
from clusterformer.huggingface.decoding import attend_with_cache, filled_layer

if TYPE_CHECKING:
    from clusterformer.sequence_parallel import SequenceGroup

IMPLEMENTATION = "clusterformer"
"""Name of our attention function among those of transformers."""

SLOT = "clusterformer"
"""Name of the `AttachedMechanism` inside an attention module, and in the names of its weights."""


_CACHES = ("cache", "past_key_values", "layer_past")
"""Names of the KV cache among an attention layer's arguments: of transformers since 5.24, of older
ones, and of their GPT-NeoX."""

_OTHER_MASK = (
    "a mask other than of padding cannot be combined with a mechanism; "
    "give one sequence a row, and an attention_mask"
)
_OFFLOADED = (
    " reads its weights where they are, and some are offloaded; give a device_map by which every "
    "layer with a mechanism stays on a device"
)
_LOST_LOSS = (
    " learns from a loss of its own what it chooses, and nothing adds that to the model's; add "
    "clusterformer.losses.mechanism_loss, as the guide to Hugging Face does under `Train it`"
)
_REENTRANT_CHECKPOINTS = (
    " loses the loss by which it learns what to choose under reentrant activation checkpointing; "
    'enable it with gradient_checkpointing_kwargs={"use_reentrant": False}'
)
_NO_WEIGHTS = (
    "a mechanism returns no attention weights, so output_attentions=True gives none; "
    'detach it and ask for "eager" attention to see them'
)
_PADDING_INSIDE = (
    "attention_mask has padding inside a text: with a mechanism attached a sliding window counts "
    "real tokens, in the model's own attention it counts padding too, so its values are others"
)


class AttachedMechanism(nn.Module):
    """A mechanism inside an attention layer of transformers.

    Args:
        core: Mechanism.

    Attributes:
        core: The same.
        records: Called by each forward pass with the mechanism, its grouping and the mask of real
            tokens, (B, N).
        group: Processes that may share a sequence, each with some heads; None: none do.
    """

    def __init__(self, core: AttentionCore) -> None:
        super().__init__()
        self.core = core
        self.records: list[Callable[[AttentionCore, Grouping | None, Tensor], None]] = []
        self.group: SequenceGroup | None = None
        self._given: dict[int, tuple[Tensor, Any]] = {}  # by thread
        self._without_grad = False

    def store_input(self, hidden: Tensor, past: Any) -> None:
        """Keep the input of the layer, which the attention function does not get."""
        self._given[_thread()] = hidden, past

    def pop_input(self) -> tuple[Tensor, Any]:
        """Return what was stored last, and forget it."""
        given = self._given.pop(_thread(), None)
        if given is None:  # compiled, a graph may end between the two
            given = self._given.pop(0, None)
        if given is None:
            raise ValueError("the attention function was called outside of its attention layer")
        return given

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        hidden: Tensor,
        mask: Tensor | None,
        past_layer: Any = None,
    ) -> Tensor:
        """Mix values.

        Args:
            q: Queries, (B, H, N, D).
            k, v: Keys and values, (B, H, M, D).
            hidden: Input of the layer, (B, N, E).
            mask: (B, M), True at real tokens; None means all real.
            past_layer: Layer of transformers' KV cache; None without one.

        Raises:
            ValueError: if weights of the mechanism are offloaded.
        """
        if not q.is_meta and any(weight.is_meta for weight in self.core.parameters()):
            raise ValueError(type(self.core).__name__ + _OFFLOADED)
        if self.training:
            warn_of_idle_adapters(self.core, SLOT)
        if past_layer is None:
            mixed, grouping = self.core(q, k, v, hidden=hidden, query_mask=mask, key_mask=mask)
        else:
            grouped = bool(self.records)
            mixed, grouping = attend_with_cache(
                self.core, q, k, v, hidden, mask, past_layer, grouped=grouped
            )
        if not torch.compiler.is_compiling():
            self._check_loss(grouping)
        for record in tuple(self.records):  # another thread may end one meanwhile
            every = hidden.new_ones(hidden.shape[:2], dtype=torch.bool)
            record(self.core, grouping, every if mask is None else mask[:, -every.shape[1] :])
        return mixed

    def _check_loss(self, grouping: Grouping | None) -> None:
        """Warn if the mechanism's own loss goes nowhere."""
        again = in_backward()
        if not again:
            self._without_grad = not torch.is_grad_enabled()
        if grouping is None or grouping.loss is None:
            return
        if again and self._without_grad:
            _warn_once(type(self.core).__name__ + _REENTRANT_CHECKPOINTS)
        elif not again and not self.records:
            _warn_once(type(self.core).__name__ + _LOST_LOSS)  # as under transformers' Trainer


def _thread() -> int:
    """Number the thread that runs; a compiled graph keeps nothing, so that one number will do."""
    return 0 if torch.compiler.is_compiling() else get_ident()


@cache
def _warn_once(message: str) -> None:
    warnings.warn(message, stacklevel=2)


def keep_input(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Forward pre-hook of an attention layer."""
    given = kwargs.get("hidden_states")
    hidden = next(x for x in (given, *args, *kwargs.values()) if isinstance(x, Tensor))
    past = next((kwargs[name] for name in _CACHES if kwargs.get(name) is not None), None)
    getattr(module, SLOT).store_input(hidden, past)


def attend(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend from (B, H, N, D) to (B, N, H, D), in the signature of the interface.

    Dropout of attention weights is not applied: mechanisms have none.
    """
    slot: AttachedMechanism | None = getattr(module, SLOT, None)
    if slot is None:
        raise ValueError(
            f"{type(module).__name__} has no mechanism; use clusterformer.huggingface.attach or "
            "load, and give each model a config of its own"
        )
    hidden, past = slot.pop_input()
    if kwargs.get("output_attentions") and not torch.compiler.is_compiling():
        _warn_once(_NO_WEIGHTS)
    core, group, heads = slot.core, slot.group, slot.core.num_heads
    _refuse_options(module, core, attention_mask, kwargs)
    if past is None and key.shape[2] != query.shape[2]:
        raise ValueError(
            f"{type(module).__name__} has {key.shape[2]} keys for {query.shape[2]} queries, and no "
            "cache that a mechanism could read; set use_cache=False"
        )
    if group is not None and query.shape[1] < heads:
        if past is not None:
            raise ValueError("a shared sequence has no KV cache; set use_cache=False")
        hidden = _collect_input(hidden, group, kwargs.get("position_ids"))
        heads //= group.size
    if query.shape[1:4:2] != (heads, core.head_width):
        others = query.shape[2] > hidden.shape[1]  # tokens of other processes, as Ulysses brings
        hint = "; is huggingface.share_heads missing?" if others else ""
        raise ValueError(
            f"{type(module).__name__} has {query.shape[1]} heads of width {query.shape[3]}, "
            f"the mechanism {heads} of {core.head_width}{hint}"
        )
    if scaling is not None and scaling != core.head_width**-0.5:
        query = query * (scaling * core.head_width**0.5)
    past_layer = None if past is None else filled_layer(past, key, module)
    if key.shape[1] != query.shape[1]:
        groups = query.shape[1] // key.shape[1]
        key, value = (x.repeat_interleave(groups, 1) for x in (key, value))
    mixed = slot(query, key, value, hidden, attention_mask, past_layer)
    return mixed.transpose(1, 2).contiguous(), None


def _refuse_options(
    module: nn.Module, core: AttentionCore, attention_mask: Tensor | None, kwargs: dict[str, Any]
) -> None:
    """Refuse what a model of transformers may ask of its attention, and no mechanism has."""
    for name in ("softcap", "s_aux", "position_bias"):
        if kwargs.get(name) is not None:
            raise ValueError(f"{type(module).__name__} passes {name}, which no mechanism has")
    if kwargs.get("cu_seq_lens_q") is not None:  # the flash attention of transformers reads it
        raise ValueError(_OTHER_MASK)
    if attention_mask is not None and attention_mask.dim() != 2:
        raise ValueError(
            f"attention_mask must be (batch, tokens), got shape {tuple(attention_mask.shape)}"
        )
    if kwargs.get("is_causal") not in (None, bool(core.causal)):
        raise ValueError(
            f"{type(module).__name__} is called with is_causal={kwargs['is_causal']}, its "
            f"mechanism has causal={core.causal}"
        )


def _collect_input(hidden: Tensor, group: SequenceGroup, position_ids: Tensor | None) -> Tensor:
    """Collect the input of a layer, (B, n, E), from all P processes, (B, P n, E).

    Raises:
        ValueError: if positions say that rows hold several texts.
    """
    if position_ids is not None and bool((position_ids.diff(dim=-1) != 1).any()):
        raise ValueError(
            "shared heads need one text a row, got position_ids that begin again within a row"
        )
    return torch.cat(list(group.collect(hidden)), 1)


def padding_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    allow_is_causal_skip: bool = True,
    mask_function: Callable[..., Any] | None = None,
    device: torch.device | None = None,
    local_size: int | None = None,
    **kwargs: Any,
) -> Tensor | None:
    """Make the mask that reaches `attend`: (B, M), or None if every token is real.

    In the signature of `AttentionMaskInterface`. Causality is the mechanism's own matter.
    """
    causal = "allow_is_bidirectional_skip" not in kwargs  # which transformers gives to others
    may_be_packed = causal and not allow_is_causal_skip and q_length > 1
    if use_vmap or may_be_packed:
        if use_vmap or mask_function is None or not torch.compiler.is_compiling():
            raise ValueError(_OTHER_MASK)
        _assert_causal(mask_function, batch_size, q_length, device)
    if attention_mask is None:
        return None
    mask = attention_mask[:, -kv_length:]
    if torch.compiler.is_compiling():
        return mask
    if bool(mask.all()):
        return None
    if local_size is not None and q_length > 1:  # one token more can make no gap
        begins = (mask[:, 1:] & ~mask[:, :-1]).sum(1) + mask[:, 0]
        if bool((begins > 1).any()):
            _warn_once(_PADDING_INSIDE)
    return mask


def _assert_causal(
    mask_function: Callable[..., Any], batch_size: int, length: int, device: torch.device | None
) -> None:
    """Let a compiled graph fail in its run where tokens are not behind one another in one text.

    Compiled, transformers takes every batch without a mask for a packed one.
    """
    rows = torch.arange(batch_size, device=device)[:, None]
    tokens = torch.arange(length, device=device)
    back = mask_function(rows, 0, tokens[1:], tokens[:-1])
    ahead = mask_function(rows, 0, tokens[:-1], tokens[1:])
    torch._assert_async((back & ~ahead).all(), _OTHER_MASK)


def register() -> None:
    """Register our functions with transformers; again does no harm."""
    from transformers import AttentionInterface, AttentionMaskInterface

    attention: Callable[..., Any] = attend
    AttentionInterface.register(IMPLEMENTATION, attention)
    AttentionMaskInterface.register(IMPLEMENTATION, padding_mask)


def slots(model: nn.Module) -> list[AttachedMechanism]:
    """List the mechanisms inside a model, from the first layer to the last."""
    return [part for part in model.modules() if isinstance(part, AttachedMechanism)]

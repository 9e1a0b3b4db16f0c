"""The base class of every attention mechanism.

B batch   H heads   N queries   M keys   D head width   E model width
"""

from abc import ABC, abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from clusterformer.attention.grouping import Grouping
from clusterformer.attention.visibility import share_of_tokens
from clusterformer.errors import require_whole

Causal = bool | Literal["masked"]
Cache = tuple[Tensor, ...]
"""State of a mechanism while it decodes; every tensor has the batch first."""


def without_training(linear: nn.Linear) -> nn.Linear:
    """Make the weight of a map a buffer.

    It is saved under the same name, and nothing trains it: that a parameter takes no gradient is
    neither saved with a model of transformers nor kept by PEFT.
    """
    weight = linear.weight.detach()
    del linear.weight
    linear.weight = nn.Buffer(weight)
    return linear


class AttentionCore(nn.Module, ABC):
    """An attention mechanism: it mixes values and has no projections of queries, keys and values.

    A subclass in a new file of this folder is a mechanism under its class name, in Python, in
    configurations and on the command line.

    The contract (tested over all subclasses): any length; padding changes nothing; `causal=True`
    is truly causal; every real token gets a value; the same bits twice; finite gradients.

    Safe inputs are finite, up to a magnitude of 1e4: they give finite values and gradients in
    float32 and under bfloat16 autocast. Finite is not exact: on CPU the backward pass of PyTorch's
    fused attention (2.13) computes the weights again, and from logits of some 1e7 on its rounding
    errors are as large as the gradients; near 1e9 these may overflow. Float16 ends at 65,504, so
    products of large inputs overflow in it. A NaN or infinity in one token may reach every token of
    its own sequence, also those before it where attention is causal (a weight of 0 times NaN is
    NaN); it never reaches another sequence, and in padding it reaches nothing.

    Args:
        d_model: Width of the hidden states (E).
        num_heads: Number of heads (H); must divide d_model.
        causal: Causal form: False; True, strictly causal; "masked", the paper's form where it
            differs (it leaks: see the docstring of the mechanism).

    Attributes:
        cross: True if queries and keys may come from different sequences.
        shared_qk: True if queries are keys too: there is then no projection of keys, and `forward`
            and `step` get the queries for both.
        independent_queries: True if, in cross-attention, the output of a query depends on no other
            query; a decoder may attend to its memory only through such a mechanism.
        causal_forms: Values of `causal` that the mechanism supports.
        sees_all: True if every key takes part in every output: the mechanism selects no keys.
        shares_sequence: True if other processes hold the rest of each sequence; this one then takes
            part even if it holds no token.
        rotary_base: Base of the positions by which the layer rotates queries and keys; None if it
            rotates none.
    """

    cross: ClassVar[bool] = False
    independent_queries: ClassVar[bool] = False
    shared_qk: ClassVar[bool] = False
    causal_forms: ClassVar[tuple[Causal, ...]] = (False,)
    sees_all: ClassVar[bool] = False
    shares_sequence: ClassVar[bool] = False

    def __init__(self, d_model: int, num_heads: int, *, causal: Causal = False) -> None:
        super().__init__()
        require_whole(1, d_model=d_model, num_heads=num_heads)
        if d_model % num_heads:
            raise ValueError(
                f"num_heads must divide d_model, got num_heads = {num_heads} with "
                f"d_model = {d_model}"
            )
        # 1 and NumPy's True equal True, and are not it: `causal is True` decides what is strict
        if not isinstance(causal, bool | str) or causal not in self.causal_forms:
            forms = ", ".join(map(repr, self.causal_forms))
            raise ValueError(
                f"{type(self).__name__} has no causal={causal!r}; it has causal={forms}"
            )
        self.d_model = d_model
        self.num_heads = num_heads
        self.head_width = d_model // num_heads
        self.causal = causal
        self.rotary_base: float | None = None

    @abstractmethod
    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        hidden: Tensor,
        query_mask: Tensor | None = None,
        key_mask: Tensor | None = None,
        previous: Grouping | None = None,
    ) -> tuple[Tensor, Grouping | None]:
        """Mix values.

        Args:
            q: Queries, (B, H, N, D).
            k, v: Keys and values, (B, H, M, D).
            hidden: Hidden states from which the queries were projected, (B, N, E).
            query_mask: (B, N), True at real tokens; None means all real.
            key_mask: (B, M) likewise; in self-attention the same mask.
            previous: Grouping of the layer below.

        Returns:
            Mixed values (B, H, N, D), and the grouping or None.
        """

    def keys_seen(self, grouping: Grouping | None, mask: Tensor) -> Tensor | None:
        """Compute the share of its sequence that each token attends to; see `visibility`.

        Of self-attention. A mechanism that selects keys gives their counts with its grouping, or
        overrides it.

        Args:
            grouping: Result of `forward`.
            mask: (B, N), True at real tokens.

        Returns:
            (B, N), the mean over heads, 0 at padding; None if the mechanism does not say.
        """
        if self.sees_all:
            return mask.float()
        if grouping is None or grouping.counts is None:
            return None
        return share_of_tokens(grouping.counts, mask, bool(self.causal))

    def can_inherit(self, below: "AttentionCore") -> bool:
        """Tell whether the grouping of the layer below can be `previous` for this mechanism."""
        return type(below) is type(self)

    def inherit(self) -> None:
        """Drop weights that `previous` replaces; called where it can inherit them."""

    def read_width(self, width: int) -> None:
        """Make a new mechanism take hidden states of another width than d_model."""
        for name, part in list(self.named_children()):
            if isinstance(part, nn.Linear) and part.in_features == self.d_model != width:
                wide = nn.Linear(width, part.out_features, part.bias is not None)
                learnt = isinstance(part.weight, nn.Parameter)
                self.add_module(name, wide if learnt else without_training(wide))

    def cache(self, like: Tensor) -> Cache:
        """Make an empty cache for decoding; `like` (B, ...) gives batch size, dtype and device."""
        raise ValueError(f"{type(self).__name__}(causal={self.causal!r}) cannot decode stepwise")

    def step(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Decode one token: q, k, v (B, H, 1, D), hidden (B, 1, E) -> values and the new cache."""
        raise ValueError(f"{type(self).__name__}(causal={self.causal!r}) cannot decode stepwise")

    def prefill(
        self, q: Tensor, k: Tensor, v: Tensor, *, hidden: Tensor, cache: Cache
    ) -> tuple[Tensor, Cache]:
        """Read the first tokens of a text at once, into an empty cache.

        Equal to a `step` for each token, which is what this does; a mechanism that can fill its
        cache from one `forward` overrides it.

        Args:
            q, k, v: (B, H, N, D), N at least 1.
            hidden: (B, N, E).
            cache: Empty cache, as `cache()` makes it.

        Returns:
            Values (B, H, N, D), and the cache after N tokens.
        """
        mixed = []
        for at in range(q.shape[2]):
            one = slice(at, at + 1)
            heads = (x[:, :, one] for x in (q, k, v))
            values, cache = self.step(*heads, hidden=hidden[:, one], cache=cache)
            mixed.append(values)
        return torch.cat(mixed, 2), cache

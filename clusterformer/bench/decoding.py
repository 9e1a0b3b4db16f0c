"""Time and memory of one further token, against the length of the text before it.

B batch   H heads   N tokens   E model width
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence

import torch

from clusterformer.attention import AttentionCore, MultiHeadAttention
from clusterformer.attention.base import Cache
from clusterformer.bench.report import Row
from clusterformer.bench.timing import time_in_turns


def measure(
    kinds: Mapping[str, type[AttentionCore]],
    lengths: Sequence[int],
    *,
    batch: int = 1,
    d_model: int = 256,
    num_heads: int = 4,
    repeats: int = 32,
) -> Iterator[Row]:
    """Measure cached steps of one layer of each mechanism that decodes.

    A layer with random weights reads random tokens of the given length, and then one token at a
    time; all mechanisms take turns. A ring cache that is not yet full grows with the text.

    Args:
        kinds: Classes of mechanisms by name; those without a strictly causal form are left out.
        lengths: N, tokens before the first step that is measured.
        batch: B.
        d_model: E.
        num_heads: H.
        repeats: Steps that are measured; the median counts.

    Yields:
        One row for each mechanism and length: `step_ms`, `cache_mib` behind the last step, and
        `keys_seen`, the share of the text that the first further token attends to, None where a
        mechanism does not say.
    """
    kinds = {name: kind for name, kind in kinds.items() if True in kind.causal_forms}
    for length in lengths:
        subjects = {
            name: _Text(kind(d_model, num_heads, causal=True), length, batch)
            for name, kind in kinds.items()
        }
        steps: dict[str, Callable[[], object]] = {name: s.step for name, s in subjects.items()}
        samples = time_in_turns(steps, repeats, "cpu")
        for name, subject in subjects.items():
            yield {
                "mechanism": name,
                "length": length,
                "batch": batch,
                "step_ms": statistics.median(samples[name]),
                "samples_ms": samples[name],
                "cache_mib": subject.cache_bytes / 2**20,
                "keys_seen": subject.keys_seen(),
            }


class _Text:
    """A text that a layer has read, and goes on reading.

    Args:
        core: Mechanism in its causal form.
        length: N, tokens read.
        batch: B.
    """

    def __init__(self, core: AttentionCore, length: int, batch: int) -> None:
        torch.manual_seed(0)
        self._layer = MultiHeadAttention(core).eval()
        generator = torch.Generator().manual_seed(1)
        self._read = torch.randn(batch, length, core.d_model, generator=generator)
        self._next = torch.randn(batch, 1, core.d_model, generator=generator)
        with torch.no_grad():
            _, self._cache = self._layer.prefill(self._read, self._layer.cache(self._read))

    def step(self) -> Cache:
        """Read one more token."""
        with torch.no_grad():
            _, self._cache = self._layer.step(self._next, self._cache)
        return self._cache

    @property
    def cache_bytes(self) -> int:
        """Size of the cache, room for further tokens included."""
        return sum(x.numel() * x.element_size() for x in self._cache)

    @torch.no_grad()
    def keys_seen(self) -> float | None:
        """Measure the share of the text, itself included, that the first further token sees."""
        text = torch.cat([self._read, self._next], 1)
        grouping = self._layer(text).grouping
        seen = self._layer.core.keys_seen(grouping, torch.ones(text.shape[:2], dtype=torch.bool))
        return None if seen is None else float(seen[:, -1].mean())

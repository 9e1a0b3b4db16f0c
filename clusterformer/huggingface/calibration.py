"""A start near the attention that is replaced: clusters of tokens that attend to each other.

B batch   H heads   N tokens   D head width   E model width   F width of the clustering space
C clusters   G clusterings
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.attention import FullAttention, NeuralClusteringAttention
from clusterformer.attention.text_ends import at_ends
from clusterformer.attention.weights import attention_weights
from clusterformer.clustering.kmeans import cluster_means, nearest
from clusterformer.errors import InputError
from clusterformer.huggingface.attaching import require_model
from clusterformer.huggingface.dispatch import slots
from clusterformer.huggingface.recording import evaluating, without_cache
from clusterformer.huggingface.texts import to_batches

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Calibrated(NamedTuple):
    """Attention of one layer that its tokens see, in the last batch.

    Attributes:
        keys_seen: Share of the real tokens of a text that a token attends to, mean; of those up
            to itself in a decoder.
        mass_before: Share of the weights of full attention on those keys, before.
        mass_after: The same after.
        length: Number of tokens of a text of that batch, mean: short texts are seen whole.
    """

    keys_seen: float
    mass_before: float
    mass_after: float
    length: float


class _Batch(NamedTuple):
    """Inputs of one layer: hidden (B, N, E); q, k (B, H, N, D); mask (B, N)."""

    hidden: Tensor
    q: Tensor
    k: Tensor
    mask: Tensor


def calibrate(
    model: PreTrainedModel,
    texts: Sequence[str] | Iterable[dict[str, Tensor]],
    tokenizer: Any = None,
    *,
    max_length: int = 256,
    batch_size: int = 8,
    steps: int = 4,
    alpha: float = 0.1,
    seed: int = 0,
) -> list[Calibrated]:
    """Fit the clusters of an attached `NeuralClusteringAttention` to the model's own attention.

    One pass over the texts under full attention. In each layer W is fitted so that
    softmax(z z^T / temperature), z the unit vectors W x, is near the weights of full attention
    (Kullback-Leibler divergence from their mean over the heads; over those that share a clustering,
    where there are several). The centroids are means of z by k-means, in an order in which
    neighbours are alike. The model's own weights do not change.

    Args:
        model: Model with the mechanism attached, also one that PEFT has wrapped.
        texts: A few hundred texts, or batches as the model takes them. Of long texts and large
            batches a part is learnt from, to bound memory.
        tokenizer: Tokenizer of the model, for texts.
        max_length: Maximum number of tokens of a text, for texts.
        batch_size: Number of texts of a batch, for texts.
        steps: Number of steps of the fit of W on each batch.
        alpha: Strength of the coupling to start from: small, for it is no part of what is
            replaced. Training moves it.
        seed: Seed of the choice of tokens for the centroids.

    Returns:
        For each layer the share of attention that its tokens see, on the last batch, which W was
        not fitted to if there are several.

    Raises:
        ValueError: if no `NeuralClusteringAttention` is attached, or there is no text.
    """
    require_model(model, None)
    with (
        evaluating(model),
        calibrating(model, steps=steps, alpha=alpha, seed=seed) as report,
        torch.no_grad(),
    ):
        for batch in to_batches(model, texts, tokenizer, max_length, batch_size):
            model(**batch, **without_cache(model))
    return report


@contextmanager
def calibrating(
    model: nn.Module, *, steps: int = 4, alpha: float | None = 0.1, seed: int = 0
) -> Iterator[list[Calibrated]]:
    """Run full attention in place of each mechanism, and fit the clusters to what passes through.

    Args:
        model: Model with the mechanism attached, or a network around it, on evaluation.
        steps: Number of steps of the fit of W on each batch.
        alpha: Strength of the coupling to start from; None: as it is.
        seed: Seed of the choice of tokens for the centroids.

    Yields:
        A list that holds, once this has ended, for each layer the share of attention that its
        tokens see.

    Raises:
        ValueError: if no `NeuralClusteringAttention` is attached, or nothing passed through.
    """
    attached = [s for s in slots(model) if isinstance(s.core, NeuralClusteringAttention)]
    if not attached:
        others = ", ".join(sorted({type(slot.core).__name__ for slot in slots(model)}))
        windows = "; layers with a sliding window keep it" if "LocalAttention" in others else ""
        raise InputError(
            "calibrate needs layers with NeuralClusteringAttention, "
            f"got {others or 'a model without a mechanism'}{windows}"
        )
    cores: list[Any] = [slot.core for slot in attached]
    if other := next((c.similarity for c in cores if c.similarity != "cosine"), None):
        raise InputError(f'calibrate needs similarity="cosine", got {other!r}')
    fits = [_Fit(core, steps, seed) for core in cores]
    report: list[Calibrated] = []
    for slot, fit in zip(attached, fits, strict=True):
        slot.core = fit
    try:
        yield report
    finally:
        for slot, core in zip(attached, cores, strict=True):
            slot.core = core
    used = [fit for fit in fits if fit.last is not None]  # PEFT keeps an unused original
    if not used:
        raise InputError("calibrate needs at least one text, got none")
    report += [fit.finish(alpha) for fit in used]


class _Fit(FullAttention):
    """Full attention that fits a clustering to its own weights.

    It learns from each batch when the next one comes, so the last one is not learnt from unless it
    is the only one.
    """

    def __init__(self, core: NeuralClusteringAttention, steps: int, seed: int) -> None:
        super().__init__(core.d_model, core.num_heads, causal=core.causal)
        self.fitted = [core]  # in a list: it is no part of this module
        self.steps = steps
        self.generator = torch.Generator().manual_seed(seed)
        self.last: _Batch | None = None
        self.tokens: list[Tensor] = []
        self.space: Tensor | None = None
        self.optimizer: torch.optim.Adam | None = None

    def forward(self, q: Tensor, k: Tensor, v: Tensor, **given: Any) -> tuple[Tensor, None]:
        if self.last is not None:
            with torch.autocast(q.device.type, enabled=False):
                self._learn(self.last)
        hidden, mask = given["hidden"].float(), given.get("key_mask")
        if mask is None:
            mask = hidden.new_ones(hidden.shape[:2], dtype=torch.bool)
        length = min(hidden.shape[1], _LONGEST)
        rows = max(1, _PAIRS // length**2)
        padded_left = mask[:rows, -length:].sum() > mask[:rows, :length].sum()
        part = slice(-length, None) if padded_left else slice(length)
        hidden, mask = hidden[:rows, part], mask[:rows, part]
        query, key = (x[:rows, :, part].float() for x in (q, k))
        self.last = _Batch(hidden, query, key, mask)
        return super().forward(q, k, v, **given)

    def finish(self, alpha: float | None) -> Calibrated:
        """Write W, the centroids and alpha into the mechanism."""
        assert self.last is not None
        with torch.no_grad(), torch.autocast(self.last.hidden.device.type, enabled=False):
            return self._finish(self.last, alpha)

    def _finish(self, last: _Batch, alpha: float | None) -> Calibrated:
        core: Any = self.fitted[0]
        if self.space is None:
            self._learn(last)
        seen, before = attention_seen(core, last)
        core.space.weight.data.copy_(self.space)
        core.own_centroids().data.copy_(self._fit_centroids(core).squeeze(0))
        if core.means is not None:
            core.means.settle()
        if core.log_alpha is not None and alpha is not None:
            core.log_alpha.data.fill_(alpha).log_()
        seen, after = attention_seen(core, last)
        return Calibrated(seen, before, after, float(last.mask.sum(1).float().mean()))

    @torch.enable_grad()
    def _learn(self, batch: _Batch) -> None:
        core: Any = self.fitted[0]
        tokens = batch.hidden[batch.mask]
        kept = torch.randperm(len(tokens), generator=self.generator)[:_TOKENS_OF_A_BATCH]
        self.tokens.append(tokens[kept.to(tokens.device)])
        if self.space is None:
            width = core.space.out_features // core.num_clusterings
            start = _principal_directions(tokens, width).repeat(core.num_clusterings, 1)
            self.space = nn.Parameter(start)
            size = float(self.space.detach().abs().mean())
            self.optimizer = torch.optim.Adam([self.space], lr=0.05 * size)
        assert self.optimizer is not None
        allowed, weights = _to_learn(core, batch)
        for _ in range(self.steps):
            z = _points(batch.hidden, self.space, core.num_clusterings)
            logits = z @ z.mT / core.temperature
            found = logits.masked_fill(~allowed, float("-inf")).log_softmax(-1)
            loss = -(weights * found.masked_fill(~allowed, 0.0)).sum() / batch.mask.sum()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def _fit_centroids(self, core: Any) -> Tensor:
        """Compute centroids (G, C, F): k-means of z, each beside those that are like it."""
        tokens = torch.cat(self.tokens)[None]
        z = _points(tokens, core.space.weight.float(), core.num_clusterings)[0]  # (G, N, F)
        z = z[:, torch.randperm(z.shape[1], generator=self.generator).to(z.device)]
        count = core.num_clusters
        centroids = z[:, torch.arange(count, device=z.device) % z.shape[1]]
        for _ in range(20):
            means, sizes = cluster_means(z, nearest(z, centroids), count)
            centroids = torch.where(sizes > 0, F.normalize(means, dim=-1), centroids)
        return torch.stack([_in_a_chain(found) for found in centroids])


_LONGEST, _PAIRS = 1024, 2**21
"""Most tokens of a text, and pairs of tokens of a batch, to learn from: a bound of memory."""

_TOKENS_OF_A_BATCH = 512
"""Number of tokens of a batch that the centroids are fitted to."""


def _points(hidden: Tensor, space: Tensor, parts: int) -> Tensor:
    """Compute the unit vectors z, (B, G, N, F), of hidden states (B, N, E) by W, (G * F, E)."""
    return F.normalize((hidden @ space.T).unflatten(-1, (parts, -1)).transpose(1, 2), dim=-1)


def _in_a_chain(centroids: Tensor) -> Tensor:
    """Order centroids (C, F), each beside one like it: neighbouring blocks see each other."""
    left = list(range(len(centroids)))
    order = [left.pop(0)]
    similar = centroids @ centroids.T
    while left:
        order.append(left.pop(int(similar[order[-1], left].argmax())))
    return centroids[order]


@torch.no_grad()
def _principal_directions(tokens: Tensor, count: int) -> Tensor:
    """Compute the start of W, (F, E), from tokens (N, E)."""
    centred = tokens - tokens.mean(0)
    _, directions = torch.linalg.eigh(centred.T @ centred / len(tokens))
    weight = directions.flip(1)[:, :count].T
    return F.pad(weight, (0, 0, 0, count - len(weight)))


def _to_learn(core: Any, batch: _Batch) -> tuple[Tensor, Tensor]:
    """Pairs of tokens that clusters are for, (B, 1, N, N), and their weights, (B, G, N, N).

    Local heads, and tokens that all see anyway, need no clusters.
    """
    allowed, ends = _allowed(core, batch), core.ends(batch.hidden, batch.mask)
    weights = _weights(core, batch)[:, core.local_heads % core.num_heads :]
    weights = weights.unflatten(1, (core.num_clusterings, -1)).mean(2)
    if ends is not None:
        inner = ~at_ends(ends, batch.mask.shape[1])
        own = torch.eye(batch.mask.shape[1], dtype=torch.bool, device=batch.mask.device)
        allowed = allowed & inner[:, None, None] | own
        weights = weights * inner[:, None, None] * inner[:, None, :, None]
        weights = weights.masked_fill(~allowed, 0.0)
    return allowed, weights


def _weights(core: Any, batch: _Batch) -> Tensor:
    """Weights of full attention, (B, H, N, N); 0 in rows of padding."""
    logits = batch.q @ batch.k.transpose(2, 3) * core.head_width**-0.5
    logits = logits.masked_fill(~_allowed(core, batch), float("-inf"))
    return logits.softmax(-1) * batch.mask[:, None, :, None]


def _allowed(core: Any, batch: _Batch) -> Tensor:
    """Pairs of tokens that meet in full attention, (B, 1, N, N)."""
    own = torch.eye(batch.mask.shape[1], dtype=torch.bool, device=batch.mask.device)
    allowed = batch.mask[:, None, None, :] | own
    return allowed.tril() if core.causal else allowed


@torch.no_grad()
def attention_seen(core: Any, batch: _Batch) -> tuple[float, float]:
    """Measure which keys tokens see: their share, and their share of full attention's weights.

    With queries of zeros every key that is seen has a weight.
    """
    zeros, mask = torch.zeros_like(batch.q), batch.mask
    found = attention_weights(
        core, zeros, zeros, hidden=batch.hidden, query_mask=mask, key_mask=mask
    )
    visible = found > 0  # (B, H, N, N)
    real = mask.sum()
    counts = mask.cumsum(1) if core.causal else mask.sum(1, keepdim=True)
    keys = (visible.sum(-1).float().mean(1) / counts.clamp(min=1))[mask].sum() / real
    mass = (visible * _weights(core, batch)).sum() / (real * batch.q.shape[1])
    return float(keys), float(mass)

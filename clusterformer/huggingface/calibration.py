"""A start near the attention that is replaced: clusters of tokens that attend to each other.

B batch   H heads   N tokens   D head width   E model width   F width of the clustering space
C clusters
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
from clusterformer.clustering.kmeans import cluster_means, nearest
from clusterformer.errors import InputError
from clusterformer.huggingface.dispatch import slots

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class Calibrated(NamedTuple):
    """Attention of one layer that its tokens see.

    Attributes:
        keys_seen: Share of the real tokens of a text that a token attends to, mean.
        mass_before: Share of the weights of full attention on those keys, before.
        mass_after: The same after.
    """

    keys_seen: float
    mass_before: float
    mass_after: float


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
    (Kullback-Leibler divergence from their mean over the heads). The centroids are means of z by
    k-means, in an order in which neighbours are alike. The model's own weights do not change.

    Args:
        model: Model with the mechanism attached.
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
    training = model.training
    model.eval()
    with calibrating(model, steps=steps, alpha=alpha, seed=seed) as calibration, torch.no_grad():
        for batch in _batches(model, texts, tokenizer, max_length, batch_size):
            model(**batch)
    model.train(training)
    return calibration.report


class Calibration:
    """Result of `calibrating`.

    Attributes:
        report: For each layer the share of attention that its tokens see, once it has ended.
    """

    def __init__(self) -> None:
        self.report: list[Calibrated] = []


@contextmanager
def calibrating(
    model: nn.Module, *, steps: int = 4, alpha: float | None = 0.1, seed: int = 0
) -> Iterator[Calibration]:
    """Run full attention in place of each mechanism, and fit the clusters to what passes through.

    Args:
        model: Model with the mechanism attached, or a network around it, on evaluation.
        steps: Number of steps of the fit of W on each batch.
        alpha: Strength of the coupling to start from; None: as it is.
        seed: Seed of the choice of tokens for the centroids.

    Raises:
        ValueError: if no `NeuralClusteringAttention` is attached, or nothing passed through.
    """
    attached = [s for s in slots(model) if isinstance(s.core, NeuralClusteringAttention)]
    if not attached:
        raise InputError("calibrate needs a model with NeuralClusteringAttention attached")
    cores: list[Any] = [slot.core for slot in attached]
    if any(core.similarity != "cosine" for core in cores):
        raise InputError('calibrate needs similarity="cosine"')
    if any(core.num_clusterings > 1 for core in cores):
        raise InputError("calibrate needs num_clusterings=1")
    fits = [_Fit(core, steps, seed) for core in cores]
    calibration = Calibration()
    for slot, fit in zip(attached, fits, strict=True):
        slot.core = fit
    try:
        yield calibration
    finally:
        for slot, core in zip(attached, cores, strict=True):
            slot.core = core
    if fits[0].last is None:
        raise InputError("calibrate needs at least one text, got none")
    calibration.report = [fit.finish(alpha) for fit in fits]


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
            self._learn(self.last)
        hidden, mask = given["hidden"].float(), given["key_mask"]
        if mask is None:
            mask = hidden.new_ones(hidden.shape[:2], dtype=torch.bool)
        length = min(hidden.shape[1], _LONGEST)
        rows = max(1, _PAIRS // length**2)
        hidden, mask = hidden[:rows, :length], mask[:rows, :length]
        query, key = (x[:rows, :, :length].float() for x in (q, k))
        self.last = _Batch(hidden, query, key, mask)
        return super().forward(q, k, v, **given)

    @torch.no_grad()
    def finish(self, alpha: float | None) -> Calibrated:
        """Write W, the centroids and alpha into the mechanism."""
        core: Any = self.fitted[0]
        assert self.last is not None
        if self.space is None:
            self._learn(self.last)
        seen, before = attention_seen(core, self.last)
        core.space.weight.data.copy_(self.space)
        core.own_centroids().data.copy_(self._fit_centroids(core))
        if core.log_alpha is not None and alpha is not None:
            core.log_alpha.data.fill_(alpha).log_()
        seen, after = attention_seen(core, self.last)
        return Calibrated(seen, before, after)

    @torch.enable_grad()
    def _learn(self, batch: _Batch) -> None:
        core: Any = self.fitted[0]
        tokens = batch.hidden[batch.mask]
        kept = torch.randperm(len(tokens), generator=self.generator)[:_TOKENS_OF_A_BATCH]
        self.tokens.append(tokens[kept.to(tokens.device)])
        if self.space is None:
            self.space = nn.Parameter(_principal_directions(tokens, core.space.out_features))
            size = float(self.space.detach().abs().mean())
            self.optimizer = torch.optim.Adam([self.space], lr=0.05 * size)
        assert self.optimizer is not None
        allowed, weights = _to_learn(core, batch)
        for _ in range(self.steps):
            z = F.normalize(batch.hidden @ self.space.T, dim=-1)
            logits = z @ z.transpose(1, 2) / core.temperature
            found = logits.masked_fill(~allowed, float("-inf")).log_softmax(-1)
            loss = -(weights * found.masked_fill(~allowed, 0.0)).sum() / batch.mask.sum()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()

    def _fit_centroids(self, core: Any) -> Tensor:
        """Compute centroids (C, F): k-means of z, each beside those that are like it."""
        z = F.normalize(torch.cat(self.tokens) @ core.space.weight.float().T, dim=-1)
        z = z[torch.randperm(len(z), generator=self.generator).to(z.device)]
        count = core.num_clusters
        centroids = z[torch.arange(count, device=z.device) % len(z)][None]
        for _ in range(20):
            means, sizes = cluster_means(z[None], nearest(z[None], centroids), count)
            centroids = torch.where(sizes > 0, F.normalize(means, dim=-1), centroids)
        left = list(range(count))
        order = [left.pop(0)]
        similar = centroids[0] @ centroids[0].T
        while left:  # a chain: blocks beside each other are seen together
            order.append(left.pop(int(similar[order[-1], left].argmax())))
        return centroids[0, order]


_LONGEST, _PAIRS = 1024, 2**21
"""Most tokens of a text, and pairs of tokens of a batch, to learn from: a bound of memory."""

_TOKENS_OF_A_BATCH = 512
"""Number of tokens of a batch that the centroids are fitted to."""


@torch.no_grad()
def _principal_directions(tokens: Tensor, count: int) -> Tensor:
    """Compute the start of W, (F, E), from tokens (N, E)."""
    centred = tokens - tokens.mean(0)
    _, directions = torch.linalg.eigh(centred.T @ centred / len(tokens))
    weight = directions.flip(1)[:, :count].T
    return F.pad(weight, (0, 0, 0, count - len(weight)))


def _batches(
    model: Any, texts: Any, tokenizer: Any, max_length: int, batch_size: int
) -> Iterator[dict[str, Tensor]]:
    if isinstance(texts, str):
        raise InputError("texts must be a list of texts, got one text")
    first = next(iter(texts), None) if isinstance(texts, Sequence) else None
    if not isinstance(first, str):
        for batch in texts:
            yield {key: x.to(model.device) for key, x in batch.items() if key != "labels"}
        return
    if tokenizer is None:
        raise InputError("texts need their tokenizer; give it, or batches of token ids")
    for at in range(0, len(texts), batch_size):
        yield dict(
            tokenizer(
                list(texts[at : at + batch_size]),
                truncation=True, max_length=max_length, padding=True, return_tensors="pt",
            ).to(model.device)
        )  # fmt: skip


def _to_learn(core: Any, batch: _Batch) -> tuple[Tensor, Tensor]:
    """Pairs of tokens that clusters are for, and their weights, (B, N, N) each.

    Local heads, and tokens that all see anyway, need no clusters.
    """
    allowed, ends = _allowed(core, batch), core.ends(batch.hidden, batch.mask)
    weights = _weights(core, batch, core.local_heads % core.num_heads)
    if ends is not None:
        inner = ~at_ends(ends, batch.mask.shape[1])
        own = torch.eye(batch.mask.shape[1], dtype=torch.bool, device=batch.mask.device)
        allowed = allowed & inner[:, None] | own
        weights = (weights * inner[:, None] * inner[..., None]).masked_fill(~allowed, 0.0)
    return allowed, weights


def _weights(core: Any, batch: _Batch, first_head: int = 0) -> Tensor:
    """Weights of full attention, mean over the heads, (B, N, N); 0 in rows of padding."""
    logits = (
        batch.q[:, first_head:] @ batch.k[:, first_head:].transpose(2, 3) * core.head_width**-0.5
    )
    logits = logits.masked_fill(~_allowed(core, batch)[:, None], float("-inf"))
    return logits.softmax(-1).mean(1) * batch.mask[..., None]


def _allowed(core: Any, batch: _Batch) -> Tensor:
    own = torch.eye(batch.mask.shape[1], dtype=torch.bool, device=batch.mask.device)
    allowed = batch.mask[:, None, :] | own
    return allowed.tril() if core.causal else allowed


@torch.no_grad()
def attention_seen(core: Any, batch: _Batch) -> tuple[float, float]:
    """Measure which keys tokens see: their share, and their share of full attention's weights.

    With queries of zeros every key that is seen has a weight, and with the rows of an identity for
    values the weights come out.
    """
    rows, heads, length, width = batch.q.shape
    zeros, seen = torch.zeros_like(batch.q), []
    for start in range(0, length, width):
        one_hot = torch.eye(length, device=zeros.device)[:, start : start + width]
        values = F.pad(one_hot, (0, width - one_hot.shape[1])).expand(rows, heads, -1, -1)
        mixed, _ = core(
            zeros, zeros, values.to(zeros), hidden=batch.hidden,
            query_mask=batch.mask, key_mask=batch.mask,
        )  # fmt: skip
        seen.append(mixed[..., : one_hot.shape[1]] > 0)
    visible = torch.cat(seen, -1).float().mean(1)  # (B, N, N)
    real = batch.mask.sum()
    counts = batch.mask.sum(1)[:, None].clamp(min=1)
    keys = (visible.sum(-1) / counts)[batch.mask].sum() / real
    mass = (visible * _weights(core, batch)).sum() / real
    return float(keys), float(mass)

"""The partner task: find the one token that knows, anywhere in the text. Generated, needs no data.

N tokens are N/2 pairs at random places. Both tokens of a pair carry its key, one of them also a
value, the other asks for it: the network names that value. Every text holds every key once, with
fresh values, so nothing helps but meeting one's partner, wherever it stands.

Letters: B batch, N tokens, K = N/2 keys, V values, E model width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchmetrics import MeanMetric, MetricCollection
from torchmetrics.classification import MulticlassAccuracy

from clusterformer.attention import Grouping
from clusterformer.data.batches import BucketPlan, EndlessPlan, make_loader, run_seed
from clusterformer.errors import InputError
from clusterformer.kernels.blocks import Blocks
from clusterformer.losses import cross_entropy
from clusterformer.models.config import TransformerConfig
from clusterformer.models.token_classifier import KeyValueClassifier
from clusterformer.task import IGNORE, Output, Task

_TRAIN, _VALID, _TEST = 0, 1, 2


class PartnerBatch(NamedTuple):
    """Texts of pairs."""

    tokens: Tensor  # (B, N) int64: keys, 1..K
    mask: Tensor  # (B, N) bool
    target: Tensor  # (B, N) int64: the partner's value where one asks, else IGNORE
    values: Tensor  # (B, N) int64: 0..V - 1, or V where one asks
    partner: Tensor  # (B, N) int64: place of the other token with the same key


class Partner(Task):
    """Name the value that stands with the same key elsewhere.

    Training goes on with new texts for ever; validation and test texts are always the same.

    Args:
        num_tokens: N, tokens of every text; even.
        num_values: V, values to tell apart.
        batch_size: Texts a batch, over all processes.
        epoch_steps: Batches from one validation to the next.
        valid_texts: Texts that validate.
        test_texts: Texts that test.
    """

    def __init__(
        self,
        *,
        num_tokens: int = 256,
        num_values: int = 10,
        batch_size: int = 32,
        epoch_steps: int = 100,
        valid_texts: int = 128,
        test_texts: int = 256,
    ) -> None:
        super().__init__()
        if num_tokens < 2 or num_tokens % 2:
            raise InputError(f"num_tokens must be even and at least 2, got {num_tokens}")
        for option, value in (
            ("num_values", num_values),
            ("batch_size", batch_size),
            ("epoch_steps", epoch_steps),
            ("valid_texts", valid_texts),
            ("test_texts", test_texts),
        ):
            if value < 1:
                raise InputError(f"{option} must be at least 1, got {value}")
        self._num_tokens, self._num_values = num_tokens, num_values
        self._batch_size, self._epoch_steps = batch_size, epoch_steps
        self._valid_texts, self._test_texts = valid_texts, test_texts

    def train_dataloader(self) -> DataLoader:
        plan = EndlessPlan(self._epoch_steps, self._batch_size)
        return make_loader(self._pairs(_TRAIN, run_seed()), plan, self, training=True)

    def val_dataloader(self) -> DataLoader:
        return self._evaluation(_VALID, self._valid_texts)

    def test_dataloader(self) -> DataLoader:
        return self._evaluation(_TEST, self._test_texts)

    def _evaluation(self, stream: int, size: int) -> DataLoader:
        lengths = [self._num_tokens] * size
        plan = BucketPlan(lengths, batch_size=self._batch_size, shuffle=False)
        return make_loader(self._pairs(stream), plan, self)

    def _pairs(self, *stream: int) -> PartnerDataset:
        return PartnerDataset(self._num_tokens, self._num_values, stream)

    def build(self, config: TransformerConfig) -> KeyValueClassifier:
        return KeyValueClassifier(
            config,
            num_keys=self._num_tokens // 2,
            num_values=self._num_values,
            max_length=self._num_tokens,
        )

    def loss(
        self, output: Output, batch: PartnerBatch, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        return cross_entropy(output.logits, batch.target, label_smoothing)

    def metrics(self) -> MetricCollection:
        """Accuracy over the tokens that ask, and share of tokens that `reach` their partner."""
        accuracy = MulticlassAccuracy(self._num_values, average="micro", ignore_index=IGNORE)
        return MetricCollection({"accuracy": accuracy, "reach": MeanMetric()}, compute_groups=False)

    def update(
        self, metrics: MetricCollection, output: Output, batch: PartnerBatch, network: nn.Module
    ) -> None:
        metrics["accuracy"].update(output.logits.flatten(0, 1), batch.target.flatten())
        metrics["reach"].update(reach(output.encoded.groupings, batch.partner)[batch.mask].float())

    def state(self) -> dict[str, Any]:
        return {"num_tokens": self._num_tokens, "num_values": self._num_values}

    def load_state(self, state: dict[str, Any]) -> None:
        self._num_tokens, self._num_values = state["num_tokens"], state["num_values"]

    def predictions(self, network: nn.Module, batch: PartnerBatch) -> list[dict[str, Any]]:
        """The value named for each token that asks, in the order of the text."""
        asked = batch.values == self._num_values
        return [
            {"values": named[where].tolist()}
            for named, where in zip(
                network(batch).logits.argmax(-1), asked & batch.mask, strict=True
            )
        ]

    def describe(self, batch: PartnerBatch, index: int) -> list[str]:
        """Key and value of each token, as in 17:4, or 17:? where one asks."""
        real = batch.mask[index]
        pairs = zip(
            batch.tokens[index][real].tolist(), batch.values[index][real].tolist(), strict=True
        )
        return [f"{key}:{'?' if value == self._num_values else value}" for key, value in pairs]

    def links(self, batch: PartnerBatch, index: int) -> list[tuple[int, int]]:
        partner = batch.partner[index][batch.mask[index]].tolist()
        return [(place, other) for place, other in enumerate(partner) if place < other]

    def baselines(self) -> dict[str, Callable[[], float]]:
        return {"linear, bag of tokens": self.linear_baseline}

    def linear_baseline(self, steps: int = 300) -> float:
        """Test accuracy of a linear classifier that sees the bag of tokens and the asked key.

        Args:
            steps: Batches to train it on.
        """
        bag = nn.Parameter(
            torch.zeros(self._num_tokens // 2 + 1, self._num_values + 1, self._num_values)
        )
        own = nn.Parameter(torch.zeros(self._num_tokens // 2 + 1, self._num_values))
        optimizer = torch.optim.Adam([bag, own], lr=0.01)

        def logits(batch: PartnerBatch) -> Tensor:
            text = bag[batch.tokens, batch.values].sum(1, keepdim=True)
            return (text + own[batch.tokens])[batch.target != IGNORE]

        pairs = self._pairs(_TRAIN, run_seed())
        for indices in EndlessPlan(steps, self._batch_size).batches(0):
            batch = pairs[indices]
            loss = F.cross_entropy(logits(batch), batch.target[batch.target != IGNORE])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        batch = self._pairs(_TEST)[list(range(self._test_texts))]
        with torch.inference_mode():
            named = logits(batch).argmax(-1)
        return (named == batch.target[batch.target != IGNORE]).float().mean().item()


def reach(groupings: Sequence[Grouping | None], partner: Tensor) -> Tensor:
    """Whether a token and its partner come within sight, (B, N) bool.

    They do if in some layer one of them sees the block of the other. A layer without blocks sees
    everything.

    Args:
        groupings: One a layer.
        partner: (B, N), place of each token's partner.
    """
    reached = torch.zeros_like(partner, dtype=torch.bool)
    for grouping in groupings:
        if grouping is None or grouping.blocks is None:
            return torch.ones_like(reached)
        sees = _sees(grouping.blocks, partner)
        reached |= sees | sees.gather(1, partner)
    return reached


def _sees(blocks: Blocks, other: Tensor) -> Tensor:
    """Whether the block of each token sees the token `other`, both (B, N)."""
    width, span = blocks.members.shape[-1], blocks.visible.shape[-1]
    own = (blocks.slot // width - blocks.look_back).clamp(min=0)  # (B, N)
    copies = blocks.copies.gather(1, other[..., None].expand_as(blocks.copies))  # (B, N, K)
    ahead = copies // width - own[..., None]
    visible = blocks.visible.gather(1, own[..., None].expand(-1, -1, span))  # (B, N, R)
    within = (copies >= 0) & (ahead >= 0) & (ahead < span)
    return (within & visible.gather(2, ahead.clamp(0, span - 1))).any(-1)


class PartnerDataset(Dataset[PartnerBatch]):
    """Texts made from their index; a list of indices gives a batch.

    Args:
        num_tokens: N.
        num_values: V.
        stream: Numbers that name this endless list of texts.
    """

    def __init__(self, num_tokens: int, num_values: int, stream: Sequence[int]) -> None:
        self._num_tokens, self._num_values, self._stream = num_tokens, num_values, stream

    def __getitem__(self, indices: list[int]) -> PartnerBatch:
        if not indices:
            nothing = torch.zeros(1, 1, dtype=torch.long)
            return PartnerBatch(nothing, nothing.bool(), nothing + IGNORE, nothing, nothing)
        size, count = self._num_tokens // 2, len(indices)
        places = np.empty((count, 2 * size), dtype=np.int64)  # of the first tokens, then the second
        told = np.empty((count, size), dtype=np.int64)
        for row, index in enumerate(indices):
            rng = np.random.default_rng([*self._stream, index])
            places[row] = rng.permutation(2 * size)
            told[row] = rng.integers(self._num_values, size=size)
        keys = np.broadcast_to(np.tile(np.arange(1, size + 1), 2), places.shape)
        asked = np.full_like(told, self._num_values)
        ignore = np.full_like(told, IGNORE)
        fields = {
            "tokens": keys,
            "values": np.concatenate([told, asked], 1),
            "target": np.concatenate([ignore, told], 1),
            "partner": np.roll(places, size, 1),
        }
        for name, field in fields.items():
            scattered = np.empty_like(places)
            np.put_along_axis(scattered, places, field, 1)
            fields[name] = scattered
        tensors = {name: torch.from_numpy(field) for name, field in fields.items()}
        return PartnerBatch(mask=torch.ones(places.shape, dtype=torch.bool), **tensors)

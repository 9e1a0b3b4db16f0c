"""The partner task: find the one token of the same pair, anywhere in the text. Generated.

N tokens are N/2 pairs at random positions. Both tokens of a pair carry its key, one of them also a
value, the other asks for it: the network names that value. No two pairs of a text have one key, and
values are fresh, so only attention to the partner helps, wherever it stands.

Equal keys have equal embeddings, so even random clusters hold many pairs. Without `shared_keys` the
token that asks has a key of its own, and only the task says which two keys are a pair.

B batch   N tokens   P pairs that there are
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypedDict

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.attention import AttentionCore, Grouping
from clusterformer.attention.visibility import sees
from clusterformer.data.batches import EndlessPlan, run_seed
from clusterformer.errors import InputError, require_at_least
from clusterformer.models.config import TransformerConfig
from clusterformer.models.token_classifier import KeyValueClassifier
from clusterformer.task import IGNORE, Output, SimpleResult
from clusterformer.tasks.generated.generated_task import (
    TEST,
    TRAIN,
    GeneratedTask,
    GeneratedTexts,
    require_as_trained,
)


class PartnerBatch(NamedTuple):
    """Texts of pairs."""

    tokens: Tensor  # (B, N) int64: keys, 1..P, or 1..2P if they are not shared
    mask: Tensor  # (B, N) bool
    target: Tensor  # (B, N) int64: the partner's value where a token asks, else IGNORE
    values: Tensor  # (B, N) int64: 0..num_values - 1, or num_values where a token asks
    partner: Tensor  # (B, N) int64: position of the other token of the pair


class PartnerTextState(TypedDict):
    """State of the task in every checkpoint."""

    num_tokens: int
    num_values: int


class PartnerState(PartnerTextState, total=False):
    """State of the task in a checkpoint; older ones lack what has a default."""

    shared_keys: bool
    num_pairs: int


class Partner(GeneratedTask):
    """Name the value that the other token of a pair carries.

    Args:
        num_tokens: Number of tokens of every text; even.
        num_values: Number of different values.
        shared_keys: Whether both tokens of a pair carry the same key.
        num_pairs: Number of pairs that there are (P), at least N/2; a text has N/2 of them. None:
            N/2, so every text has all. With more, a model can learn from short texts and go on
            with longer ones.
        options: Options of `GeneratedTask`.
    """

    state_type = PartnerState
    sizes = ("num_tokens",)

    def __init__(
        self,
        *,
        num_tokens: int = 256,
        num_values: int = 10,
        shared_keys: bool = True,
        num_pairs: int | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if num_tokens < 2 or num_tokens % 2:
            raise InputError(f"num_tokens must be even and at least 2, got {num_tokens}")
        require_at_least(2, num_values=num_values)
        self._num_pairs = num_tokens // 2 if num_pairs is None else num_pairs
        require_at_least(num_tokens // 2, num_pairs=self._num_pairs)
        self._num_tokens, self._num_values = num_tokens, num_values
        self._shared_keys = shared_keys
        self._trained_length = num_tokens  # for learned positions, whatever a test has

    @property
    def chance(self) -> float:
        return 1 / self._num_values

    @property
    def _num_keys(self) -> int:
        return self._num_pairs if self._shared_keys else 2 * self._num_pairs

    @property
    def num_labels(self) -> int:
        return self._num_values

    def texts(self, *stream: int) -> PartnerTexts:
        return PartnerTexts(
            self._num_tokens, self._num_values, stream, self._shared_keys, self._num_pairs
        )

    def build(self, config: TransformerConfig) -> KeyValueClassifier:
        return KeyValueClassifier(
            config,
            num_keys=self._num_keys,
            num_values=self._num_values,
            max_length=self._trained_length,
        )

    def means(self, output: Output, batch: PartnerBatch) -> dict[str, tuple[Tensor, Tensor]]:
        """Share of tokens that `reach` their partner, where a mechanism says which tokens meet."""
        reached = reach(output.encoded.groupings, output.encoded.cores, batch.partner)
        if reached is None:
            return {}
        number = batch.mask.sum()
        return {"reach": ((reached & batch.mask).sum().float() / number.clamp(min=1), number)}

    def state(self) -> dict[str, Any]:
        return {
            "num_tokens": self._trained_length,
            "num_values": self._num_values,
            "shared_keys": self._shared_keys,
            "num_pairs": self._num_pairs,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the length of training; texts of a test may have any, of the same pairs."""
        require_at_least(2, num_tokens=state["num_tokens"])
        # What older checkpoints lack, they had so.
        known = {"shared_keys": True, "num_pairs": state["num_tokens"] // 2, **state}
        require_as_trained(
            known,
            num_values=self._num_values,
            shared_keys=self._shared_keys,
            num_pairs=self._num_pairs,
        )
        self._trained_length = state["num_tokens"]

    def predictions(self, network: nn.Module, batch: PartnerBatch) -> list[dict[str, Any]]:
        """Value of each token that asks, in the order of the text."""
        asks = (batch.values == self._num_values) & batch.mask
        values = network(batch).logits.argmax(-1)
        return [{"values": row[where].tolist()} for row, where in zip(values, asks, strict=True)]

    def describe(self, batch: PartnerBatch, index: int) -> list[str]:
        """Key and value of each token, as in 17:4, or 17:? where it asks."""
        real = batch.mask[index]
        pairs = zip(
            batch.tokens[index][real].tolist(), batch.values[index][real].tolist(), strict=True
        )
        return [f"{key}:{'?' if value == self._num_values else value}" for key, value in pairs]

    def links(self, batch: PartnerBatch, index: int) -> list[tuple[int, int]]:
        partner = batch.partner[index][batch.mask[index]].tolist()
        return [(position, other) for position, other in enumerate(partner) if position < other]

    def baselines(self, *, cheap: bool = False) -> dict[str, Callable[[], SimpleResult]]:
        return {"linear, bag of tokens": self.linear_baseline}

    def linear_baseline(self, steps: int = 300) -> SimpleResult:
        """Train and test a linear classifier that sees the bag of tokens and the asked key.

        Args:
            steps: Number of training batches.
        """
        bag = nn.Parameter(torch.zeros(self._num_keys + 1, self._num_values + 1, self._num_values))
        own = nn.Parameter(torch.zeros(self._num_keys + 1, self._num_values))
        optimizer = torch.optim.Adam([bag, own], lr=0.01)

        def logits(batch: PartnerBatch) -> Tensor:
            context = bag[batch.tokens, batch.values].sum(1, keepdim=True)
            return (context + own[batch.tokens])[batch.target != IGNORE]

        texts = self.texts(TRAIN, run_seed())
        for indices in EndlessPlan(steps, self._batch_size).batches(0):
            batch = texts[indices]
            loss = F.cross_entropy(logits(batch), batch.target[batch.target != IGNORE])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        batch = self.texts(TEST)[list(range(self._test_texts))]
        with torch.inference_mode():
            values = logits(batch).argmax(-1)
        right = (values == batch.target[batch.target != IGNORE]).float().mean().item()
        return SimpleResult({"accuracy": right}, bag.numel() + own.numel())


def reach(
    groupings: Sequence[Grouping | None], cores: Sequence[AttentionCore], partner: Tensor
) -> Tensor | None:
    """Tell which tokens can attend to their partner, or their partner to them, in some layer.

    Args:
        groupings: One a layer.
        cores: Mechanism of each layer.
        partner: (B, N), position of each token's partner.

    Returns:
        (B, N) bool; None for a mechanism that does not say which tokens meet.
    """
    reached = torch.zeros_like(partner, dtype=torch.bool)
    for grouping, core in zip(groupings, cores, strict=True):
        shares = core.keys_seen(grouping, torch.ones_like(reached))
        if shares is not None and bool((shares == 1).all()):
            return torch.ones_like(reached)
        met = None if grouping is None else sees(grouping, partner)
        if met is None:
            return None
        reached |= met | met.gather(1, partner)
    return reached


class PartnerTexts(GeneratedTexts):
    """Texts of the partner task.

    Args:
        num_tokens: Number of tokens of every text.
        num_values: Number of different values.
        stream: Numbers that name this list of texts.
        shared_keys: Whether both tokens of a pair carry the same key.
        num_pairs: Number of pairs that there are; None: those of a text.
    """

    def __init__(
        self,
        num_tokens: int,
        num_values: int,
        stream: tuple[int, ...],
        shared_keys: bool = True,
        num_pairs: int | None = None,
    ) -> None:
        super().__init__(stream)
        self._num_tokens, self._num_values = num_tokens, num_values
        self._shared_keys = shared_keys
        self._num_pairs = num_tokens // 2 if num_pairs is None else num_pairs

    def __getitem__(self, indices: list[int]) -> PartnerBatch:
        if not indices:
            zero = torch.zeros(1, 1, dtype=torch.long)
            return PartnerBatch(zero, zero.bool(), zero + IGNORE, zero, zero)
        size, count = self._num_tokens // 2, len(indices)
        positions = np.empty((count, 2 * size), dtype=np.int64)  # of first tokens, then of second
        answers = np.empty((count, size), dtype=np.int64)
        pair = np.broadcast_to(np.arange(size), answers.shape).copy()
        for row, index in enumerate(indices):
            generator = self.generator(index)
            positions[row] = generator.permutation(2 * size)
            answers[row] = generator.integers(self._num_values, size=size)
            if self._num_pairs > size:
                pair[row] = generator.choice(self._num_pairs, size, replace=False)
        asking = pair if self._shared_keys else pair + self._num_pairs
        unknown = np.full_like(answers, self._num_values)
        ignore = np.full_like(answers, IGNORE)
        fields = {
            "tokens": np.concatenate([pair, asking], 1) + 1,
            "values": np.concatenate([answers, unknown], 1),
            "target": np.concatenate([ignore, answers], 1),
            "partner": np.roll(positions, size, 1),
        }
        for name, field in fields.items():
            scattered = np.empty_like(positions)
            np.put_along_axis(scattered, positions, field, 1)
            fields[name] = scattered
        tensors = {name: torch.from_numpy(field) for name, field in fields.items()}
        return PartnerBatch(mask=torch.ones(positions.shape, dtype=torch.bool), **tensors)

"""A small task for tests of the trainer: is there a 1 among the tokens?

It can note which examples each training step saw, spoil a loss, and be slow.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MetricCollection
from torchmetrics.classification import BinaryAccuracy

from clusterformer.data.batches import BucketPlan, make_loader, pad
from clusterformer.models.config import TransformerConfig
from clusterformer.models.transformer import Encoder
from clusterformer.task import IGNORE, Output, SimpleResult, Task

VOCABULARY = 8


class ToyBatch(NamedTuple):
    tokens: Tensor
    mask: Tensor
    target: Tensor
    index: Tensor


class Examples:
    def __init__(self, size: int, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        lengths = torch.randint(3, 12, (size,), generator=rng).tolist()
        self.texts = [torch.randint(1, VOCABULARY, (n,), generator=rng).tolist() for n in lengths]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, indices: list[int]) -> ToyBatch:
        tokens, mask = pad([self.texts[i] for i in indices])
        target = (tokens == 1).any(-1).long() if indices else torch.tensor([IGNORE])
        return ToyBatch(tokens, mask, target, torch.tensor(indices or [-1]))


class Net(nn.Module):
    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, config.d_model)
        self.encoder = Encoder(config)
        self.head = nn.Linear(config.d_model, 2)

    def forward(self, batch: Any) -> Output:
        encoded = self.encoder(self.embedding(batch.tokens), batch.mask)
        weight = batch.mask[..., None].float()
        pooled = (encoded.hidden * weight).sum(1) / weight.sum(1).clamp(min=1)
        return Output(self.head(pooled), encoded)


class Toy(Task):
    """A task for tests.

    Args:
        size: Training examples.
        batch_size: Of a global batch.
        notes: Folder for notes of which examples each step saw.
        spoil_at: Step whose loss becomes NaN.
        pause: Seconds to wait in each step.
        killed_in_test: Rank of a process that is killed in the test.
        killed_in_drawing: Whether the process is killed while it draws pictures.
    """

    usage = "model.predict([TEXT])"

    def __init__(
        self,
        size: int = 40,
        batch_size: int = 8,
        notes: str | None = None,
        spoil_at: int | None = None,
        pause: float = 0.0,
        killed_in_test: int | None = None,
        killed_in_drawing: bool = False,
    ) -> None:
        super().__init__()
        self.size, self.batch_size, self.notes = size, batch_size, notes
        self.spoil_at, self.pause = spoil_at, pause
        self.killed_in_test, self.killed_in_drawing = killed_in_test, killed_in_drawing
        self.labels: list[str] | None = None

    def setup(self, stage: str) -> None:
        if self.labels is None:
            self.labels = ["without", "with"]

    def build(self, config: TransformerConfig) -> nn.Module:
        return Net(config)

    def loss(
        self, output: Output, batch: ToyBatch, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        total = F.cross_entropy(
            output.logits, batch.target, reduction="sum", label_smoothing=label_smoothing
        )
        if torch.is_grad_enabled():
            step = self.trainer.global_step
            if self.notes:
                with (Path(self.notes) / f"{os.getpid()}").open("a") as file:
                    file.writelines(f"{step} {i}\n" for i in batch.index.tolist() if i >= 0)
            if step == self.spoil_at:
                total = total * float("nan")
            time.sleep(self.pause)
        return total, (batch.target != IGNORE).sum()

    def metrics(self) -> MetricCollection:
        return MetricCollection({"accuracy": BinaryAccuracy(ignore_index=IGNORE)})

    def update(
        self, metrics: MetricCollection, output: Output, batch: ToyBatch, network: nn.Module
    ) -> None:
        if self.trainer.testing and self.trainer.global_rank == self.killed_in_test:
            os.kill(os.getpid(), signal.SIGKILL)
        metrics.update(output.logits.argmax(-1), batch.target)

    def draw(self, network: nn.Module, folder: Path) -> list[Path]:
        if self.killed_in_drawing:
            os.kill(os.getpid(), signal.SIGKILL)
        return []

    def state(self) -> dict[str, Any]:
        return {"labels": self.labels}

    def load_state(self, state: dict[str, Any]) -> None:
        self.labels = state["labels"]

    def predictions(self, network: nn.Module, batch: Any) -> list[dict[str, Any]]:
        assert self.labels is not None
        best = network(batch).logits.softmax(-1).max(-1)
        return [
            {"label": self.labels[i], "probability": p}
            for i, p in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    def text_dataloader(self, lines: Iterable[str]) -> Iterable[ToyBatch]:
        for line in lines:
            tokens, mask = pad([[int(word) % VOCABULARY for word in line.split()]])
            yield ToyBatch(tokens, mask, torch.tensor([IGNORE]), torch.tensor([-1]))

    def train_dataloader(self) -> Any:
        data = Examples(self.size, 0)
        plan = BucketPlan([len(t) for t in data.texts], batch_size=self.batch_size)
        return make_loader(data, plan, self, training=True)

    def val_dataloader(self) -> Any:
        data = Examples(20, 1)
        plan = BucketPlan([len(t) for t in data.texts], batch_size=8, shuffle=False)
        return make_loader(data, plan, self)

    def test_dataloader(self) -> Any:
        return self.val_dataloader()

    def baselines(self, *, cheap: bool = False) -> dict[str, Callable[[], SimpleResult]]:
        def always_with() -> SimpleResult:
            return SimpleResult({"accuracy": sum(1 in t for t in Examples(20, 1).texts) / 20}, 0)

        return {"always with": always_with}

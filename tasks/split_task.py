"""Bases of the tasks: one loader for all parts of the data, and batches of a user's lines."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any

from torch.utils.data import DataLoader, Dataset

from clusterformer.data.batches import BucketPlan, Integers, TextLines, make_loader, run_seed
from clusterformer.data.named_sets import Split
from clusterformer.errors import InputError
from clusterformer.task import Task

STAGE_SPLITS: dict[str, tuple[Split, ...]] = {
    "fit": ("train", "valid"),
    "validate": ("valid",),
    "test": ("test",),
    "predict": (),
}
"""Parts of the data that each stage of the trainer reads."""


def require_one_source(name: object, files: Mapping[Split, str | None], what: str) -> None:
    """Refuse a named set beside own files of any part, and neither of them.

    Raises:
        InputError: with both.
    """
    own = {split: file for split, file in files.items() if file is not None}
    if own if name else "train" not in own:
        given = ", ".join(f"{split} {file!r}" for split, file in own.items()) or "no files"
        raise InputError(
            f"give either a named set (name) or own {what} (train), and null as the other; got "
            f"name {name!r} and {given}"
        )


class SplitTask(Task):
    """A task with training, validation and test data, which one method loads."""

    @abstractmethod
    def loader(self, split: Split) -> DataLoader:
        """Make the batches of one part of the data."""

    def bucketed(
        self,
        split: Split,
        dataset: Dataset,
        lengths: Integers,
        batch_size: int | None,
        tokens_per_batch: int | None = None,
    ) -> DataLoader:
        """Make batches of similar length, as `BucketPlan` cuts them; training shuffles them."""
        training = split == "train"
        plan = BucketPlan(
            lengths, batch_size=batch_size, tokens_per_batch=tokens_per_batch,
            shuffle=training, seed=run_seed(),
        )  # fmt: skip
        return make_loader(dataset, plan, self, training=training)

    def train_dataloader(self) -> DataLoader:
        return self.loader("train")

    def val_dataloader(self) -> DataLoader:
        return self.loader("valid")

    def test_dataloader(self) -> DataLoader:
        return self.loader("test")


class LineTask(SplitTask):
    """A task that also reads a user's text, one row a line."""

    @abstractmethod
    def text_batch(self, lines: list[str]) -> Any:
        """Make a batch of user text without targets, one row a line."""

    def text_dataloader(self, lines: Iterable[str]) -> DataLoader:
        """Make batches of user text in its order, one row a line."""
        return DataLoader(TextLines(lines, self.text_batch), batch_size=None)

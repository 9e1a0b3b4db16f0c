"""Text classification: named sets, generated ListOps, or the user's own files."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any, Literal

import torch
import torch.nn.functional as F
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from clusterformer.errors import InputError
from clusterformer.models.architecture import Architecture
from clusterformer.task import IGNORE, Batch, Output, Task
from clusterformer.tasks.batches import BucketPlan, loader, pad, run_seed
from clusterformer.tasks.classifier import TextClassifier
from clusterformer.tasks.corpora import NUM_FOLDS, Corpus, Split, hold_out, read_corpus
from clusterformer.tasks.listops import LABELS, generate
from clusterformer.tasks.reading import Row, read_rows
from clusterformer.tasks.text import BytePairTokenizer, Tokenizer, WordTokenizer, restore
from clusterformer.tasks.vectors import word_vectors

_log = logging.getLogger(__name__)


class Classification(Task):
    """Give each text one of several labels.

    A named set, or own files: `.tsv`, `.csv` or `.jsonl`, each also with `.gz`.

    Args:
        name: Named set: mr, subj, cr, mpqa (10-fold cross-validation), 20news (by date), or
            listops (generated).
        root: Folder of the named sets; default $CLUSTERFORMER_DATA, else the user's cache.
        fold: 0..9: which tenth of mr, subj, cr or mpqa tests; a tenth of the rest validates.
        strip: 20news: drop headers, signatures and quoted lines, which give the group away.
        length: listops: tokens of the longest expression.
        examples: listops: training examples; a tenth as many validate, and as many test.
        train: Own training file.
        valid: Own validation file; without it, a tenth of `train` validates instead of training.
        test: Own test file; without it, another tenth of `train` tests.
        text_column: Own files: column of the text, by name or by number from 1.
        label_column: Own files: column of the label, by name or by number from 1.
        header: Own files: skip a header line although both columns are numbers.
        encoding: Of own files.
        tokenizer: "word", or "bpe" for byte-pair encoding; learnt from the training texts.
        lowercase: Whether case is ignored.
        min_count: Words seen less often in training are unknown; not for bpe.
        vocab_size: Most words or pieces; None is no limit for words and 8000 for bpe.
        vectors: File of word vectors in GloVe's format to start from; not for bpe.
        max_length: Longest text, tokens; what is beyond is cut off, and counted. None: no limit.
        batch_size: Most texts a batch, over all processes; None is 50, or no limit if
            `tokens_per_batch` is given.
        tokens_per_batch: Most tokens a batch, over all processes, padding counted.
    """

    def __init__(
        self,
        name: Corpus | Literal["listops"] | None = None,
        *,
        root: str | None = None,
        fold: int = 0,
        strip: bool = False,
        length: int = 128,
        examples: int = 10_000,
        train: str | None = None,
        valid: str | None = None,
        test: str | None = None,
        text_column: int | str = "text",
        label_column: int | str = "label",
        header: bool = False,
        encoding: str = "utf-8",
        tokenizer: Literal["word", "bpe"] = "word",
        lowercase: bool = True,
        min_count: int = 1,
        vocab_size: int | None = None,
        vectors: str | None = None,
        max_length: int | None = None,
        batch_size: int | None = None,
        tokens_per_batch: int | None = None,
    ) -> None:
        super().__init__()
        if (name is None) == (train is None):
            found = f"name {name!r} and train {train!r}"
            raise InputError(f"give either a named set (name) or own files (train), got {found}")
        if vectors is not None and tokenizer == "bpe":
            raise InputError("word vectors need tokenizer: word, got bpe")
        if not 0 <= fold < NUM_FOLDS:
            raise InputError(f"fold must be in 0..{NUM_FOLDS - 1}, got {fold}")
        for option, value in (
            ("examples", examples),
            ("min_count", min_count),
            ("vocab_size", vocab_size),
            ("max_length", max_length),
            ("batch_size", batch_size),
            ("tokens_per_batch", tokens_per_batch),
        ):
            if value is not None and value < 1:
                raise InputError(f"{option} must be at least 1, got {value}")
        self._name, self._root, self._fold, self._strip = name, root, fold, strip
        self._length, self._examples = length, examples
        self._files = {"train": train, "valid": valid, "test": test}
        self._columns: dict[str, Any] = {
            "text_column": text_column,
            "label_column": label_column,
            "header": header,
            "encoding": encoding,
        }
        self._kind, self._lowercase = tokenizer, lowercase
        self._min_count, self._vocab_size = min_count, vocab_size
        self._vectors, self._max_length = vectors, max_length
        if batch_size is None and tokens_per_batch is None:
            batch_size = 50
        self._batch_size, self._tokens_per_batch = batch_size, tokens_per_batch
        self._tokenizer: Tokenizer | None = None
        self._pretrained: Tensor | None = None
        self._labels: list[str] = []
        self._texts: dict[Split, _Texts] = {}

    # Data

    def setup(self, stage: str) -> None:
        """Read what the stage needs; learn vocabulary and labels if no checkpoint brought them."""
        if self._tokenizer is None and stage != "predict":
            self._learn(self._rows("train"))
        splits: dict[str, list[Split]] = {
            "fit": ["train", "valid"],
            "validate": ["valid"],
            "test": ["test"],
        }
        for split in splits.get(stage, []):
            if split not in self._texts:
                self._texts[split] = self._encode(split, self._rows(split))

    def train_dataloader(self) -> DataLoader:
        return loader(self._texts["train"], self._plan("train"), self, training=True)

    def val_dataloader(self) -> DataLoader:
        return loader(self._texts["valid"], self._plan("valid"), self)

    def test_dataloader(self) -> DataLoader:
        return loader(self._texts["test"], self._plan("test"), self)

    def _plan(self, split: Split) -> BucketPlan:
        return BucketPlan(
            self._texts[split].lengths,
            batch_size=self._batch_size,
            tokens_per_batch=self._tokens_per_batch,
            shuffle=split == "train",
            seed=run_seed(),
        )

    def text_dataloader(self, lines: Iterable[str]) -> DataLoader:
        """Batches of user text in its order, one row a line; an empty line is one unknown word."""
        return DataLoader(_Lines(lines, self), batch_size=None)

    def _rows(self, split: Split) -> list[Row]:
        if self._name == "listops":
            count = self._examples if split == "train" else max(1, self._examples // 10)
            return generate(count, self._length, seed=split)
        if self._name is not None:
            return read_corpus(
                self._name, split, root=self._root, fold=self._fold, strip=self._strip
            )
        file = self._files[split]
        if file is not None and split != "train":
            return read_rows(file, **self._columns)
        rows = read_rows(str(self._files["train"]), **self._columns)
        missing: list[Split] = [part for part in ("valid", "test") if self._files[part] is None]
        return hold_out(rows, split, missing)

    def _learn(self, rows: list[Row]) -> None:
        generated = self._name == "listops"
        self._labels = LABELS if generated else sorted({row.label for row in rows})
        if len(self._labels) < 2:
            raise InputError(f"training needs texts of 2 labels or more, found {self._labels}")
        texts = (row.text for row in rows)
        if self._kind == "bpe":
            size = self._vocab_size or 8000
            self._tokenizer = BytePairTokenizer.train(
                texts, vocab_size=size, lowercase=self._lowercase
            )
            return
        words = WordTokenizer.train(
            texts,
            min_count=self._min_count,
            max_words=self._vocab_size,
            lowercase=self._lowercase and not generated,
            split="whitespace" if generated else "words",
        )
        self._tokenizer = words
        if self._vectors is not None:
            self._pretrained = word_vectors(self._vectors, words, seed=run_seed())

    def _encode(self, split: Split, rows: list[Row]) -> _Texts:
        numbers = {label: number for number, label in enumerate(self._labels)}
        for row in rows:
            if row.label not in numbers:
                raise InputError(
                    f"{row.where}: label {row.label!r} is not among those of the training data, "
                    f"{', '.join(self._labels)}"
                )
        tokens = self.tokenizer.encode_all([row.text for row in rows])
        lost = [len(text) - len(self._cut(text)) for text in tokens]
        if any(lost):
            rank_zero_only(_log.warning)(
                f"{split}: {sum(map(bool, lost))} of {len(rows)} texts are longer than max_length "
                f"{self._max_length} tokens; {sum(lost)} tokens beyond it are cut off"
            )
        return _Texts([self._cut(text) for text in tokens], [numbers[row.label] for row in rows])

    def _cut(self, tokens: list[int]) -> list[int]:
        return tokens[: self._max_length]

    def encode(self, texts: list[str]) -> list[list[int]]:
        """Token numbers of each text, cut to the longest length."""
        return [self._cut(tokens) for tokens in self.tokenizer.encode_all(texts)]

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to numbers and back; there after `setup()` or `load_state()`."""
        assert self._tokenizer is not None
        return self._tokenizer

    # Network, loss and metrics

    def build(self, architecture: Architecture) -> TextClassifier:
        return TextClassifier(
            architecture,
            vocab_size=self.tokenizer.vocab_size,
            num_labels=len(self._labels),
            max_length=self._max_length,
            pretrained=self._pretrained,
        )

    def loss(self, output: Output, batch: Batch, label_smoothing: float) -> tuple[Tensor, Tensor]:
        total = F.cross_entropy(
            output.logits.float(),
            batch.target,
            ignore_index=IGNORE,
            reduction="sum",
            label_smoothing=label_smoothing,
        )
        return total, (batch.target != IGNORE).sum()

    def metrics(self) -> MetricCollection:
        options: dict[str, Any] = {"num_classes": len(self._labels), "ignore_index": IGNORE}
        return MetricCollection(
            {
                "accuracy": MulticlassAccuracy(average="micro", **options),
                "f1": MulticlassF1Score(average="macro", **options),
            }
        )

    def update(self, metrics: MetricCollection, output: Output, batch: Batch) -> None:
        metrics.update(output.logits, batch.target)

    def predictions(self, output: Output, batch: Batch) -> list[dict[str, Any]]:
        probabilities, numbers = output.logits.float().softmax(-1).max(-1)
        return [
            {"label": self._labels[number], "probability": probability}
            for number, probability in zip(numbers.tolist(), probabilities.tolist(), strict=True)
        ]

    def describe(self, batch: Batch, index: int) -> list[str]:
        return self.tokenizer.pieces(batch.tokens[index][batch.mask[index]].tolist())

    # Checkpoints

    def state(self) -> dict[str, Any]:
        width = None if self._pretrained is None else self._pretrained.shape[1]
        return {
            "labels": self._labels,
            "tokenizer": self.tokenizer.state(),
            "max_length": self._max_length,
            "vector_width": width,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        self._labels = state["labels"]
        self._tokenizer = restore(state["tokenizer"])
        self._max_length = state["max_length"]
        width = state["vector_width"]
        if width is not None:  # the checkpoint's weights take their place
            self._pretrained = torch.zeros(self._tokenizer.vocab_size, width)


class _Texts(Dataset[Batch]):
    """Encoded texts in memory; a list of indices gives a batch."""

    def __init__(self, tokens: list[list[int]], targets: list[int]) -> None:
        self._tokens, self._targets = tokens, targets
        self.lengths = [len(text) for text in tokens]

    def __getitem__(self, indices: list[int]) -> Batch:
        tokens, mask = pad([self._tokens[index] for index in indices])
        return Batch(
            tokens, mask, torch.tensor([self._targets[index] for index in indices] or [IGNORE])
        )


class _Lines(IterableDataset[Batch]):
    """User text as it comes, in batches of consecutive lines."""

    def __init__(self, lines: Iterable[str], task: Classification) -> None:
        self._lines, self._task = lines, task

    def __iter__(self) -> Iterator[Batch]:
        lines = iter(self._lines)
        while chunk := list(islice(lines, 64)):
            yield Batch(*pad(self._task.encode(chunk)), torch.full((len(chunk),), IGNORE))

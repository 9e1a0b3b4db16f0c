"""Text classification: named sets, generated ListOps, or the user's own files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torchmetrics import MetricCollection

from clusterformer.data.batches import pad
from clusterformer.data.corpora import FOLDED, NUM_FOLDS, ClassificationCorpus, read_corpus
from clusterformer.data.holding_out import hold_out
from clusterformer.data.labelled_text import Example, Row, read_rows
from clusterformer.data.listops import LABELS, generate
from clusterformer.data.named_sets import Split
from clusterformer.data.tables import Column
from clusterformer.data.text_rows import LabelledDataset
from clusterformer.errors import InputError, require_at_least
from clusterformer.models.classifier import TextClassifier
from clusterformer.models.config import TransformerConfig
from clusterformer.models.pretrained import PretrainedClassifier
from clusterformer.task import IGNORE
from clusterformer.tasks.labelling import Labelling
from clusterformer.tasks.metrics import MatthewsCorrelation
from clusterformer.training.text_baselines import Labelled


class TextBatch(NamedTuple):
    """Texts with their labels."""

    tokens: Tensor  # (B, N) int64
    mask: Tensor  # (B, N) bool, True at real tokens
    target: Tensor  # (B,) int64
    row: Tensor  # (B,) int64: number of the text in its part of the data; -1 where there is none


class Classification(Labelling):
    """Give each text one of several labels.

    A named set, or own files: `.tsv`, `.csv` or `.jsonl`, each also with `.gz`.

    Args:
        name: Named data set: mr, subj, cr, mpqa (10-fold cross-validation), 20news (by date), cola
            and sst2 (which test on GLUE's development part; cola is measured by Matthews'
            correlation too), or listops (generated).
        fold: Number, 0..9, of the tenth of mr, subj, cr or mpqa that tests; a tenth of the rest
            validates.
        strip: Removal of headers, signatures and quoted lines from 20news: they tell the group.
        length: Maximum number of tokens of a listops expression.
        examples: Number of listops training examples; a tenth as many validate, and test.
        text_column: Column of the text in own files, by name or by number from 1; found by name
            (`text`) or contents by default.
        options: Options of `Labelling`.
    """

    def __init__(
        self,
        name: ClassificationCorpus | Literal["listops"] | None = None,
        *,
        fold: int = 0,
        strip: bool = False,
        length: int = 128,
        examples: int = 10_000,
        text_column: Column | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name, **options)
        if not 0 <= fold < NUM_FOLDS:
            raise InputError(f"fold must be in 0..{NUM_FOLDS - 1}, got {fold}")
        require_at_least(1, examples=examples)
        self._name, self._fold, self._strip = name, fold, strip
        self._length, self._examples = length, examples
        self._columns["text_column"] = text_column
        if name == "cola":
            self.monitor = "val/matthews"
        if name == "listops":
            self._tokenizer_options |= {"lowercase": False, "split": "whitespace"}

    def ignored(self) -> list[str]:
        found = super().ignored()
        if self._fold and self._name not in FOLDED:
            found.append("fold")
        if self._strip and self._name != "20news":
            found.append("strip")
        return found

    def read(self, split: Split) -> list[Row]:
        if self._name == "listops":
            count = self._examples if split == "train" else max(1, self._examples // 10)
            return generate(count, self._length, seed=split)
        if self._name is None:
            return self.own_files(split, read_rows, hold_out)
        return read_corpus(self._name, split, root=self._root, fold=self._fold, strip=self._strip)

    def learn_labels(self, examples: Sequence[Example]) -> list[str]:
        return LABELS if self._name == "listops" else super().learn_labels(examples)

    def metrics(self) -> MetricCollection:
        found = super().metrics()
        if self._name == "cola":
            found.add_metrics({"matthews": MatthewsCorrelation()})
        return found

    def measure(self, examples: Sequence[Row], found: Labelled) -> dict[str, float]:
        measures = super().measure(examples, found)
        if self._name == "cola":
            from sklearn.metrics import matthews_corrcoef

            labels = [example.label for example in examples]
            measures["matthews"] = float(matthews_corrcoef(labels, found.labels))
        return measures

    def encoded(
        self, examples: Sequence[Row], tokens: list[list[list[int]]], targets: list[int]
    ) -> TextDataset:
        (texts,) = tokens
        return TextDataset(texts, targets)

    def check_text(self, line: str) -> None:
        self.check_positions(line)

    def text_batch(self, lines: list[str]) -> TextBatch:
        count = (len(lines),)
        [texts] = self.encode_lines([lines])
        return TextBatch(*pad(texts), torch.full(count, IGNORE), torch.full(count, -1))

    def build(self, config: TransformerConfig) -> TextClassifier | PretrainedClassifier:
        num_labels = len(self._labels)
        if (encoder := self.rows.make_encoder(config)) is not None:
            return PretrainedClassifier(config, encoder, num_labels=num_labels)
        network = TextClassifier(
            config,
            vocab_size=self.tokenizer.vocab_size,
            num_labels=num_labels,
            max_length=self.rows.row_length,
            pretrained=self._vector_table,
        )
        self.position_limit.set(network.embedding.num_positions)
        return network

    def describe(self, batch: TextBatch, index: int) -> list[str]:
        return self.tokenizer.ids_to_tokens(batch.tokens[index][batch.mask[index]].tolist())


class TextDataset(LabelledDataset):
    """Encoded texts in memory; a list of indices gives a batch."""

    def __init__(self, tokens: list[list[int]], targets: list[int]) -> None:
        self._tokens, self._targets = tokens, targets
        self.lengths = [len(text) for text in tokens]

    def __getitem__(self, indices: list[int]) -> TextBatch:
        tokens, mask = pad([self._tokens[index] for index in indices])
        targets = [self._targets[index] for index in indices]
        return TextBatch(
            tokens, mask, torch.tensor(targets or [IGNORE]), torch.tensor(indices or [-1])
        )

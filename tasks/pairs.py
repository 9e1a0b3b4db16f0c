"""Base of the tasks on pairs of texts, whatever the labels mean.

B pairs   N tokens
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clusterformer.data.batches import pad
from clusterformer.data.corpora import PairCorpus, read_pair_corpus
from clusterformer.data.frames import Frame
from clusterformer.data.holding_out import hold_out_pairs
from clusterformer.data.labelled_text import TextPair, read_pairs
from clusterformer.data.named_sets import Split
from clusterformer.data.tables import Column
from clusterformer.data.text_rows import LabelledDataset
from clusterformer.errors import InputError
from clusterformer.models.classifier import PairClassifier
from clusterformer.models.config import TransformerConfig
from clusterformer.models.pretrained import PretrainedClassifier, PretrainedPairClassifier
from clusterformer.task import IGNORE
from clusterformer.tasks.labelling import Labelling

SEPARATOR = "<sep>"


class PairBatch(NamedTuple):
    """Pairs of texts; a row is encoded as one text.

    Encoded apart, there are 2 B rows: the first texts of all pairs, then the second ones. Encoded
    jointly, there are B rows: both texts of a pair, a separator between them.
    """

    tokens: Tensor  # (rows, N) int64
    mask: Tensor  # (rows, N) bool, True at real tokens
    target: Tensor  # (B,) int64
    second: Tensor  # (rows, N) bool, True at tokens of a second text
    group: Tensor  # (B,) int64: number of the question from 1, or 0 where there is none
    row: Tensor  # (B,) int64: number of the pair in its part of the data; -1 where there is none


class PairLabelling(Labelling):
    """Give each pair of texts one of several labels.

    A named set, or own files: `.tsv`, `.csv` or `.jsonl`, each also with `.gz`. Pairs that
    share a text, as either side, stay together when a part of `train` is held out.

    Args:
        name: Named data set.
        joint: Encoding of both texts of a pair in one sequence, so that they attend to each other,
            instead of each by itself.
        first_column: Column of the first text in own files, by name or by number from 1; found by
            name (`first`) or contents by default.
        second_column: Column of the second text in own files, by name or by number from 1; found
            by name (`second`) or contents by default.
        options: Options of `Labelling`.

    Attributes:
        scored: Whether labels are numbers on a scale, of which training may lack some.
    """

    scored = False
    reads = "pair"
    commands: Mapping[str, str] = {"label pairs": "predict --checkpoint {run} --input FILE"}
    usage = "model.predict([(TEXT, TEXT)])"
    kept_options: tuple[str, ...] = (*Labelling.kept_options, "joint")

    def __init__(
        self,
        name: PairCorpus | None = None,
        *,
        joint: bool = False,
        first_column: Column | None = None,
        second_column: Column | None = None,
        **options: Any,
    ) -> None:
        super().__init__(name, **options)
        self._name, self.joint = name, joint
        self._columns |= {"first_column": first_column, "second_column": second_column}

    def read(self, split: Split) -> list[TextPair]:
        if self._name is None:
            return self.own_files(split, read_pairs, partial(hold_out_pairs, scored=self.scored))
        return read_pair_corpus(self._name, split, root=self._root)

    def encoded(
        self, examples: Sequence[TextPair], tokens: list[list[list[int]]], targets: list[Any]
    ) -> PairDataset:
        names = dict.fromkeys(pair.group for pair in examples if pair.group)
        questions = {name: number for number, name in enumerate(names, 1)}
        groups = [questions.get(pair.group, 0) for pair in examples]
        first, second = tokens
        return PairDataset(first, second, targets, groups, self._frame)

    @property
    def _frame(self) -> Frame | None:
        """Tokens around and between the texts of a row; None if texts are encoded apart."""
        return self.rows.pair if self.joint else None

    def check_text(self, line: str) -> None:
        self.check_positions(*split_pair(line))

    def text_batch(self, lines: list[str]) -> PairBatch:
        columns = list(zip(*map(split_pair, lines), strict=True))
        first, second = self.encode_lines(columns)
        count = len(lines)
        return pair_batch(first, second, [IGNORE] * count, [0] * count, self._frame, [-1] * count)

    def build(self, config: TransformerConfig) -> nn.Module:
        if (encoder := self.rows.make_encoder(config)) is not None:
            kind = PretrainedClassifier if self.joint else PretrainedPairClassifier
            return kind(config, encoder, num_labels=len(self._labels))
        vectors = self._vector_table
        if self.joint and vectors is not None:
            vectors = F.pad(vectors, (0, 0, 0, 1))
        network = PairClassifier(
            config,
            vocab_size=self.rows.vocab_size,
            num_labels=len(self._labels),
            joint=self.joint,
            max_length=self.rows.row_length,
            pretrained=vectors,
        )
        self.position_limit.set(network.embedding.num_positions)
        return network

    def describe(self, batch: PairBatch, index: int) -> list[str]:
        """Tokens of one row: one text, or both with a separator between them."""
        tokens = batch.tokens[index][batch.mask[index]].tolist()
        if not self.joint or self.rows.framed:
            return self.tokenizer.ids_to_tokens(tokens)
        split = tokens.index(self.tokenizer.vocab_size)
        first, second = (
            self.tokenizer.ids_to_tokens(t) for t in (tokens[:split], tokens[split + 1 :])
        )
        return [*first, SEPARATOR, *second]


def split_pair(line: str) -> tuple[str, str]:
    """Split a line of user text into its two texts.

    Raises:
        InputError: if there are not two of them with one tab between, or one is empty.
    """
    first, tab, second = line.partition("\t")
    if not tab or "\t" in second:
        found = "no tab" if not tab else f"{line.count(chr(9))} tabs"
        raise InputError(f"{found} in {line!r}; a line holds two texts with one tab between them")
    for which, text in (("first", first), ("second", second)):
        if not text.strip():
            raise InputError(f"the {which} text is empty in {line!r}")
    return first, second


class PairDataset(LabelledDataset):
    """Encoded pairs in memory; a list of indices gives a batch.

    Args:
        first: Tokens of each first text.
        second: Tokens of each second text.
        targets: Number of each label.
        groups: Number of each question, from 1, or 0 where there is none.
        frame: Tokens around and between two texts of one row; None to encode them apart.
    """

    def __init__(
        self,
        first: list[list[int]],
        second: list[list[int]],
        targets: list[Any],
        groups: list[int],
        frame: Frame | None,
    ) -> None:
        self._columns = first, second, targets, groups
        self._frame = frame
        sizes = [(len(u), len(v)) for u, v in zip(first, second, strict=True)]
        self.lengths = [2 * max(p) if frame is None else sum(p) + frame.size for p in sizes]

    def __getitem__(self, indices: list[int]) -> PairBatch:
        if not indices:
            frame = None if self._frame is None else Frame()
            return pair_batch([[]], [[]], [IGNORE], [0], frame, [-1])
        first, second, targets, groups = self._columns
        return pair_batch(
            [first[index] for index in indices],
            [second[index] for index in indices],
            [targets[index] for index in indices],
            [groups[index] for index in indices],
            self._frame,
            indices,
        )


def pair_batch(
    first: list[list[int]],
    second: list[list[int]],
    targets: list[Any],
    groups: list[int],
    frame: Frame | None,
    rows: list[int],
) -> PairBatch:
    """Make a batch of pairs; the arguments are those of `PairDataset`, and row numbers."""
    if frame is None:
        tokens, mask = pad([*first, *second])
        is_second = mask.clone()
        is_second[: len(first)] = False
    else:
        joined = [frame.around(u, v) for u, v in zip(first, second, strict=True)]
        tokens, mask = pad(joined)
        starts = torch.tensor([frame.second_start(*uv) for uv in zip(first, joined, strict=True)])
        is_second = mask & (torch.arange(mask.shape[1]) >= starts[:, None])
    columns = (torch.tensor(each) for each in (groups, rows))
    return PairBatch(tokens, mask, torch.tensor(targets), is_second, *columns)

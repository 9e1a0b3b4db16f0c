"""Base of the tasks on labelled texts: what is read, how it is encoded, and its batches."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torch.utils.data import DataLoader

from clusterformer.data.batches import run_seed
from clusterformer.data.columns import COLUMNS, find_columns
from clusterformer.data.doubtful_examples import warn_of_known
from clusterformer.data.labelled_text import Example
from clusterformer.data.named_sets import Split
from clusterformer.data.position_limit import PositionLimit
from clusterformer.data.tables import Column
from clusterformer.data.text_rows import LabelledDataset, TextRows, row_tokenizer_from_state
from clusterformer.data.tokenizers import Tokenizer, TokenizerKind, WordTokenizer, learn_tokenizer
from clusterformer.data.word_vectors import word_vectors
from clusterformer.errors import InputError, require_at_least, require_memory
from clusterformer.task import InputLine
from clusterformer.tasks.split_task import STAGE_SPLITS, LineTask, require_one_source
from clusterformer.training.learnt import open_learnt

_log = logging.getLogger(__name__)

ExampleT = TypeVar("ExampleT", bound=Example)


class LabelledTexts(LineTask):
    """Read texts with labels, and make batches of their tokens.

    Subclasses pass their `**options` on to these.

    Args:
        name: Named data set.
        root: Folder of the named data sets; $CLUSTERFORMER_DATA or the user's cache by default.
        train: Own training file.
        valid: Own validation file; without it, a tenth of `train` validates instead of training.
        test: Own test file; without it, another tenth of `train` tests.
        label_column: Column of the label in own files, by name or by number from 1; found by name
            (`label`) or contents by default.
        header: Header line in own files, to be skipped although all columns are numbers.
        encoding: Encoding of own files.
        tokenizer: "word", or for subwords "bpe" or "wordpiece"; learnt from the training texts. A
            pretrained model, or the run of `init_from`, has its own tokenizer instead.
        lowercase: Conversion of all texts to lower case; done by default.
        min_count: Minimum number of occurrences of a word in training; rarer ones are unknown. Not
            for subwords.
        vocab_size: Maximum number of words or subwords; no limit for words and 8000 subwords by
            default.
        vectors: File of word vectors in GloVe's format to start from, or "trained" for those of
            `clusterformer prepare vectors`; not for subwords.
        max_length: Maximum number of tokens of a text; longer ones are cut, and counted. No limit
            by default. For a pretrained model that of a row, its special tokens counted; by default
            the positions that it has, which more extends.
        batch_size: Maximum number of examples in a batch, over all processes; 50 by default, or no
            limit if `tokens_per_batch` is given.
        tokens_per_batch: Maximum number of tokens in a batch, over all processes, padding counted.
    """

    reads_pretrained = True
    reads: InputLine = "text"
    commands: Mapping[str, str] = {"label text": "predict --checkpoint {run} --input FILE"}
    usage = "model.predict([TEXT])"
    kept_options: tuple[str, ...] = ("tokenizer", "lowercase", "min_count", "vocab_size", "vectors")
    joint = False

    def __init__(
        self,
        name: str | None = None,
        *,
        root: str | None = None,
        train: str | None = None,
        valid: str | None = None,
        test: str | None = None,
        label_column: Column | None = None,
        header: bool = False,
        encoding: str = "utf-8",
        tokenizer: TokenizerKind = "word",
        lowercase: bool | None = None,
        min_count: int = 1,
        vocab_size: int | None = None,
        vectors: str | None = None,
        max_length: int | None = None,
        batch_size: int | None = None,
        tokens_per_batch: int | None = None,
    ) -> None:
        super().__init__()
        self._files: dict[Split, str | None] = {"train": train, "valid": valid, "test": test}
        require_one_source(name, self._files, "files")
        if vectors is not None and tokenizer != "word":
            raise InputError(f"word vectors need tokenizer: word, got {tokenizer}")
        require_at_least(
            1,
            min_count=min_count,
            vocab_size=vocab_size,
            max_length=max_length,
            batch_size=batch_size,
            tokens_per_batch=tokens_per_batch,
        )
        self._root = root
        self._columns: dict[str, Any] = {
            "label_column": label_column,
            "header": header,
            "encoding": encoding,
        }
        self._tokenizer_options: dict[str, Any] = {
            "kind": tokenizer,
            "vocab_size": vocab_size,
            "lowercase": lowercase is not False,
            "min_count": min_count,
        }
        self._asked: dict[str, Any] = {
            "tokenizer": None if tokenizer == "word" else tokenizer,
            "lowercase": lowercase,
            "min_count": None if min_count == 1 else min_count,
            "vocab_size": vocab_size,
        }
        self._vectors, self._max_length = vectors, max_length
        if batch_size is None and tokens_per_batch is None:
            batch_size = 50
        self._batch_size, self._tokens_per_batch = batch_size, tokens_per_batch
        self._rows: TextRows | None = None
        self._vector_table: Tensor | None = None
        self._test_examples: Sequence[Example] = []
        self._encoded: dict[Split, LabelledDataset] = {}
        self.position_limit = PositionLimit()
        self._told_cut = False

    @abstractmethod
    def read(self, split: Split) -> Sequence[Example]:
        """Read one part of the data."""

    @abstractmethod
    def encoded(
        self, examples: Sequence[Any], tokens: list[list[list[int]]], targets: list[int]
    ) -> LabelledDataset:
        """Make the data set of some examples.

        Args:
            examples: The examples.
            tokens: Token numbers: `tokens[i]` are those of the i-th text of each example.
            targets: Number of the label of each example.
        """

    @abstractmethod
    def learn_targets(self, examples: Sequence[Example]) -> None:
        """Learn from the training examples what `targets` needs, such as the labels."""

    @abstractmethod
    def targets(self, examples: Sequence[Example]) -> list[Any]:
        """Make the target of each example."""

    def ignored(self) -> list[str]:
        """Name the options that are given, but have no effect on these data."""
        if self._files["train"] is not None:
            return []
        defaults = {"header": False, "encoding": "utf-8"}
        return [name for name, value in self._columns.items() if value != defaults.get(name)]

    def refuse_ignored(self) -> None:
        """Refuse such options, but not of a run that goes on: older ones may have some.

        Raises:
            InputError: for the first one.
        """
        if not self.restored and (ignored := self.ignored()):
            data = "own files" if self._files["train"] is not None else "this named set"
            raise InputError(f"data.{ignored[0]} has no effect on {data}; leave it out")

    def unmeasurable(self, examples: Sequence[Any]) -> str | None:
        """Say why the measures of some examples would say nothing; None where they do."""
        return None

    def setup(self, stage: str) -> None:
        """Read the parts that the stage needs; learn vocabulary and labels unless restored."""
        if stage == "fit":
            self.refuse_ignored()
        read = cache(self.read)
        parts = {split: read(split) for split in STAGE_SPLITS[stage] if split not in self._encoded}
        if stage == "fit" and self._files["test"] is not None:
            parts["test"] = read("test")  # what is wrong with it is told before the training
        for split, examples in parts.items():  # before a tokenizer is learnt
            if not examples:
                raise InputError(
                    f"data.{split}: no example in it; give more texts, or another file"
                )
        for split, examples in parts.items():
            if split != "train" and self._files[split] is not None:
                measured = [example.texts for example in examples]
                if stage == "fit":
                    trained = (example.texts for example in read("train"))
                    warn_of_known(split, "texts", measured, trained)
                elif self._files[split] == self._files["train"]:  # which may be gone else
                    warn_of_known(split, "texts", measured, measured)
        if self._rows is None and stage != "predict":
            self._learn(read("train"), self._rows_of_model())
        for split, examples in parts.items():
            self._encoded[split] = self._encode(split, examples)

    def _rows_of_model(self) -> TextRows | None:
        """Rows of the model or run that the network starts from; None if a tokenizer is learnt."""
        if self._vectors is not None and (self.pretrained or self.init_from):
            raise InputError("a pretrained model has its own vectors; leave data.vectors out")
        if self.pretrained is not None:
            self._name_ignored("the pretrained model", {})
            return TextRows.of_pretrained(self.pretrained, self._max_length, self.joint)
        learnt = open_learnt(self.init_from) if self.init_from else None
        if learnt is None or learnt.tokenizer is None:
            return None
        self.learnt = learnt
        self._name_ignored("the run of init_from", learnt.data)
        return TextRows.of_learnt(learnt.tokenizer, self._max_length, self.joint)

    def _name_ignored(self, owner: str, own: Mapping[str, Any]) -> None:
        """Name options that ask for another tokenizer than that of what training starts from.

        Args:
            owner: What has the tokenizer.
            own: Options with which that was learnt; none if nobody knows.
        """
        asked = {name: value for name, value in self._asked.items() if value is not None}
        other = [f"data.{name}" for name, value in asked.items() if own.get(name) != value]
        if other:
            rank_zero_only(_log.warning)(
                "%s has its own tokenizer; ignored: %s", owner, ", ".join(other)
            )

    def loader(self, split: Split) -> DataLoader:
        part = self._encoded[split]
        return self.bucketed(split, part, part.lengths, self._batch_size, self._tokens_per_batch)

    def encode_lines(self, columns: Sequence[Sequence[str]]) -> list[list[list[int]]]:
        """Token ids of the texts of each column, unknown if empty; a cut is told the first time."""
        tokens, excess = self.cut_rows.encode(columns)
        if any(excess) and not self._told_cut:
            self._told_cut = True
            limit = self.cut_rows.max_length
            rank_zero_only(_log.warning)(
                f"a text is longer than max_length {limit} tokens; of such texts the tokens beyond "
                "are cut off"
            )
        return tokens

    def check_positions(self, *texts: str) -> None:
        """Refuse a text, or a pair, of a user that is longer than the learned positions.

        Raises:
            InputError: with both numbers.
        """
        if self.position_limit.is_set:
            tokens, _ = self.cut_rows.encode([[text] for text in texts])
            self.position_limit.require(max(self._row_lengths(tokens)))

    def _row_lengths(self, columns: Sequence[Sequence[Sequence[int]]]) -> list[int]:
        """Number of tokens of the longest row of each example, whose texts `columns` holds."""
        sizes = zip(*(map(len, texts) for texts in columns), strict=True)
        return [sum(row) + self.rows.pair.size if self.joint else max(row) for row in sizes]

    def own_files(
        self,
        split: Split,
        read: Callable[..., list[ExampleT]],
        hold_out: Callable[[list[ExampleT], Split, Sequence[Split]], list[ExampleT]],
    ) -> list[ExampleT]:
        """Read one part of the user's files; `hold_out` takes it from `train` if it has no file."""
        files = (self._files["train"], self._files[split])
        known = next((file for file in files if file and Path(file).expanduser().exists()), "")
        named = {name: self._columns[name] for name in COLUMNS if name in self._columns}
        self._columns |= find_columns(
            known or str(files[0]),
            named,
            self._columns["encoding"],
            header_line=self._columns["header"],
        )
        file = self._files[split]
        if file is not None and split != "train":
            return read(file, **self._columns)
        missing: list[Split] = [part for part in ("valid", "test") if self._files[part] is None]
        return hold_out(read(str(self._files["train"]), **self._columns), split, missing)

    def _learn(self, examples: Sequence[Example], rows: TextRows | None) -> None:
        self.learn_targets(examples)
        if rows is None:
            texts = (text for example in examples for text in example.texts)
            tokenizer = learn_tokenizer(texts, **self._tokenizer_options)
            rows = TextRows(tokenizer, self._max_length, self.joint)
            if self._vectors is not None:
                assert isinstance(tokenizer, WordTokenizer)
                self._vector_table = word_vectors(self._vectors, tokenizer, seed=run_seed())
        self._rows = rows
        if self.learnt is not None:
            self._expect_vectors(self.learnt.state.get("vector_width"))

    def _encode(self, split: Split, examples: Sequence[Example]) -> LabelledDataset:
        if split == "test":
            self._test_examples = examples
        if split != "train" and (reason := self.unmeasurable(examples)):
            rank_zero_only(_log.warning)(f"{split}: {reason}")
        targets = self.targets(examples)
        columns = list(zip(*(example.texts for example in examples), strict=True))
        tokens, excess = self.cut_rows.encode(columns)
        if any(excess):
            rank_zero_only(_log.warning)(
                f"{split}: {sum(map(bool, excess))} of {len(excess)} texts are longer than "
                f"max_length {self.cut_rows.max_length} tokens; {sum(excess)} tokens beyond are "
                "cut off"
            )
        self.position_limit.read(split, self._row_lengths(tokens), examples)
        return self.encoded(examples, tokens, targets)

    @property
    def rows(self) -> TextRows:
        """The way from texts to token ids; available after `setup()` or `load_state()`."""
        assert self._rows is not None
        return self._rows

    @property
    def cut_rows(self) -> TextRows:
        """`rows` with this program's `max_length`; a test may have another than the training."""
        limit = self._max_length
        return self.rows if limit is None else self.rows.cut_to(limit)

    @property
    def tokenizer(self) -> Tokenizer:
        """Tokenizer of the texts; available after `setup()` or `load_state()`."""
        return self.rows.tokenizer

    def state(self) -> dict[str, Any]:
        return {
            "tokenizer": self.rows.state(),
            "max_length": self.rows.max_length,
            "vector_width": None if self._vector_table is None else self._vector_table.shape[1],
        }

    @classmethod
    def saved_tokenizer(cls, state: dict[str, Any]) -> Tokenizer | None:
        found = state["tokenizer"]
        return None if found["kind"] == "pretrained" else row_tokenizer_from_state(found)

    def load_state(self, state: dict[str, Any]) -> None:
        width = state["vector_width"]
        require_at_least(1, max_length=state["max_length"], vector_width=width)
        self._rows = TextRows.from_state(state["tokenizer"], state["max_length"], self.joint)
        self._expect_vectors(width)

    def _expect_vectors(self, width: int | None) -> None:
        """Make room for word vectors that weights to be loaded have; None for none."""
        if width is not None:
            words = self.tokenizer.vocab_size
            require_memory(4 * words * width, f"vector_width {width} for {words} words")
            self._vector_table = torch.zeros(words, width)

"""Base of the tasks on running text: named texts or the user's own, as one stream of tokens."""

from __future__ import annotations

import logging
from typing import Any, TypedDict

import numpy as np
from numpy.typing import NDArray

from clusterformer.data.documents import (
    Document,
    LanguageModelingCorpus,
    document_pieces,
    named_documents,
    own_documents,
)
from clusterformer.data.doubtful_examples import warn_of_known
from clusterformer.data.framed_tokenizers import RowTokenizer
from clusterformer.data.named_sets import SPLITS, Split
from clusterformer.data.stream_tokenizers import (
    ByteTokenizer,
    StreamBytePairTokenizer,
    StreamTokenizer,
    StreamTokenizerKind,
    StreamWordPieceTokenizer,
    StreamWordTokenizer,
    stream_tokenizer_from_state,
)
from clusterformer.data.streams import token_stream
from clusterformer.errors import InputError, require_at_least
from clusterformer.tasks.split_task import STAGE_SPLITS, LineTask, require_one_source
from clusterformer.training.learnt import open_learnt

_log = logging.getLogger(__name__)

_SUBWORDS: dict[str, type[StreamBytePairTokenizer]] = {
    "bpe": StreamBytePairTokenizer,
    "wordpiece": StreamWordPieceTokenizer,
}


class RunningTextState(TypedDict):
    """State of the task in a checkpoint."""

    tokenizer: dict[str, Any]


class RunningText(LineTask):
    """Learn from running text.

    Subclasses pass their `**options` on to these.

    Args:
        name: Named data set: wikitext2, gutenberg (51 books, split by book and author), stdlib
            (code of Python), pg19, wikipedia or wikipedia-simple; or a list of them.
        root: Folder of the named data sets; $CLUSTERFORMER_DATA or the user's cache by default.
        train: Own training text.
        valid: Own validation text; without it, a tenth of `train` validates instead of training.
        test: Own test text; without it, another tenth of `train`, its end, tests.
        encoding: Encoding of own files.
        tokenizer: "bytes", "bpe" (byte pairs), "wordpiece" or "word" (split at spaces; rare words
            may be unknown). All but bytes are learnt from the training text.
        vocab_size: Maximum number of subwords or words; 8000 subwords and no limit for words by
            default.
        context: Number of tokens that the model sees at once.
        batch_size: Number of windows in a batch, over all processes.
    """

    mode = "min"
    state_type: Any = RunningTextState
    kept_options: tuple[str, ...] = ("tokenizer", "vocab_size")
    lowercase = False

    def __init__(
        self,
        name: LanguageModelingCorpus | list[LanguageModelingCorpus] | None = None,
        *,
        root: str | None = None,
        train: str | None = None,
        valid: str | None = None,
        test: str | None = None,
        encoding: str = "utf-8",
        tokenizer: StreamTokenizerKind = "bytes",
        vocab_size: int | None = None,
        context: int = 1024,
        batch_size: int = 8,
    ) -> None:
        super().__init__()
        self._files: dict[Split, str | None] = {"train": train, "valid": valid, "test": test}
        require_one_source(name, self._files, "text")
        require_at_least(1, context=context, batch_size=batch_size)
        least = {kind: subwords.min_vocab_size for kind, subwords in _SUBWORDS.items()}
        minimum = {**least, "word": 3}.get(tokenizer)
        if vocab_size is not None and (minimum is None or vocab_size < minimum):
            allowed = "there is none for bytes" if minimum is None else f"at least {minimum}"
            raise InputError(f"vocab_size for tokenizer {tokenizer}: {allowed}, got {vocab_size}")
        self._names = [name] if isinstance(name, str) else name or []
        self._root, self._encoding = root, encoding
        self._kind, self._vocab_size = tokenizer, vocab_size
        self._context, self._batch_size = context, batch_size
        self._tokenizer: StreamTokenizer | None = None
        self._streams: dict[Split, NDArray[np.integer]] = {}

    def setup(self, stage: str) -> None:
        """Read the parts that the stage needs; learn the vocabulary unless restored."""
        if stage == "fit" and not self._names:
            for split in SPLITS:  # told before a tokenizer is learnt, and the model that is tested
                self._documents(split)
        if self._tokenizer is None and stage != "predict":
            self._tokenizer = self._tokenizer_of_run() or self._learn()
        for split in STAGE_SPLITS[stage]:
            if split not in self._streams:
                documents = self._documents(split)
                stream = token_stream(documents, self.tokenizer, self._encoding)
                if len(stream) < self._context:
                    _log.info(
                        "%s: %s tokens in all, fewer than context %s: one row, as short as that",
                        *(split, f"{len(stream):,}", f"{self._context:,}"),
                    )
                self._streams[split] = stream
                self._warn_of_known(split)

    def _warn_of_known(self, split: Split) -> None:
        """Warn of own files that train too; beyond a training, only if the option is the same."""
        own, trained = self._files[split], self._files["train"]
        if split != "train" and own is not None and ("train" in self._streams or own == trained):
            measured, training = (
                [document.path.resolve() for document in self._documents(part)]
                for part in (split, SPLITS[0])
            )
            warn_of_known(split, "files", measured, training)

    def _documents(self, split: Split) -> list[Document]:
        if self._names:
            found = (named_documents(name, split, self._root) for name in self._names)
            return [document for documents in found for document in documents]
        file = self._files[split]
        if file is not None and split != "train":
            return own_documents(file)
        held = [part for part in SPLITS[1:] if self._files[part] is None]
        first = 0.0 if split == "train" else 1 - (len(held) - held.index(split)) / 10
        last = 1 - len(held) / 10 if split == "train" else first + 0.1
        return own_documents(str(self._files["train"]), first, min(1.0, last))

    def _tokenizer_of_run(self) -> StreamTokenizer | None:
        """Tokenizer of the run that the network starts from; None if one is to be learnt."""
        learnt = open_learnt(self.init_from) if self.init_from else None
        tokenizer = learnt.tokenizer if learnt else None
        if isinstance(tokenizer, RowTokenizer):
            tokenizer = tokenizer.inner
        if not isinstance(tokenizer, StreamTokenizer):
            return None
        if isinstance(tokenizer, StreamWordTokenizer) != (self._kind == "word"):
            other = (
                "leave data.tokenizer out" if self._kind == "word" else "give data.tokenizer word"
            )
            raise InputError(
                f"init_from {self.init_from}: data.tokenizer {self._kind} is not that of this run; "
                f"{other}"
            )
        self.learnt = learnt
        return tokenizer

    def _learn(self) -> StreamTokenizer:
        if self._kind == "bytes":
            return ByteTokenizer()
        texts = document_pieces(self._documents("train"), self._encoding)
        if self._kind == "word":
            return StreamWordTokenizer.train(texts, max_words=self._vocab_size)
        size = self._vocab_size or 8000
        learnt = _SUBWORDS[self._kind].train(texts, vocab_size=size, lowercase=self.lowercase)
        if learnt.vocab_size < size:
            _log.info(
                "tokenizer %s: %s subwords, all that the training text gives; vocab_size is %s",
                *(self._kind, f"{learnt.vocab_size:,}", f"{size:,}"),
            )
        return learnt

    @property
    def tokenizer(self) -> StreamTokenizer:
        """Tokenizer of the texts; available after `setup()` or `load_state()`."""
        assert self._tokenizer is not None
        return self._tokenizer

    def state(self) -> dict[str, Any]:
        return {"tokenizer": self.tokenizer.state()}

    @classmethod
    def saved_tokenizer(cls, state: dict[str, Any]) -> StreamTokenizer:
        return stream_tokenizer_from_state(state["tokenizer"])

    def load_state(self, state: dict[str, Any]) -> None:
        self._tokenizer = stream_tokenizer_from_state(state["tokenizer"])

"""Cloze over books: which of ten names is missing, when it was last read long ago.

After the Children's Book Test (Hill et al., 2016): a passage of a book, then its next sentence with
one name missing. The ten candidates are names of the passage, and none of them stands within its
last 256 tokens. Train, valid and test have different books and authors, and in half of the texts
every name is replaced by a fresh one, so that knowing a book does not help. Training asks for
further names of a passage too: one answer says little about so long a text.

B batch   N tokens   A missing names   V vocabulary   K candidates
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypedDict

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torchmetrics import MeanMetric, MetricCollection

from clusterformer.data.book_names import CANDIDATES, Book, Question, parse, questions
from clusterformer.data.cloze_words import FIRST_NAME, BookWords, ClozeWords, PretrainedWords
from clusterformer.data.documents import DocumentSplits, LanguageModelingCorpus
from clusterformer.data.named_sets import SPLITS, Split
from clusterformer.data.pretrained import Pretrained, open_pretrained
from clusterformer.errors import InputError, require_at_least
from clusterformer.models.asked_tokens import AskedTokens
from clusterformer.models.config import TransformerConfig
from clusterformer.models.pretrained import PretrainedEncoder
from clusterformer.models.pretrained_asked_tokens import PretrainedAskedTokens
from clusterformer.models.pretrained_model import read_causal, read_num_positions
from clusterformer.task import IGNORE, Output, SimpleResult
from clusterformer.tasks.generated.cloze_texts import ClozeBatch, ClozeTexts
from clusterformer.tasks.generated.generated_task import TEST, GeneratedTask


class ClozeTextState(TypedDict):
    """Words, or names, in the order of their token ids, and the number of names."""

    words: list[str]
    num_names: int


class ClozeState(ClozeTextState, total=False):
    """State of the task in a checkpoint; a pretrained model, where there is one.

    Older ones lack the length.
    """

    pretrained: dict[str, Any]
    length: int


class Cloze(GeneratedTask):
    """Choose the missing name of a passage of a book among ten of its names.

    Tokens are words; the commonest of the training books have a number, others are unknown. A name
    is a capitalised word within a sentence whose lower-case form the book does not have. Names have
    `num_names` numbers of their own: each name one by its spelling, or, in the texts with fresh
    names, one by chance.

    A causal language model answers at the end of the sentence. A pretrained encoder answers at the
    missing name. A pretrained model reads words as its tokens, of a word that is several the first;
    names are those of the training books that are one token.

    Args:
        name: Named set of books, split by books and authors; or give `train` and others.
        root: Folder of the named data sets; $CLUSTERFORMER_DATA or the user's cache by default.
        train: Own training file or folder of texts.
        valid: Own validation file or folder of texts.
        test: Own test file or folder of texts.
        length: Number of tokens of the passage and of the sentence with the missing name (N).
        vocab_size: Number of words that have a number.
        num_names: Number of numbers for names, at least 100.
        fresh: Share of texts with fresh names.
        asked_names: Number of names that a training text asks for, at most (A). The last has no
            candidate within 256 tokens, others none within 64.
        options: Options of `GeneratedTask`.
    """

    state_type = ClozeState
    sizes = ("length",)
    kept_options = ("vocab_size", "num_names")
    reads_pretrained = True

    def __init__(
        self,
        name: LanguageModelingCorpus | None = None,
        *,
        root: str | None = None,
        train: str | None = None,
        valid: str | None = None,
        test: str | None = None,
        length: int = 1024,
        vocab_size: int = 8000,
        num_names: int = 1000,
        fresh: float = 0.5,
        asked_names: int = 16,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self._documents = DocumentSplits(name, root, {"train": train, "valid": valid, "test": test})
        require_at_least(64, length=length)
        require_at_least(100, num_names=num_names)
        require_at_least(1, vocab_size=vocab_size, asked_names=asked_names)
        if not 0 <= fresh <= 1:
            raise InputError(f"fresh must be in 0..1, got {fresh}")
        self._length, self._vocab_size = length, vocab_size
        self._trained_length = length  # for positions, whatever a test has
        self._num_names, self._fresh = num_names, fresh
        self._asked_names = asked_names
        self._words: ClozeWords | None = None
        self._source: Pretrained | None = None
        self._books: dict[Split, list[Book]] = {}
        self._questions: dict[Split, list[Question]] = {}

    @property
    def chance(self) -> float:
        return 1 / CANDIDATES

    @property
    def num_labels(self) -> int:
        return FIRST_NAME + self._num_names + self._vocab_size

    def texts(self, *stream: int) -> ClozeTexts:
        return self._texts(stream, asked_names=1)

    def train_texts(self, *stream: int) -> ClozeTexts:
        return self._texts(stream, self._asked_names)

    def _texts(self, stream: tuple[int, ...], asked_names: int) -> ClozeTexts:
        split = SPLITS[stream[0]]
        if split not in self._questions:
            self._books[split] = books = self._read(split)
            words = self._words = self._words or self._learn(books if split == "train" else None)
            length = self._length - len(words.before) - len(words.after)
            found = [q for i, book in enumerate(books) for q in questions(book, i, length)]
            if not found:
                raise InputError(
                    f"{split}: no passage of {self._length} tokens with {CANDIDATES} names and the "
                    "right one far from its end; give longer texts or a smaller length"
                )
            self._questions[split] = found
        assert self._words is not None
        return ClozeTexts(
            self._books[split], self._questions[split], self._words, stream,
            length=self._length, fresh=self._fresh, asked_names=asked_names,
            causal=self._source is None or read_causal(self._source.config),
        )  # fmt: skip

    def _read(self, split: Split) -> list[Book]:
        return [parse(text) for text in self._documents.read(split)]

    def _learn(self, books: list[Book] | None) -> ClozeWords:
        """Number the words and names of the training books, or take a pretrained model's."""
        books = books or self._read("train")
        if self.pretrained is None:
            return BookWords.learn(books, self._vocab_size, self._num_names)
        self._source = open_pretrained(self.pretrained)
        return PretrainedWords.learn(self._source.tokenizer, books, self._num_names)

    def build(self, config: TransformerConfig) -> AskedTokens | PretrainedAskedTokens:
        if self.pretrained is not None and self._words is None:
            self._words = self._learn(None)
        trained = self._trained_length
        if (source := self._source) is not None:
            positions = read_num_positions(source.config)
            if positions is not None and self._length > max(positions, trained):
                raise InputError(
                    f"data.length is {self._length}, the pretrained model of this run has "
                    f"{max(positions, trained)} positions; only a training extends them"
                )
            encoder = PretrainedEncoder(
                config, source.config, weights=source.folder, max_length=trained
            )
            return PretrainedAskedTokens(encoder)
        return AskedTokens(config, vocab_size=self.num_labels, max_length=trained)

    def loss(
        self, output: Output, batch: ClozeBatch, label_smoothing: float
    ) -> tuple[Tensor, Tensor]:
        """Sum the cross-entropy among the candidates."""
        logits = _of_candidates(output, batch)
        total = F.cross_entropy(
            logits.flatten(0, 1), batch.target.flatten(), ignore_index=IGNORE, reduction="sum",
            label_smoothing=label_smoothing,
        )  # fmt: skip
        return total, (batch.target != IGNORE).sum()

    def metrics(self) -> MetricCollection:
        """Share of right choices."""
        return MetricCollection({"accuracy": MeanMetric()})

    def update(
        self, metrics: MetricCollection, output: Output, batch: ClozeBatch, network: nn.Module
    ) -> None:
        right = _of_candidates(output, batch).argmax(-1) == batch.target
        metrics["accuracy"].update(right[batch.target != IGNORE].float())

    def baselines(self, *, cheap: bool = False) -> dict[str, Callable[[], SimpleResult]]:
        """Answers by the positions of a name in the passage, and by the words beside it."""

        def measure(choose: Callable[[ClozeBatch, Tensor], Tensor]) -> SimpleResult:
            right, texts = 0, self.texts(TEST)  # all of them, whatever this process has a share of
            for start in range(0, self._test_texts, self._batch_size):
                stop = min(start + self._batch_size, self._test_texts)
                batch = texts[list(range(start, stop))]
                at = batch.tokens[..., None] == batch.candidates  # (B, N, K), as A is 1
                right += int((choose(batch, at) == batch.target[:, 0]).sum())
            return SimpleResult({"accuracy": right / self._test_texts}, 0)

        def last(batch: ClozeBatch, at: Tensor) -> Tensor:
            return (at * torch.arange(at.shape[1])[:, None]).amax(1).argmax(-1)

        def commonest(batch: ClozeBatch, at: Tensor) -> Tensor:
            return at.sum(1).argmax(-1)

        def alike(batch: ClozeBatch, at: Tensor) -> Tensor:
            near = F.pad(batch.tokens, (2, 2)).unfold(1, 5, 1)  # (B, N, 5)
            missing = near[torch.arange(len(near)), batch.missing[:, 0]]  # (B, 5)
            count = (missing[:, None] == batch.tokens[..., None]).sum(1)  # (B, 5); 0 for padding
            rare = torch.where(count > 0, at.shape[1] / count, 1).log()
            shared = (missing[:, None, :, None] == near[:, :, None]).any(-1)  # (B, N, 5)
            return torch.einsum("bnw,bw,bnk->bk", shared.float(), rare, at.float()).argmax(-1)

        return {
            "candidate seen last": lambda: measure(last),
            "commonest candidate": lambda: measure(commonest),
            "candidate with like neighbours": lambda: measure(alike),
        }

    def state(self) -> dict[str, Any]:
        words, length = self._words, {"length": self._trained_length}
        if isinstance(words, PretrainedWords):
            assert self._source is not None
            names, source = words.spellings, self._source.state()
            return {"words": names, "num_names": len(names), "pretrained": source, **length}
        known = words.ids if isinstance(words, BookWords) else {}
        return {"words": list(known), "num_names": self._num_names, **length}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore words and the length of training; texts of a test may have any."""
        self._trained_length = state.get("length", self._length)
        require_at_least(64, length=self._trained_length)
        self._num_names = state["num_names"]
        if "pretrained" not in state:
            self._words = BookWords(state["words"], self._num_names)
            return
        self._source = Pretrained.from_state(state["pretrained"])
        self._words = PretrainedWords(self._source.tokenizer, state["words"])

    def predictions(self, network: nn.Module, batch: ClozeBatch) -> list[dict[str, Any]]:
        """Number of the chosen candidate of each text."""
        chosen = _of_candidates(network(batch), batch)[:, 0].argmax(-1)
        return [{"candidate": int(choice)} for choice in chosen]


def _of_candidates(output: Output, batch: ClozeBatch) -> Tensor:
    """Logits of the candidates, (B, A, K)."""
    return output.logits.float().gather(2, batch.candidates)
